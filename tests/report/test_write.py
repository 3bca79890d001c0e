import html
import io
import json
import os
import re
import resource
import shutil
import subprocess
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
from random import Random

import pytest
from rich.console import Console

from flwr_asyncdrop.exceptions import FolderError, FolderInUseError
from flwr_asyncdrop.readable import printable
from flwr_asyncdrop.report import comparison_table, write_report
from flwr_asyncdrop.report.comparison import compare
from flwr_asyncdrop.report.page import render_page
from flwr_asyncdrop.report.pagedata import embedded, page_data
from flwr_asyncdrop.report.paper import latex
from flwr_asyncdrop.report.pictures import file_names
from flwr_asyncdrop.report.provenance import what_made
from flwr_asyncdrop.report.reading import read_log
from flwr_asyncdrop.report.series import read_series
from flwr_asyncdrop.report.summary import Summary
from flwr_asyncdrop.report.words import described
from flwr_asyncdrop.storage.lock import FolderLock
from tests.report.histories import history, series, write

WALL = {"wall": {"seconds": 0.0}}


class Page(HTMLParser):
    """Notes what a page has, and checks that its tags are balanced."""

    VOID = frozenset({"meta", "img", "link", "br", "wbr", "input"})

    def __init__(self, text):
        super().__init__()
        self.images, self.cells, self._open = [], [], []
        self.feed(text)
        assert not self._open

    def handle_starttag(self, tag, attrs):
        if tag == "img":
            self.images.append(dict(attrs)["src"])
        if tag == "td":
            self.cells.append("")
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open and self._open[-1] == "td":
            self.cells[-1] += data


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    out = tmp_path_factory.mktemp("results")
    for seed, accuracies in enumerate([[0.2, 0.6], [0.3, 0.5]]):
        write(out / "fedbuff" / f"seed-{seed}", history("fedbuff", seed, accuracies))
    label = "asyncdrop,alpha<1"
    *lines, end = history(label, 0, [0.4, 0.7])
    for line in lines[1:]:
        line["metrics"]["level-accuracy"] = [0.5, 0.75]
    group = {"name": "hidden", "size": 2, "counts": [[1, 0]]}
    counts = {"ranks": [0], "updates": [1], "bin": 1, "groups": [group]}
    units = {"event": "units", **counts, **WALL}
    write(out / label / "seed-0", [*lines, units, end])
    write(out / label / "seed-1", history(label, 1, [0.9], ended=False))
    return out


@pytest.fixture(scope="module")
def page(results, tmp_path_factory):
    out = tmp_path_factory.mktemp("report")
    return write_report([results], out, target=0.5)


def test_the_files(page):
    names = {path.name for path in page.parent.iterdir()}
    assert names == {
        "report.html",
        "table.md",
        "table.csv",
        "table.json",
        "accuracy-time.png",
        "accuracy-bytes.png",
        "timeline-fedbuff.png",
        "timeline-asyncdrop,alpha<1.png",
        "units-asyncdrop,alpha<1.png",
        "levels-asyncdrop,alpha<1.png",
    }
    values = json.loads((page.parent / "table.json").read_text())
    assert values["target"]["accuracy"] == 0.5
    assert "| fedbuff |" in (page.parent / "table.md").read_text()


def test_a_report_that_is_made_again_has_no_pictures_of_the_one_before(tmp_path):
    out = tmp_path / "report"
    for label in ("fedavg", "fedbuff"):
        lines = history(label, 0, [0.5], metric="eval/accuracy")
        write(tmp_path / "runs" / label / "seed-0", lines)
    write_report([tmp_path / "runs"], out)
    (out / "mine.png").write_text("kept")
    pictures = {"eval-accuracy-time.png", "eval-accuracy-bytes.png", "mine.png"}
    both = {"timeline-fedavg.png", "timeline-fedbuff.png"}
    assert {path.name for path in out.rglob("*.png")} == pictures | both
    assert not any(path.is_dir() for path in out.iterdir())
    write_report([tmp_path / "runs" / "fedbuff"], out)
    left = {path.name for path in out.glob("*.png")}
    assert left == {*pictures, "timeline-fedbuff.png"}


def files_of(folder):
    return {p.name: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("room", [0, 40_000, 70_000])
def test_a_report_that_finds_no_room_leaves_the_one_before(page, tmp_path, room):
    runs, out = tmp_path / "runs", tmp_path / "report"
    write(runs / "fedavg" / "seed-0", history("fedavg", 0, [0.5, 0.6]))
    shutil.copytree(page.parent, out)
    before, limits = files_of(out), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        for folder in (out, tmp_path / "new" / "report"):
            with pytest.raises(FolderError, match=f"cannot write {folder}: File too"):
                write_report([runs], folder, paper=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert files_of(out) == before
    assert not (tmp_path / "new").exists()
    write_report([runs], out)
    write_report([runs], tmp_path / "new")
    assert files_of(out) == files_of(tmp_path / "new")


def test_a_report_that_is_interrupted_while_it_takes_its_place_has_no_page(
    page, tmp_path, monkeypatch
):
    """Else the page and pictures of one would lie beside the table of another."""
    runs, out = tmp_path / "runs", tmp_path / "report"
    write(runs / "fedavg" / "seed-0", history("fedavg", 0, [0.5, 0.6]))
    shutil.copytree(page.parent, out)
    replace, calls = Path.replace, []

    def interrupted(self, target):
        calls.append(target)
        if target == out / "table.json":
            raise KeyboardInterrupt
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_report([runs], out)
    assert out / "accuracy-time.png" in calls
    assert not (out / "report.html").exists()
    monkeypatch.undo()
    (out / ".drafts.tmp").mkdir()  # of one that was killed
    (out / ".drafts.tmp" / "half.png").touch()
    write_report([runs], out)
    write_report([runs], tmp_path / "new")
    assert files_of(out) == files_of(tmp_path / "new")


def test_two_reports_do_not_go_to_one_folder_at_once(results, tmp_path):
    with (
        FolderLock(tmp_path, ".report.lock"),
        ThreadPoolExecutor(1) as other,
        pytest.raises(FolderInUseError, match="is in use by"),
    ):
        other.submit(write_report, [results], tmp_path).result()


def test_the_page_is_complete_in_itself(page):
    text = page.read_text()
    parsed = Page(text)
    assert len(parsed.images) == 6
    assert all(src.startswith("data:image/png;base64,") for src in parsed.images)
    assert not re.search(r"https?:|<link|@import|url\(", text)
    assert "default-src 'none'" in text


def test_labels_end_no_script_and_become_no_markup(tmp_path):
    label = "fedbuff,x=<,script><!--,\u2028'"
    for name in (label, "fedavg"):
        write(tmp_path / name / "seed-0", history(name, 0, [0.2, 0.6]))
    page = write_report([tmp_path], tmp_path / "report").read_text()
    Page(page)
    found = re.search(r'<script type="application/json" id="data">(.*?)<', page, re.S)
    data = json.loads(found[1])
    assert printable(label) in [row["label"] for row in data["rows"]]
    assert "<!--" not in page
    text = embedded({"</script>": "<b>&\u2028"})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"</script>": "<b>&\u2028"}


def test_nothing_of_a_stranger_commands_a_terminal(tmp_path):
    """Folders, metrics and all that a history says; 300 letters are no file name."""
    evil = "\x1b]0;title\x07\u202e\udcff\n"
    metric = f"score{evil}{'🎉' * 300}"
    labels = [f"=cmd(){evil}{'y' * 200}".encode(errors="surrogateescape"), b"fedavg"]
    for label in labels:
        facts = {"algo": evil, "model": evil, f"key{evil}": 1}
        lines = history(evil, 0, [2.0, 6.0], metric=metric, **facts)
        again = [{**line, "seed": 1} for line in lines]
        again[0]["config"] = {**again[0]["config"], f"key{evil}": 2}
        write(tmp_path / "runs" / os.fsdecode(label) / "seed-0", lines)
        write(tmp_path / "runs" / os.fsdecode(label) / "seed-1", again)
    out = tmp_path / "report"
    write_report([tmp_path / "runs"], out, paper=True)
    console = Console(file=io.StringIO(), width=120)
    console.print(comparison_table([tmp_path / "runs"]))
    texts = {"terminal": console.file.getvalue()}
    files = ("table.md", "table.csv", "table.json", "report.html", "paper/table.tex")
    for name in files:
        texts[name] = (out / name).read_text()
    history_path = tmp_path / "runs" / "fedavg" / "seed-0" / "history.jsonl"
    texts["summary"] = Summary(read_log(history_path)).text()
    for name, text in texts.items():
        assert not set("\x1b\x07\u202e") & set(text), name
        assert "score" in text or name == "paper/table.tex"
    (bad,) = [line for line in texts["table.csv"].splitlines() if "cmd()" in line]
    assert bad.startswith("'=cmd()")  # which no spreadsheet runs


def test_pictures_say_what_is_to_be_seen(page):
    text = html.unescape(page.read_text())
    assert 'alt="Accuracy against time: fedbuff reaches 50.00% after 20.0 s' in text
    assert "asyncdrop,alpha<1 reaches 50.00% after 20.0 s and ends at 70.00%." in text
    assert "reaches 50.00% after 20.0 MB" in text


def test_a_picture_says_where_a_line_ends_and_not_its_best_value():
    comparison = compare([series("fedbuff", {0: [0.5, 0.75, 0.25]})], 0.75)
    assert described(comparison, "time") == (
        "Accuracy against time: fedbuff reaches 75.00% after 20.0 s and ends at 25.00%."
    )


def test_the_page_says_what_made_it(tmp_path):
    for rate, seed in ((0.1, 0), (0.1, 1), (0.2, 0)):
        label = f"asyncdrop,drop-rate={rate}"
        config = {"algo": "asyncdrop", "drop-rate": rate, "trace": "", "scale": False}
        lines = history(label, seed, [0.5], **config)
        lines[0]["wall"] |= {
            "flwr": "1.41.0",
            "flwr-asyncdrop": "0.2.0",
            "gpu": False,
        }
        write(tmp_path / "mine" / label / f"seed-{seed}", lines)
    runs = read_series([tmp_path])
    made = what_made(runs, compare(runs, 0.5), ["mine"])
    assert made.facts == (
        ("seeds of asyncdrop,drop-rate=0.1", "0, 1"),
        ("seeds of asyncdrop,drop-rate=0.2", "0"),
        ("flwr-asyncdrop", "0.2.0"),
        ("flwr", "1.41.0"),
        ("gpu", "no"),
    )
    assert made.differing == ("drop-rate",)
    assert made.variants == {
        "asyncdrop,drop-rate=0.1": ("0.1",),
        "asyncdrop,drop-rate=0.2": ("0.2",),
    }
    assert dict(made.common) == {
        "devices": "8",
        "dataset": "digits",
        "clock": "virtual",
        "trace": "its own default",
        "scale": "False",
    }
    first, _, report = made.commands
    assert first.startswith("for seed in 0 1; do asyncdrop simulate --devices=8 ")
    assert "--algo=asyncdrop --drop-rate=0.1 --no-scale" in first
    assert first.endswith('--out=again/asyncdrop,drop-rate=0.1/seed-"$seed"; done')
    assert report == (
        "asyncdrop report mine --target=0.5 --reference=asyncdrop,drop-rate=0.1"
    )


def test_a_command_has_the_trace_and_not_its_digest(tmp_path):
    config = {"algo": "fedavg", "trace": "phones.csv", "trace-sha256": "0f"}
    write(tmp_path / "fedavg" / "seed-0", history("fedavg", 0, [0.5], **config))
    runs = read_series([tmp_path])
    command, _ = what_made(runs, compare(runs, 0.5), ["mine"]).commands
    assert "--trace=phones.csv" in command
    assert "sha256" not in command


def test_the_command_of_a_page_reads_the_folders_that_it_names(tmp_path, monkeypatch):
    names = ["-lead", "it's  mine", "new\nline"]
    for number, name in enumerate(names):
        lines = history("fedavg", number, [0.5], algo="fedavg", note="a\tb")
        write(tmp_path / name / "fedavg" / f"seed-{number}", lines)
    monkeypatch.chdir(tmp_path)
    page = write_report([Path(name) for name in names], "report").read_text()
    commands = html.unescape(page.partition("<pre")[2].partition("</pre>")[0])
    first, last = commands.partition(">")[2].splitlines()
    assert "$'--note=a\\011b'" in first
    command = last.replace("asyncdrop report", r"printf '%s\0'")
    read = subprocess.run(["bash", "-c", command], check=True, capture_output=True)
    *folders, target, _, end = read.stdout.decode().split("\0")
    assert folders == ["./-lead", *names[1:]]
    assert (target, end) == ("--target=0.475", "")


def test_ten_algorithms_with_five_seeds_fit_into_two_megabytes():
    noise = Random(0)  # noqa: S311
    rising = [0.9 * (1 - 0.99**place) for place in range(2000)]
    values = [round(max(0, value + noise.gauss(0, 0.02)), 4) for value in rising]
    runs = [
        series(name, dict.fromkeys(range(5), values))
        for name in [f"asyncdrop,alpha=0.{n}" for n in range(10)]
    ]
    assert len(page_data(runs, compare(runs, 0.5))) < 1_200_000


@pytest.mark.parametrize(
    ("watts", "offered", "at_target"),
    [
        (0.5, True, [0.7, 20, 20_000_000, 16, 10]),
        (None, False, [0.7, 20, 20_000_000, 16]),
    ],
)
def test_energy_is_an_axis_of_the_page_if_all_runs_count_it(watts, offered, at_target):
    runs = [
        series("fedbuff", {0: [0.4, 0.7]}, watts=300.0),
        series("asyncdrop", {0: [0.4, 0.7]}, watts=watts),
    ]
    text = render_page(runs, compare(runs, 0.5), [], {}, [])
    data = text.partition('id="data">')[2].partition("</script>")[0]
    fedbuff, asyncdrop = json.loads(data)["rows"]
    assert ('value="energy"' in text) == offered
    assert fedbuff["bands"]["energy"]["x"] == [3000, 6000]
    assert asyncdrop["runs"]["0"][1] == at_target


def test_the_lines_of_the_page_are_over_what_their_axis_says():
    """An evaluation every 10 s, after 8 updates each, and 3 MB in a second."""
    runs = [series("fedbuff", {0: [0.7, 0.4]}, watts=50.0, megabytes_per_second=3.0)]
    (row,) = json.loads(page_data(runs, compare(runs, 0.5)))["rows"]
    assert row["final"] == 0.4
    assert {name: band["x"] for name, band in row["bands"].items()} == {
        "time": [10, 20],
        "bytes": [30_000_000, 60_000_000],
        "updates": [8, 16],
        "energy": [500, 1000],
    }
    assert all(band["mean"] == [0.7, 0.4] for band in row["bands"].values())


def test_one_run_is_no_runs():
    runs = [series("fedbuff", {0: [0.4, 0.7]})]
    assert "1 run<" in render_page(runs, compare(runs, 0.5), [], {}, [])


def test_a_paper_gets_vector_figures_and_latex(results, tmp_path):
    write_report([results], tmp_path / "a", target=0.5, paper=True)
    write_report([results], tmp_path / "b", target=0.5, paper=True)
    files = {path.name: path for path in (tmp_path / "a" / "paper").iterdir()}
    names = [f"accuracy-{cost}" for cost in ("bytes", "time")]
    assert set(files) == {
        *(f"{name}.{kind}" for name in names for kind in ("pdf", "svg")),
        "table.tex",
    }
    for name, path in files.items():
        assert path.read_bytes() == (tmp_path / "b" / "paper" / name).read_bytes()
    box = re.search(
        rb"/MediaBox \[ 0 0 ([\d.]+) ", files["accuracy-time.pdf"].read_bytes()
    )
    assert float(box[1]) == pytest.approx(3.3 * 72, abs=0.5)
    assert b"/Type3" not in files["accuracy-time.pdf"].read_bytes()
    width = re.search(r'width="([\d.]+)pt"', files["accuracy-time.svg"].read_text())
    assert float(width[1]) == pytest.approx(3.3 * 72, abs=0.5)
    # They go with the report that they are of.
    (tmp_path / "a" / "paper" / "mine.tex").touch()
    write_report([results], tmp_path / "a", target=0.5)
    assert [path.name for path in (tmp_path / "a/paper").iterdir()] == ["mine.tex"]


def test_latex_by_hand():
    runs = [
        series("fedbuff_x,y=1%", {0: [0.25, 0.5]}),
        series("hetero-asyncdrop", {seed: [0.5, 0.75] for seed in range(5)}),
        series("fedavg", {seed: [0.25, 0.5] for seed in range(5)}),
    ]
    text = latex(compare(runs, 0.5))
    lines = text.splitlines()
    assert "\\toprule" in lines
    assert any(line.startswith("fedbuff\\_x,y=1\\% & 1 & 50.00 & ") for line in lines)
    assert "fedbuff\\_x,y=1\\% & 20.0 & +100.0\\% & +100.0\\% \\\\" in lines
    assert "\\textbf{75.00 $\\pm$ 0.00}" in text
    assert " & $-$25.00 {[}$-$25.00, $-$25.00]{*} & 20.0 \\\\\n" in text
    assert text.count("{") == text.count("}")


def test_a_table_in_latex_is_no_wider_than_a_page():
    seeds = {seed: [0.5 + seed / 100, 0.7] for seed in range(5)}
    runs = [
        series("hetero-asyncdrop", seeds),
        series("fedavg", {n: [0.25, 0.5] for n in seeds}),
    ]
    text = latex(compare(runs, 0.5))
    tables = re.findall(r"\\midrule\n(.*?)\\bottomrule", text, re.DOTALL)
    assert len(tables) > 1
    for table in tables:
        assert table.count("hetero-asyncdrop &") == 1
        assert all(len(line) < 120 for line in table.splitlines())


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs LaTeX")
def test_latex_compiles_and_fits_a_page(tmp_path):
    seeds = {seed: [0.5 + seed / 100, 0.7] for seed in range(5)}
    runs = [series("hetero-asyncdrop", seeds), series("a_b,x=<[*]>|~^\\&", seeds)]
    (tmp_path / "paper.tex").write_text(
        "\\documentclass{article}\n"
        "\\usepackage{booktabs}\\usepackage[textwidth=5.5in]{geometry}\n"
        "\\begin{document}\n" + latex(compare(runs, 0.5)) + "\\end{document}\n"
    )
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    assert b"Overfull" not in ended.stdout


def test_the_page_has_the_table_and_escapes_labels(page):
    text = page.read_text()
    cells = Page(text).cells
    assert "fedbuff" in cells
    assert "asyncdrop,alpha<1" in cells
    assert "alpha<1</td>" not in text
    assert "1 +1" in cells


def test_the_same_runs_give_the_same_report(page, results, tmp_path):
    again = write_report([results], tmp_path / "again", target=0.5)
    assert again.read_bytes() == page.read_bytes()


def test_the_terminals_table_goes_by_the_same_target(results):
    table = comparison_table([results], target=0.5, reference="fedbuff")
    assert table.columns[0].texts == ("fedbuff", "asyncdrop,alpha<1")
    assert any("The reference is fedbuff" in note for note in table.notes)


def test_labels_that_a_disk_takes_for_one_have_pictures_of_their_own(tmp_path):
    """A disk of macOS or Windows ignores case, and two ways to write one letter."""
    labels = ["Mine", "mine", "a/b", "a-b", "a-b-2", "\u00e9", "e\u0301"]
    names = file_names(labels)
    assert [*names] == labels
    assert names["Mine"] == "Mine"
    as_one = {unicodedata.normalize("NFC", name).casefold() for name in names.values()}
    assert len(as_one) == len(labels)


@pytest.mark.parametrize(
    "pictures", [3, [1, None, ["a.png"]], ["a\0.png", "../a.png"], "a.png", {}]
)
def test_a_table_of_somebody_else_is_no_obstacle(tmp_path, pictures):
    write(tmp_path / "one" / "seed-0", history("fedbuff", 0, [0.2, 0.6]))
    out = tmp_path / "report"
    out.mkdir()
    (out / "table.json").write_text(json.dumps({"pictures": pictures}))
    (tmp_path / "a.png").write_text("mine")
    assert write_report([tmp_path / "one"], out).exists()
    assert (tmp_path / "a.png").exists()


def test_a_picture_whose_label_has_another_case_now_is_not_deleted(tmp_path):
    out = tmp_path / "report"
    write(tmp_path / "one" / "seed-0", history("fedbuff", 0, [0.2, 0.6]))
    write_report([tmp_path], out)
    (out / "timeline-one.png").rename(out / "timeline-ONE.png")
    table = out / "table.json"
    table.write_text(table.read_text().replace("timeline-one", "timeline-ONE"))
    write_report([tmp_path], out)
    assert (out / "timeline-one.png").exists()
    assert (out / "timeline-ONE.png").exists()  # on a disk without case it is the new
