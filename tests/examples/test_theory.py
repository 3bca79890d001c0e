"""The example of Theorem 1: gradients, delays and the bound by hand; short runs."""

import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from flwr_asyncdrop.submodel import extract, merge_

sys.path.append(str(Path(__file__).parents[2] / "examples" / "theory"))

import theorem1
from onelayer import measure
from onelayer.bound import Bound, FloorTerms, active_probability, kernel_rate
from onelayer.network import Network, limit_kernel, make_data, patches_of
from onelayer.sweeps import CHECKS, PANELS, settings_of
from onelayer.training import (
    Run,
    Setting,
    delayed_descent,
    group_gradient,
    start,
    train,
)

SYNCHRONOUS = Setting(delay=0, keep=1.0, devices=1, width=256)


def test_patches_join_the_ends():
    images = np.array([[[1, 2, 3], [10, 20, 30]]])
    assert patches_of(images, 2).tolist() == [
        [[1, 10, 2, 20], [2, 20, 3, 30], [3, 30, 1, 10]]
    ]


def test_the_data_are_as_the_theorem_assumes():
    data = make_data(8, seed=3)
    flat = data.patches.reshape(8, -1)
    np.testing.assert_allclose(np.linalg.norm(flat, axis=1), 1)
    assert len(np.unique(flat, axis=0)) == 8
    assert set(data.labels) == {-1, 1}
    np.testing.assert_array_equal(make_data(3, seed=3).patches, data.patches[:3])
    assert not np.array_equal(make_data(8, seed=4).patches, data.patches)


def test_the_gradient_of_a_group_by_hand():
    # The first filter sees only pixel 1 (2 > 0 > -4), the second only pixel 2
    # (-1 < 0 < 2), so they add 0.5 * 2 = 1 and 0.25 * 2 = 0.5 to the output.
    network = Network(
        patches=np.array([[[1.0], [-2.0]]]),
        second_layer=np.array([[[0.5, -0.5], [1.0, 0.25], [1.0, 1.0]]]),
    )
    filters = np.array([[[2.0], [-1.0], [1.0]]])
    np.testing.assert_allclose(network.shares(filters), [[[1.0, 0.5, 1.0]]])
    # Device 1 has both and is 1.5 short of the label, device 2 has the first and is 2
    # short; nobody has the third.
    masks = np.array([[[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]]])
    gradient = group_gradient(network, np.array([3.0]), filters, masks)
    first = (-1.5 - 2) / 2 * (0.5 * 1)
    second = -1.5 * (0.25 * -2)
    np.testing.assert_allclose(gradient, [[[first], [second], [0.0]]])


def test_one_device_without_delay_is_the_packages_extract_train_and_merge():
    setting = Setting(delay=0, devices=1, width=6, examples=3)
    data = make_data(3, seed=0)
    network, filters = start(setting, data, 1, np.random.default_rng(0))
    kept = torch.tensor([0, 2, 3])
    masks = np.zeros((1, 1, 6))
    masks[..., kept] = 1
    gradient = group_gradient(network, data.labels, filters, masks)
    (stepped,) = islice(delayed_descent(filters, lambda _: gradient, 0.1, 0), 1)

    state = {"filters": torch.tensor(filters[0])}
    indices = {"filters": {0: kept}}
    sub = extract(state, indices)["filters"].requires_grad_()
    hidden = torch.einsum("npd,md->nmp", torch.tensor(data.patches), sub).relu()
    second_layer = torch.tensor(network.second_layer[0])[kept]
    outputs = (hidden * second_layer).sum((1, 2))
    ((outputs - torch.tensor(data.labels)) ** 2).sum().div(2).backward()
    merge_(state, {"filters": (sub - 0.1 * sub.grad).detach()}, indices, 1.0)
    np.testing.assert_allclose(stepped[0], state["filters"], rtol=1e-12)


def test_delayed_descent_by_hand():
    # Of w^2 / 2, whose gradient is w: both groups start at 1, so the second step is
    # still by 1; the third is by 0.5, the weight that the first group was sent.
    steps = delayed_descent(np.array(1.0), lambda w: w, step_size=0.5, delay=1)
    assert list(islice(steps, 4)) == [0.5, 0.0, -0.25, -0.25]
    steps = delayed_descent(np.array(1.0), lambda w: w, step_size=0.5, delay=0)
    assert list(islice(steps, 3)) == [0.5, 0.25, 0.125]


@pytest.mark.parametrize("delay", [0, 1, 5])
def test_no_gradient_is_older_than_the_delay(delay):
    # The weights count the updates, and a gradient tells the count it was taken at.
    taken_at = {}

    def gradient(count):
        taken_at[len(taken_at)] = int(count)
        return np.array(1.0)

    arrived = list(islice(delayed_descent(np.array(0.0), gradient, -1.0, delay), 20))
    assert arrived == list(range(1, 21))
    ages = [update - taken_at[update] for update in range(20)]
    assert ages == [min(update, delay) for update in range(20)]


def test_the_kernel_of_infinite_width_by_hand():
    # At 60 degrees a third of all filters activate both; at 90 the product is 0.
    patches = np.array([[[1.0, 0.0]], [[0.5, np.sqrt(0.75)]], [[0.0, 1.0]]])
    kernel = limit_kernel(patches)
    np.testing.assert_allclose(np.diag(kernel), 0.5)
    assert kernel[0, 1] == pytest.approx(0.5 / 3)
    assert kernel[0, 2] == pytest.approx(0.0)


def test_the_kernel_of_a_wide_network_is_close_to_it():
    data = make_data(4, seed=0)
    setting = Setting(width=20_000)
    network, filters = start(setting, data, 1, np.random.default_rng(0))
    limit = limit_kernel(data.patches)
    np.testing.assert_allclose(network.kernel(filters)[0], limit, atol=1e-3)
    assert np.abs(limit).max() > 20e-3


@pytest.mark.parametrize(
    ("keep", "devices", "theta"),
    [(0.3, 1, 0.3), (0.5, 2, 0.75), (0.25, 3, 0.578125), (1.0, 4, 1.0)],
)
def test_theta(keep, devices, theta):
    setting = Setting(keep=keep, devices=devices, step_size=0.5)
    assert active_probability(setting) == pytest.approx(theta)
    assert Bound(0.2, 12).rate(setting) == pytest.approx(theta * 0.5 * 0.2 / 4)
    assert kernel_rate(setting, 0.2) == pytest.approx(2 * keep * theta * 0.5 * 0.2)


def test_the_terms_of_the_floor_by_hand():
    setting = Setting(
        delay=2,
        keep=0.5,
        devices=1,
        width=2,
        examples=2,
        init_scale=2.0,
        step_size=1.0,
    )
    bound = Bound(lambda_0=1.0, patch_values=3)
    stale = 0.5 * 0.25 / 4 + 0.25 * 2 * 0.0625 / 16 + 0.25 * 0.0625 / 8
    narrow = 0.0625 * (0.5 * 8 / 2 + 0.25 * 4 / 8 + 0.25 * 4 / 4) * 3
    terms = bound.terms(setting)
    assert terms.delay == pytest.approx(stale * 4 * 4)
    assert terms.width == pytest.approx(narrow * 4)
    assert terms.devices == pytest.approx(2 * 4 * 0.25)
    assert bound.terms(replace(setting, delay=0)).delay == 0
    everything_kept = bound.terms(replace(setting, keep=1.0, delay=0))
    assert everything_kept == FloorTerms(0, 0, 0)


def test_the_fitted_constant_is_the_least_that_holds():
    bound = Bound(0.02, 12)
    narrow, wide = Setting(width=64), Setting(width=1024)
    measured = {
        narrow: 0.3 * bound.floor(narrow),
        wide: 0.2 * bound.floor(wide),
        Setting(keep=1.0, delay=0): 1e-30,
    }
    fitted = bound.fitted(measured)
    assert fitted.constant == pytest.approx(0.3)
    assert fitted.floor(narrow) == pytest.approx(measured[narrow])
    start_and_end = fitted.curve(wide, 5.0, np.array([0.0, 1e6]))
    np.testing.assert_allclose(start_and_end - fitted.floor(wide), [5.0, 0.0])


def test_what_is_read_off_a_run():
    updates = np.arange(0, 1000, 10.0)
    decaying = 0.99 ** (updates / 2)
    run = Run(updates, np.stack([decaying, decaying], axis=1)[..., None], 0.1)
    assert measure.rate(run) == pytest.approx(0.01)
    standing = np.where(np.arange(40) % 2 == 0, 1.0, 3.0).reshape(40, 1, 1)
    run = Run(np.arange(40.0), standing, 0.1)
    assert measure.floors(run) == pytest.approx([5.0])
    assert measure.offset(run) == pytest.approx(4.0)
    assert np.isnan(measure.rate(run))


@pytest.fixture(scope="module")
def synchronous():
    """Return a run of whole networks whose gradients are not delayed."""
    data = make_data(SYNCHRONOUS.examples, seed=0)
    return train(SYNCHRONOUS, data, iterations=400, repeats=3, seed=0, every=10)


def test_the_error_decays_at_least_as_stated(synchronous):
    data = make_data(SYNCHRONOUS.examples, seed=0)
    bound = Bound.of(data)
    errors = synchronous.errors.mean(axis=1)
    limit = bound.curve(SYNCHRONOUS, errors[0], synchronous.iterations)
    assert (errors[1:] < limit[1:]).all()
    assert measure.rate(synchronous) > bound.rate(SYNCHRONOUS)
    # Linear decay: so it does over each hundred updates, to the last.
    hundreds = np.log(errors[::10])
    stated = np.log1p(-bound.rate(SYNCHRONOUS))
    assert (np.diff(hundreds) < 100 * stated).all()


def test_dropped_filters_leave_a_floor():
    data = make_data(SYNCHRONOUS.examples, seed=0)
    whole = replace(SYNCHRONOUS, width=64)
    dropping = replace(whole, keep=0.7)
    averaging = replace(dropping, devices=8)
    floor_whole, floor_dropping, floor_averaging = (
        measure.floors(train(setting, data, iterations=1000, repeats=4, seed=0))
        for setting in (whole, dropping, averaging)
    )
    assert floor_dropping.min() > 100 * floor_whole.max()
    assert floor_averaging.mean() < floor_dropping.mean()


def test_the_same_seed_gives_the_same_run():
    data = make_data(2, seed=0)
    setting = Setting(delay=2, width=8, examples=2)
    runs = [
        train(setting, data, iterations=20, repeats=2, seed=seed) for seed in (1, 1, 2)
    ]
    np.testing.assert_array_equal(runs[0].residuals, runs[1].residuals)
    assert not np.array_equal(runs[0].residuals, runs[2].residuals)


def test_the_command(tmp_path):
    arguments = ["--out", str(tmp_path / "new"), "--iterations", "20", "--repeats", "1"]
    theorem1.main(arguments)
    png = (tmp_path / "new" / "theorem1.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    head, rule, *rows = (tmp_path / "new" / "theorem1.md").read_text().splitlines()
    assert len(rows) == sum(len(sweep.values) for sweep in (*PANELS, *CHECKS))
    assert {row.count("|") for row in (head, rule, *rows)} == {8}
    assert len(set(settings_of(PANELS))) == len(settings_of(PANELS))


@pytest.mark.parametrize("option", ["--repeats", "--iterations"])
def test_the_command_says_what_it_cannot_run(option, tmp_path, capsys):
    with pytest.raises(SystemExit):
        theorem1.main(["--out", str(tmp_path), option, "0"])
    assert "at least 1" in capsys.readouterr().err
