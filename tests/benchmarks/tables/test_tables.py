"""The tables of the pages of results are what the packed histories come to."""

import json
import re
import shutil
import tarfile
from operator import attrgetter
from statistics import fmean

import pytest

from benchmarks.fair import ADJUSTED, CODED, OTHERS, ground_of
from benchmarks.tables import __main__ as tables
from benchmarks.tables import archives
from benchmarks.tables.archives import HISTORIES, ROOT, pack, read, without_places
from benchmarks.tables.verdicts import cost_beside_best, final_beside_best, goal
from flwr_asyncdrop.cli.tuned import Tuned, write_tuned
from flwr_asyncdrop.exceptions import DataError
from flwr_asyncdrop.report.series import read_series
from flwr_asyncdrop.report.target import Target
from flwr_asyncdrop.storage.done import mark_done
from tests.nightly import nightly
from tests.report.histories import history, series, write

ARCHIVES = sorted(HISTORIES.glob("*.tar.xz"))
# The gate reads a tenth of the histories, which have a million updates
IN_THE_GATE = {"results-paper.md", "results-codecs.md", "lab.md"}
IN_THE_GATE |= {f"mlp-small{end}.tar.xz" for end in ("", OTHERS, ADJUSTED)}


def some(paths):
    return [
        path.name if path.name in IN_THE_GATE else nightly(path.name, id=path.name)
        for path in paths
    ]


@pytest.mark.parametrize("page", some(tables.PAGES))
def test_a_page_is_what_the_histories_say(page) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert "<!-- end -->" in text
    assert tables.filled(text) == text


def test_every_archive_is_on_a_page_and_in_a_verdict() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in tables.PAGES)
    kept = {path.name.removesuffix(".tar.xz") for path in ARCHIVES}
    names = {name for name in kept if name == ground_of(name)}
    assert {ground_of(name) for name in kept} == names
    ends = {"verdict-same-loss": ADJUSTED, "verdict-coded": CODED}
    for kind, end in ends.items():
        names_of = " ".join(re.findall(rf"<!-- {kind}: (.*) -->", pages)).split()
        with_end = {name for name in kept if name.endswith(end)}
        assert with_end == {f"{name}{end}" for name in names_of}
    marked = {*re.findall(r"<!-- ([\w-]+) -->", pages)} - {"end"}
    marked = {name for name in marked if not name.endswith(CODED)}
    judged = " ".join(re.findall(r"<!-- verdict: (.*) -->", pages)).split()
    assert marked == {*judged}
    assert names == marked | {*re.findall(r"<!-- factorial: ([\w-]+) -->", pages)}


def test_the_command_that_reports_has_a_target_of_the_table() -> None:
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    name, target = re.findall(r"report runs/fair/([\w-]+) --target (\S+)", page)[0]
    goals = [goal(read(name)[0], share) for share in (0.95, 0.99)]
    assert target in [f"{each.value:.4f}" for each in goals]


def test_a_table_has_the_algorithms_of_others_beside_ours() -> None:
    first, chosen = read("mlp-small")
    others, theirs = read(f"mlp-small{OTHERS}")
    labels = {each.label for each in first}
    assert {each.label for each in others} < labels
    assert "asyncdrop-plus" in labels
    assert {*theirs} < {*chosen}
    # The best of them sets the target.
    best = max(fmean(c.final.value for c in s.curves.values()) for s in others)
    assert goal(first, 0.95).value == pytest.approx(0.95 * best)


@pytest.mark.parametrize("archive", some(ARCHIVES))
def test_settings_were_not_chosen_on_the_seeds_of_the_table(archive) -> None:
    series, _ = read(archive.removesuffix(".tar.xz"))
    assert all(set(each.runs) == {0, 1, 2, 3, 4} for each in series)


@pytest.fixture
def tuned_runs(tmp_path, monkeypatch):
    """A run, and the tuning before it, of a machine with paths of its own."""
    monkeypatch.setattr(archives, "HISTORIES", tmp_path / "results")
    monkeypatch.setattr(archives, "SEEDS", (0,))
    run = tmp_path / "runs" / "mlp-small" / "fedavg" / "seed-0"
    mark_done(write(run, history("fedavg", 0, [0.5])).parent, ["history.jsonl"])
    (run / "model.safetensors").write_bytes(b"")
    given = {"data-dir": "/home/me/data", "trace": "/home/me/fast.csv", "lr": 0.1}
    content = {"given": given, "seeds": [7], "chosen": {"fedavg": {"server-lr": 0.5}}}
    (tmp_path / "runs" / "tune-mlp-small").mkdir()
    write_tuned(tmp_path / "runs" / "tune-mlp-small", content)
    return tmp_path


def test_an_archive_has_the_runs_and_no_place_of_their_machine(tuned_runs) -> None:
    pack(tuned_runs / "runs", "mlp-small")
    with tarfile.open(tuned_runs / "results" / "mlp-small.tar.xz") as archive:
        archive.extractall(tuned_runs / "again", filter="data")
    again = tuned_runs / "again" / "mlp-small"
    names = {path.name for path in again.rglob("*") if path.is_file()}
    assert names == {"history.jsonl", "done.json", "tuned.json"}
    run = tuned_runs / "runs" / "mlp-small"
    for path in run.rglob("*.json*"):
        assert (again / path.relative_to(run)).read_bytes() == path.read_bytes()
    assert read_series([again])
    given = json.loads((again / "tuned.json").read_bytes())["given"]
    assert given == {"trace": "fast.csv", "lr": 0.1}
    assert Tuned.read(again / "tuned.json").of("fedavg") == {"server-lr": 0.5}


def test_a_link_to_runs_is_packed_as_they_are(tuned_runs) -> None:
    label = tuned_runs / "runs" / "mlp-small" / "fedavg"
    label.rename(tuned_runs / "elsewhere")
    label.symlink_to(tuned_runs / "elsewhere")
    pack(tuned_runs / "runs", "mlp-small")
    with tarfile.open(tuned_runs / "results" / "mlp-small.tar.xz") as archive:
        names = archive.getnames()
    assert "mlp-small/fedavg/seed-0/history.jsonl" in names


def test_nothing_replaces_no_archive(tuned_runs) -> None:
    pack(tuned_runs / "runs", "mlp-small")
    archive = tuned_runs / "results" / "mlp-small.tar.xz"
    before = archive.read_bytes()
    shutil.rmtree(tuned_runs / "runs" / "mlp-small")
    with pytest.raises(DataError, match="there is no history"):
        pack(tuned_runs / "runs", "mlp-small")
    assert archive.read_bytes() == before


def test_what_was_changed_since_it_ended_is_not_packed(tuned_runs) -> None:
    (path,) = (tuned_runs / "runs").rglob("history.jsonl")
    path.write_text(path.read_text().replace("0.5", "0.9"))
    with pytest.raises(DataError, match=r"is another than when its run ended"):
        pack(tuned_runs / "runs", "mlp-small")
    assert not (tuned_runs / "results").exists()


def test_runs_are_not_packed_without_their_choice_of_settings(tuned_runs) -> None:
    """The table called them not tuned."""
    shutil.rmtree(tuned_runs / "runs" / "tune-mlp-small")
    with pytest.raises(DataError, match=r"there is no .*tuned\.json"):
        pack(tuned_runs / "runs", "mlp-small")
    assert not (tuned_runs / "results").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pakc", "runs", "mlp-small"], "pakc"),
        (["pack"], "the following arguments are required"),
        (["pack", "runs"], "the following arguments are required"),
        (["pack", "runs", "mlp-small"], "there is no history.jsonl"),
    ],
    ids=["misspelt", "no folder", "no task", "no runs"],
)
def test_what_is_not_understood_writes_nothing(
    words, said, tmp_path, monkeypatch, capsys
) -> None:
    """A word that was misspelt wrote all the tables, and an error was a traceback."""
    page = tmp_path / "page.md"
    monkeypatch.setattr(tables, "PAGES", (page,))
    monkeypatch.setattr(archives, "HISTORIES", tmp_path / "results")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["results", *words])
    assert tables.main() == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("gap", ["cut off", "not begun"])
def test_what_lacks_a_run_is_not_packed(tuned_runs, gap) -> None:
    folder = tuned_runs / "runs" / "mlp-small"
    write(folder / "fedavg" / "seed-1", history("fedavg", 1, [0.5]))
    if gap == "cut off":
        cut_off = history("fedbuff", 1, [0.5], ended=False)
        write(folder / "fedbuff" / "seed-1", cut_off)
    write(folder / "fedbuff" / "seed-0", history("fedbuff", 0, [0.5]))
    with pytest.raises(DataError, match="fedbuff has no complete run with seed 1"):
        pack(tuned_runs / "runs", "mlp-small")
    assert not (tuned_runs / "results").exists()


def test_a_ground_is_not_packed_before_its_last_seed(tuned_runs, monkeypatch) -> None:
    """Of a comparison that was ended between two seeds no run is cut off."""
    monkeypatch.setattr(archives, "SEEDS", (0, 1))
    with pytest.raises(DataError, match="fedavg has no complete run with seed 1"):
        pack(tuned_runs / "runs", "mlp-small")
    assert not (tuned_runs / "results").exists()


NAN = float("nan")
OURS = "asyncdrop-plus"


def perplexities(**values):
    return tuple(
        series(label.replace("_", "-"), {0: [9.0, value]}, metric="perplexity")
        for label, value in values.items()
    )


def test_who_diverged_is_not_the_best_of_the_others() -> None:
    runs = perplexities(fedavg=5.0, fedbuff=NAN, asyncdrop_plus=4.0)
    target = goal(runs, 0.5)
    assert target.value == 10.0
    assert final_beside_best(runs, target, OURS).endswith("over `fedavg`")


def test_a_verdict_says_who_diverged() -> None:
    runs = perplexities(fedavg=5.0, asyncdrop_plus=NAN)
    target = goal(runs, 0.5)
    assert final_beside_best(runs, target, OURS) == "diverged"
    runs = perplexities(fedavg=NAN, asyncdrop_plus=5.0)
    assert final_beside_best(runs, target, OURS) == "every other one diverged"
    with pytest.raises(DataError, match="every other one diverged"):
        goal(runs, 0.5)


@pytest.mark.parametrize(("other", "bold"), [(0.5, True), (0.8, False)])
def test_the_goal_is_not_met_with_fewer_seeds(other, bold) -> None:
    runs = (
        series("fedbuff", {0: [0.1, 0.1, 0.8], 1: [0.1, 0.1, other]}),
        series(OURS, {0: [0.1, 0.8, 0.8], 1: [0.1, 0.1, 0.1]}),
    )
    target = Target(next(iter(runs[0].curves.values())).metric, 0.8, "given")
    cost = attrgetter("time")
    cell = cost_beside_best(runs, target, OURS, "time_overhead", cost)
    assert "0.67x" in cell
    assert cell.startswith("**") == bold


@pytest.mark.parametrize("name", some(ARCHIVES))
def test_an_archive_that_is_kept_has_no_place_of_its_machine(name) -> None:
    with tarfile.open(HISTORIES / name) as archive:
        for member in archive:
            if member.name.endswith("/tuned.json"):
                data = archive.extractfile(member).read()
                assert without_places(data) == data


def test_every_archive_of_another_protocol_is_named_on_a_page() -> None:
    pages = "".join(
        page.read_text(encoding="utf-8")
        for page in (ROOT / "docs").glob("results-*.md")
    )
    kept = [p.relative_to(ROOT) for p in HISTORIES.glob("*/*.tar.xz")]
    assert kept
    assert [path for path in kept if path.as_posix() not in pages] == []
