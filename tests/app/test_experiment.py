from dataclasses import replace

import numpy as np
import pytest
import torch

from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.experiment import (
    calibration_samples,
    check_fleet,
    initial_model,
    level_mixes,
    load_data,
    partitions,
    trained_model,
)
from flwr_asyncdrop.exceptions import ConfigError, DataError


def same(one, other):
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a.cpu(), b.cpu()) for a, b in pairs)


def test_the_model_fits_the_data_set():
    config = RunConfig()
    data = load_data(config)
    inputs, _ = data.batch("test", slice(0, 3))
    assert initial_model(config).eval()(inputs).shape == (3, data.num_classes)


def test_the_model_follows_the_seed_and_is_made_once():
    assert initial_model(RunConfig(seed=1)) is initial_model(RunConfig(seed=1))
    initial_model.cache_clear()
    first = initial_model(RunConfig(seed=1))
    initial_model.cache_clear()
    assert same(initial_model(RunConfig(seed=1)), first)
    assert not same(initial_model(RunConfig(seed=2)), first)


def test_building_the_model_leaves_the_global_generator_alone():
    initial_model.cache_clear()
    before = torch.get_rng_state()
    initial_model(RunConfig())
    assert torch.equal(torch.get_rng_state(), before)


def test_server_and_clients_agree_on_the_partitions():
    first = partitions(RunConfig(), 16)
    partitions.cache_clear()
    again = partitions(RunConfig(), 16)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    other = partitions(RunConfig(seed=1), 16)
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_by_speed_level_the_devices_of_a_level_share_their_labels():
    config = RunConfig(levels=4)
    labels = load_data(config).train_y.numpy()
    parts = partitions(config, 16)
    kinds = [set(labels[part].tolist()) for part in parts]
    for level in range(4):
        assert len(set.union(*kinds[4 * level : 4 * level + 4])) < 8
    assert len(parts) == 16


def test_label_mixes_are_those_that_the_devices_of_a_level_hold():
    config = RunConfig(levels=4)
    labels = load_data(config).train_y.numpy()
    parts, mixes = list(partitions(config, 400)), level_mixes(config, 400)
    assert mixes.shape == (4, 10)
    for level in range(4):
        held = np.unique(np.concatenate(parts[100 * level : 100 * (level + 1)]))
        counts = np.bincount(labels[held], minlength=10)
        np.testing.assert_allclose(mixes[level], counts / counts.sum())


def test_iid_devices_see_all_labels_and_share_no_sample():
    config = RunConfig(model="mlp", partition="iid")
    labels = load_data(config).train_y.numpy()
    parts = partitions(config, 8)
    assert all(len(set(labels[part].tolist())) == 10 for part in parts)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))


def test_dirichlet_devices_share_no_sample_and_differ_by_alpha():
    labels = load_data(RunConfig()).train_y.numpy()

    def commonest(alpha):
        config = RunConfig(model="mlp", partition="dirichlet", dirichlet_alpha=alpha)
        parts = partitions(config, 8)
        assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
        return [np.bincount(labels[part]).max() / len(part) for part in parts]

    assert np.median(commonest(0.05)) > 0.5 > np.median(commonest(100.0))


def test_the_model_is_as_wide_as_the_config_says():
    narrow, full = (initial_model(RunConfig(width=width)) for width in (0.5, 1.0))
    assert narrow.conv3.weight.shape == (64, 32, 3, 3)
    assert full.conv3.weight.shape == (128, 64, 3, 3)


def test_a_text_model_is_used_as_trained(reviews_root):
    config = RunConfig(dataset="imdb", model="lstm", data_dir=str(reviews_root))
    model = initial_model(config)
    assert model(load_data(config).example_inputs()).shape == (1, 2)
    assert same(trained_model(config, model.state_dict()), model)


def poisoned(config, monkeypatch, **inputs):
    """Let the app see other inputs than the data set has."""
    changed = replace(load_data(config), **inputs)
    monkeypatch.setattr("flwr_asyncdrop.app.experiment.load_data", lambda _: changed)


def test_test_inputs_do_not_touch_the_model_that_is_tested(monkeypatch):
    config = RunConfig()
    arrays = initial_model(config).state_dict()
    before = trained_model(config, arrays)
    test_x = load_data(config).test_x
    poisoned(config, monkeypatch, test_x=torch.full_like(test_x, 255))
    assert same(trained_model(config, arrays), before)


def test_inputs_of_devices_do_not_touch_the_model_that_is_tested(monkeypatch):
    config = RunConfig()
    arrays = initial_model(config).state_dict()
    before = trained_model(config, arrays)
    train_x = load_data(config).train_x.clone()
    train_x[np.concatenate(partitions(config, 16))] = 255
    poisoned(config, monkeypatch, train_x=train_x)
    assert same(trained_model(config, arrays), before)


def test_the_tested_model_has_the_statistics_of_the_samples_held_out(monkeypatch):
    config = RunConfig()
    model = initial_model(config)
    held_out = calibration_samples(config)
    inputs, _ = load_data(config).batch("train", held_out)
    means = model.conv1(inputs).mean((0, 2, 3))
    found = trained_model(config, model.state_dict())
    torch.testing.assert_close(found.bn1.running_mean.cpu(), means)

    train_x = load_data(config).train_x.clone()
    train_x[held_out] = 0
    poisoned(config, monkeypatch, train_x=train_x)
    assert not same(trained_model(config, model.state_dict()), found)


@pytest.mark.parametrize("partition", ["iid", "dirichlet", "speed-level"])
def test_no_device_holds_what_is_held_out(partition):
    config = RunConfig(partition=partition, levels=4)
    held_out = calibration_samples(config)
    count = len(load_data(config).train_y)
    assert len(set(held_out.tolist())) == count // 10
    held = np.concatenate(partitions(config, 400))
    assert not set(held.tolist()) & set(held_out.tolist())
    if partition != "speed-level":  # of whose devices each has but a random half
        assert len(held) == count - count // 10
        assert len(set(held.tolist())) == len(held)
    calibration_samples.cache_clear()
    assert np.array_equal(calibration_samples(config), held_out)
    other = calibration_samples(replace(config, seed=1))
    assert not np.array_equal(other, held_out)


def test_of_a_large_data_set_2048_samples_are_held_out(monkeypatch):
    config = RunConfig(seed=17)
    initial_model(config)
    data = load_data(config)
    many = torch.zeros(30_000, *data.input_shape, dtype=data.train_x.dtype)
    poisoned(
        config,
        monkeypatch,
        train_x=many,
        train_y=torch.zeros(30_000, dtype=data.train_y.dtype),
    )
    assert len(calibration_samples(config)) == 2048
    calibration_samples.cache_clear()


def test_devices_hold_all_samples_of_a_model_without_batch_normalisation():
    config = RunConfig(model="mlp", partition="iid")
    assert len(calibration_samples(config)) == 0
    assert len(np.concatenate(partitions(config, 8))) == 1438


def test_too_few_samples_to_hold_out_leave_the_merged_statistics(monkeypatch):
    config = RunConfig(seed=18)
    model = initial_model(config)
    data = load_data(config)
    poisoned(config, monkeypatch, train_x=data.train_x[:19], train_y=data.train_y[:19])
    assert len(calibration_samples(config)) == 0
    assert same(trained_model(config, model.state_dict()), model)
    calibration_samples.cache_clear()


def test_batch_statistics_are_learnt_in_the_runs_precision():
    model = initial_model(RunConfig())
    full, low = (
        trained_model(RunConfig(precision=precision), model.state_dict())
        for precision in ("float32", "bfloat16")
    )
    assert torch.equal(low.conv1.weight.cpu(), model.conv1.weight)
    assert not torch.equal(low.bn1.running_mean, full.bn1.running_mean)
    assert torch.allclose(low.bn1.running_mean, full.bn1.running_mean, atol=0.01)


def test_data_that_is_missing_with_downloads_off_is_one_line(tmp_path):
    config = RunConfig(dataset="cifar10", data_dir=str(tmp_path))
    with pytest.raises(DataError) as caught:
        load_data(config)
    assert "\n" not in str(caught.value)
    assert "download" in str(caught.value)


@pytest.mark.parametrize("partition", ["speed-level", "iid", "dirichlet"])
def test_simulated_devices_hold_no_more_than_they_may_report(partition):
    def config(most):
        return RunConfig(partition=partition, max_examples=most)

    most = max(map(len, partitions(config(10**9), 20)))
    check_fleet(config(most), 20)
    says = f"max-examples={most - 1} .* hold up to {most} samples: leave it out"
    with pytest.raises(ConfigError, match=says):
        check_fleet(config(most - 1), 20)
    check_fleet(replace(config(1), clock="wall"), 20)
