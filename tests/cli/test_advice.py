"""What an advice says, by hand: who is best, who is as good, and what is simplest."""

import subprocess

import pytest
from flwr.common.config import parse_config_args

from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.cli import simulate
from flwr_asyncdrop.cli.advice import KINDS, Candidate, advise, json_values
from flwr_asyncdrop.cli.advice_text import commands, limits, lines
from flwr_asyncdrop.cli.flags import given
from flwr_asyncdrop.cli.parser import Parser
from flwr_asyncdrop.cli.presets import PRESETS
from flwr_asyncdrop.cli.variants import preset_settings
from flwr_asyncdrop.report.metric import Metric
from flwr_asyncdrop.report.target import Target
from tests.report.histories import SECONDS, series

TARGET = Target(Metric("accuracy"), 0.8, "given")
POINTS = 6
WHOLE = POINTS * SECONDS


def arriving(*places):
    """Return accuracies by seed, of which the first good one is at these points."""
    return {
        seed: [0.5] * place + [0.8] * (POINTS - place)
        for seed, place in enumerate(places)
    }


def candidate(algorithm, values_by_seed, **keys):
    config = RunConfig.parse({"algo": algorithm, **keys})
    return Candidate(algorithm, keys, config, series(algorithm, values_by_seed))


def advice_of(**values_by_seed):
    candidates = [
        candidate(name.replace("_", "-"), values)
        for name, values in values_by_seed.items()
    ]
    return advise(candidates, TARGET, WHOLE)


@pytest.mark.parametrize(
    ("algorithm", "keys", "kind"),
    [
        ("fedavg", {}, 0),
        ("fedbuff-wait", {"buffer-size": 8}, 0),
        ("fedbuff-wait", {}, 1),
        ("fedavg", {"in-flight": 1}, 0),
        ("fedbuff-wait", {"in-flight": 16, "buffer-size": 8}, 0),
        ("fedbuff", {}, 2),
        ("async-fedavg", {}, 2),
        ("asyncdrop", {}, 3),
        ("asyncdrop-plus", {}, 3),
    ],
)
def test_what_is_simple(algorithm, keys, kind):
    found = candidate(algorithm, arriving(1), **keys)
    assert KINDS[found.simplicity] == KINDS[kind]


def test_the_simplest_is_recommended_if_no_difference_is_clear():
    advice = advice_of(fedbuff=arriving(2, 2, 2, 2, 2), fedavg=arriving(2, 2, 2, 2, 3))
    assert advice.best.candidate.algorithm == "fedbuff"
    assert advice.recommended.candidate.algorithm == "fedavg"
    # Of five seeds that differ by 0 four times, most resamples of all are 0 or more.
    loss = advice.recommended.loss
    assert (loss.value, loss.low) == (pytest.approx(SECONDS / 5), 0)
    text = "\n".join(lines(advice))
    assert "as good as fedbuff within these seeds" in text
    assert "fedbuff has the better mean, which is no clear difference" in text
    assert "clearly" not in text


def test_one_that_is_clearly_worse_is_not_recommended():
    advice = advice_of(fedavg=arriving(4, 4, 3, 4, 4), fedbuff=arriving(2, 2, 2, 2, 1))
    assert advice.recommended.candidate.algorithm == "fedbuff"
    text = "\n".join(lines(advice))
    assert "clearly worse than fedbuff" in text
    assert "It is clearly better than all others." in text
    values = json_values(advice)
    assert values["recommended"] == "fedbuff"
    assert [each["clearly-worse"] for each in values["candidates"]] == [False, True]


def test_pairs_count_not_means():
    # Seeds differ far more than the two do, which is clear seed by seed.
    advice = advice_of(fedavg=arriving(1, 2, 3, 4, 5), fedbuff=arriving(0, 1, 2, 3, 4))
    assert advice.standings[1].is_clearly_worse
    assert advice.standings[1].loss.low == pytest.approx(SECONDS)


def test_a_seed_that_did_not_arrive_counts_with_the_whole_time():
    never = {4: [0.5] * POINTS}
    advice = advice_of(
        fedbuff={**arriving(1, 1, 1, 1), **never}, asyncdrop=arriving(2, 2, 2, 2, 2)
    )
    # The first point is after 10 s: (4 * 20 + 60) / 5 is less than 30.
    assert advice.best.candidate.algorithm == "fedbuff"
    (loss,) = [each.loss for each in advice.standings if each.loss]
    assert loss.value == pytest.approx(30 - 28)
    assert "(4/5)" in "\n".join(lines(advice))
    assert any("not every seed of fedbuff" in each for each in limits(advice))


def test_final_values_are_compared_if_nobody_arrives():
    advice = advice_of(
        fedavg={seed: [0.1, 0.5] for seed in range(5)},
        fedbuff={seed: [0.1, 0.6] for seed in range(5)},
    )
    assert not advice.reached
    assert advice.recommended.candidate.algorithm == "fedbuff"
    assert advice.standings[1].loss.value == pytest.approx(0.1)
    text = "\n".join(lines(advice))
    assert "clearly worse than fedbuff: -10.00 points [-10.00, -10.00]" in text
    assert any("no candidate reached the target" in each for each in limits(advice))


def test_an_arrival_behind_the_end_counts_with_the_whole_time():
    """The last evaluation may come after it: one that never arrives is no better."""
    both = [
        candidate("fedbuff", {seed: [0.5, 0.5, 0.5] for seed in range(5)}),
        candidate("fedavg", {seed: [0.5, 0.5, 0.8] for seed in range(5)}),
    ]
    advice = advise(both, TARGET, 25.0)
    assert advice.standings[1].loss.value == 0.0
    assert advice.best.candidate.algorithm == "fedavg"  # the simpler one of equals
    sooner = candidate("asyncdrop", {seed: [0.8] for seed in range(5)})
    advice = advise([*both, sooner], TARGET, 25.0)
    losses = [each.loss.value for each in advice.standings[1:]]
    assert losses == [25 - SECONDS] * 2


@pytest.mark.parametrize(("metric", "sign"), [("accuracy", 1), ("loss", -1)])
def test_a_run_that_diverged_counts_as_the_worst_of_the_others(metric, sign):
    nan = float("nan")
    target = Target(Metric(metric), 0.9 if sign > 0 else 0.1, "given")
    values = {
        "fedbuff": {0: [0.3, 0.4], 1: [0.3, nan], 2: [0.3, 0.6]},
        "fedavg": {seed: [0.4, 0.5] for seed in range(3)},
    }
    found = [
        Candidate(name, {}, RunConfig.parse({"algo": name}), runs)
        for name, own in values.items()
        for runs in [series(name, own, metric=metric)]
    ]
    advice = advise(found, target, WHOLE)
    assert not advice.reached
    best, other = advice.standings
    assert best.candidate.algorithm == "fedavg"
    # The worst accuracy of all that there are is 0.4, and the worst loss 0.6.
    worst = 0.4 if sign > 0 else 0.6
    mean = (0.4 + worst + 0.6) / 3
    assert other.loss.value == pytest.approx(sign * (0.5 - mean))
    line = next(each for each in lines(advice) if "beside fedavg" in each)
    shown = "-3.33 points" if sign > 0 else "+0.03333"
    assert line.strip() == f"beside fedavg: {shown}"


def test_the_figures_of_the_file_by_hand():
    """Of the third seed the last value is the worst one."""
    advice = advice_of(
        fedbuff={0: [0.5, 0.8, 0.9], 1: [0.5, 0.5, 0.8], 2: [0.8, 0.7, 0.4]},
        fedavg={seed: [0.1, 0.1, 0.8] for seed in range(3)},
    )
    values = json_values(advice)
    assert values["compared-by"] == "seconds to the target"
    assert (values["seeds"], values["max-seconds"]) == (3, WHOLE)
    fedbuff, fedavg = values["candidates"]
    mean = pytest.approx
    assert fedbuff["reached"] == 3
    # After 20, 30 and 10 s; 1 MB is sent in each second.
    assert fedbuff["seconds"] == {"mean": mean(20), "std": mean(10), "count": 3}
    assert fedbuff["bytes"] == {"mean": mean(20e6), "std": mean(10e6), "count": 3}
    assert fedbuff["final_accuracy"]["mean"] == mean((0.9 + 0.8 + 0.4) / 3)
    assert fedbuff["worse-by"] is None
    assert fedavg["worse-by"]["value"] == mean(30 - 20)
    found = {seed: own["final"] for seed, own in fedbuff["by-seed"].items()}
    assert found == {"0": 0.9, "1": 0.8, "2": 0.4}
    row = next(line for line in lines(advice) if line.startswith("fedbuff"))
    assert row.split() == ["fedbuff", "20.0", "20.0", "70.00", "±", "26.46"]


def test_bounds_are_in_their_order_where_more_is_better():
    drops = (0.0625, 0.125, 0.1875, 0.25, 0.3125)
    advice = advice_of(
        fedbuff={seed: [0.75] for seed in range(5)},
        fedavg={seed: [0.75 - drop] for seed, drop in enumerate(drops)},
    )
    loss = advice.standings[1].loss
    bounds = f"[{-100 * loss.high:+.2f}, {-100 * loss.low:+.2f}]"
    assert f"worse than fedbuff: -18.75 points {bounds}" in "\n".join(lines(advice))
    assert 0 < loss.low < loss.high


def test_three_seeds_are_no_evidence():
    advice = advice_of(fedavg=arriving(4, 4, 4), fedbuff=arriving(1, 1, 1))
    assert advice.recommended.candidate.algorithm == "fedbuff"
    assert not advice.standings[1].is_clearly_worse
    text = "\n".join(lines(advice))
    assert "Simpler, and 3 seeds cannot show that they are worse: fedavg" in text
    assert "clearly" not in text
    assert any("3 seeds are no evidence" in each for each in limits(advice))


def test_it_fits_into_80_columns():
    advice = advice_of(
        fedavg=arriving(4, 4, 3, 4, 4),
        hetero_asyncdrop={**arriving(2, 2, 2, 2), 4: [0.5] * POINTS},
        asyncdrop_plus=arriving(2, 2, 2, 2, 2),
    )
    assert max(map(len, lines(advice))) <= 80
    assert not any("…" in line for line in lines(advice))


@pytest.mark.parametrize(
    ("megabytes", "text"),
    [(0.095, "0.0950"), (1.0, "1.00"), (99.96, "100"), (12345.6, "12,346")],
)
def test_bytes_have_three_digits(megabytes, text):
    values = {seed: [0.8] for seed in range(5)}
    rate = megabytes / SECONDS
    found = series("fedbuff", values, megabytes_per_second=rate)
    one = Candidate("fedbuff", {}, RunConfig.parse({"algo": "fedbuff"}), found)
    row = lines(advise([one], TARGET, WHOLE))[1]
    assert row.split()[2] == text


def in_bash(command):
    """Return the words of a command as Bash reads it."""
    script = f"printf '%s\\0' {command}"
    done = subprocess.run(["bash", "-c", script], check=True, capture_output=True)
    return done.stdout.decode().split("\0")[:-1]


@pytest.mark.parametrize("name", ["it's", 'a "b"', """'"$\\"""])
def test_the_commands_give_the_settings_that_were_run(name):
    changes = {
        "algo": "asyncdrop-plus",
        "model": "mlp",
        "group-memory": False,
        "dataset": "fashion-mnist",
        "data-dir": f"/a folder/{name}",
        "lr": 0.125,
        "max-seconds": 75.5,
        "lr-milestones": "37.75s,56.6s",
    }
    settings = preset_settings(PRESETS["digits"], changes)
    found = commands("digits", 12, changes, settings)
    *words, _, text, _, fleet = in_bash(found["flwr"])
    assert words == ["flwr", "run", ".", "--stream"]
    assert RunConfig.parse(parse_config_args([text])) == RunConfig.parse(settings)
    assert parse_config_args([fleet]) == {"num-supernodes": 12}
    command, name, *words = in_bash(found["asyncdrop"])
    assert (command, name) == ("asyncdrop", "simulate")
    parser = Parser(allow_abbrev=False)
    simulate.add_arguments(parser, words)
    parsed = parser.parse_args(words)
    assert (parsed.task, parsed.devices) == ("digits", 12)
    own = preset_settings(PRESETS[parsed.task], given(parsed))
    assert RunConfig.parse(own) == RunConfig.parse(settings)
