import io
import re

import pytest
from rich.console import Console

from flwr_asyncdrop.report.comparison import compare
from flwr_asyncdrop.report.terminal import TerminalTable
from tests.report.histories import series

LONG = "hetero-asyncdrop,drop-rate=0.45,combine=trimmed-mean,server-lr=0.0005"
NAMES = [
    "fedavg",
    "async-fedavg",
    "async-weighted",
    "async-fedprox",
    "async-fjord",
    "fedbuff",
    "fedbuff-wait",
    "asyncdrop",
    LONG,
    "asyncdrop-plus",
]


def comparison(num_seeds):
    runs = [
        series(
            name,
            {
                seed: [0.1, 0.5123 + 0.0431 * place + 0.0137 * (seed * place % 3)]
                for seed in range(num_seeds)
            },
            megabytes_per_second=123.4,
        )
        for place, name in enumerate(NAMES)
    ]
    return compare(runs, target=0.6)


def printed(table, width):
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(table)
    return console.export_text()


def test_print_without_rich_prints_the_tables(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    table = TerminalTable(comparison(3))
    assert str(table) == printed(table, 100).rstrip("\n")
    assert "fedavg" in str(table)


@pytest.mark.parametrize("num_seeds", [1, 3, 5])
@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_every_figure_stands_whole_in_a_cell_of_its_own(width, num_seeds):
    table = TerminalTable(comparison(num_seeds))
    text = printed(table, width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    cells = [
        cell.strip()
        for line in lines
        if line.startswith("│")
        for cell in line.split("│")[2:-1]
    ]
    figures = [each for column in table.columns[1:] for each in column.texts]
    assert sorted(filter(None, cells)) == sorted(figures)
    for column in table.columns:
        assert all(word in text for word in column.title.split())


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_labels_are_whole_or_folded_after_a_comma(width):
    text = printed(TerminalTable(comparison(5)), width)
    parts = re.split(r"(?<=,)", LONG)
    firsts = [line.split("│")[1] for line in text.splitlines() if line.startswith("│")]
    assert all(any(part in first for first in firsts) for part in parts)
    assert "…" not in text


def test_a_wide_terminal_has_one_table_and_a_narrow_one_some():
    table = TerminalTable(comparison(3))
    assert len(list(table.tables(220))) == 1
    assert len(list(table.tables(80))) > 1


def test_the_notes_come_last_and_markup_in_labels_is_text():
    runs = [series("fedbuff[bold]", {0: [0.5]}), series("fedavg", {0: [0.6]})]
    text = printed(TerminalTable(compare(runs)), 100)
    assert "fedbuff[bold]" in text
    assert text.rstrip().endswith("with every seed.")


@pytest.mark.parametrize("name", ["AUC[macro]", "f1[/x]", "recall:fire:"])
def test_markup_in_a_metric_or_a_label_is_text(name):
    runs = [series(f"fedbuff,x={name}", {0: [0.5]}, metric=name)]
    text = printed(TerminalTable(compare(runs, target=0.5)), 200)
    assert f"max. {name}" in text
    assert f"fedbuff,x={name}" in text


def test_the_best_is_bold():
    (table,) = TerminalTable(comparison(1)).tables(300)
    styles = [cell.style for cell in table.columns[2].cells]
    assert styles == [*[""] * 9, "bold"]


def test_columns_are_straight_in_a_code_without_all_signs():
    runs = [
        series(name, {0: [0.5], 1: [0.6]}, metric="précision_accuracy")
        for name in ("fedavg", "mein-größter-日本")
    ]
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii", errors="backslashreplace")
    Console(width=200, file=file).print(TerminalTable(compare(runs, target=0.5)))
    file.flush()
    lines = raw.getvalue().decode("ascii").splitlines()
    table = [line for line in lines if line.startswith(("|", "+"))]
    assert r"mein-gr\xf6\xdfter-\u65e5\u672c" in "".join(table)
    assert r"55.00 \xb1 7.07" in "".join(table)
    assert r"max. pr\xe9cision accuracy" in "".join(table)
    assert len({len(line) for line in table}) == 1
