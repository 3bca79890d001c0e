import numpy as np
import pytest
import torch

from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.experiment import (
    initial_model,
    level_mixes,
    load_data,
    partitions,
    trained_model,
)
from flwr_asyncdrop.exceptions import DataError


def same(one, other):
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


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
    parts, mixes = partitions(config, 400), level_mixes(config, 400)
    assert mixes.shape == (4, 10)
    for level in range(4):
        held = np.unique(np.concatenate(parts[100 * level : 100 * (level + 1)]))
        counts = np.bincount(labels[held], minlength=10)
        np.testing.assert_allclose(mixes[level], counts / counts.sum())


def test_iid_devices_see_all_labels_and_share_no_sample():
    config = RunConfig(partition="iid")
    labels = load_data(config).train_y.numpy()
    parts = partitions(config, 8)
    assert all(len(set(labels[part].tolist())) == 10 for part in parts)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))


def test_dirichlet_devices_share_no_sample_and_differ_by_alpha():
    labels = load_data(RunConfig()).train_y.numpy()

    def commonest(alpha):
        config = RunConfig(partition="dirichlet", dirichlet_alpha=alpha)
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


def test_batch_statistics_are_learnt_in_the_runs_precision():
    model = initial_model(RunConfig())
    full, low = (
        trained_model(RunConfig(precision=precision), model.state_dict())
        for precision in ("float32", "bfloat16")
    )
    assert torch.equal(low.conv1.weight, model.conv1.weight)
    assert not torch.equal(low.bn1.running_mean, full.bn1.running_mean)
    assert torch.allclose(low.bn1.running_mean, full.bn1.running_mean, atol=0.01)


def test_data_that_is_missing_with_downloads_off_is_one_line(tmp_path):
    config = RunConfig(dataset="cifar10", data_dir=str(tmp_path))
    with pytest.raises(DataError) as caught:
        load_data(config)
    assert "\n" not in str(caught.value)
    assert "download" in str(caught.value)
