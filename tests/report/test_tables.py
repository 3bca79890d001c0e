import io
import json

from rich.console import Console

from flwr_asyncdrop.report.comparison import compare
from flwr_asyncdrop.report.tables import (
    columns,
    csv_text,
    json_values,
    markdown,
    terminal_table,
)
from tests.report.histories import series

TABLE = compare(
    [
        series("async-fjord", {0: [0.1, 0.2]}),
        series("fedbuff", {0: [0.2, 0.5], 1: [0.3, 0.4], 2: [0.9]}, cut_off=[2]),
        series("hetero-asyncdrop", {0: [0.5, 0.4], 1: [0.6, 0.5]}),
    ],
    target=0.5,
)

MARKDOWN = """\
| algorithm | seeds | max. accuracy | final accuracy | s to 50.00% | MB to 50.00% \
| time overhead | comm. overhead |
| --- | --: | --: | --: | --: | --: | --: | --: |
| async-fjord | 1 | 20.00 | 20.00 | N/A | N/A | N/A | N/A |
| fedbuff | 2 +1 | 45.00 ± 7.07 | 45.00 ± 7.07 | 20.0 (1/2) | 20.0 (1/2) \
| +100.0% | +100.0% |
| hetero-asyncdrop | 2 | 55.00 ± 7.07 | 45.00 ± 7.07 | 10.0 | 10.0 \
| reference | reference |

Target: 50.00% (given). Mean ± sample standard deviation over seeds. Overheads are \
relative to hetero-asyncdrop, on the seeds with which both reached the target. \
(m/n): m of n seeds reached the target, and only they count. 1 run is incomplete \
(+) and left out.
"""

CSV = """\
label,seeds,reached,max_accuracy,max_accuracy_std,final_accuracy,final_accuracy_std,\
seconds,bytes,time_overhead,byte_overhead
async-fjord,1,0,0.2,0.0,0.2,0.0,,,,
"""


def test_markdown_by_hand():
    assert markdown(TABLE) == MARKDOWN


def test_the_terminal_shows_the_same():
    console = Console(width=160, file=io.StringIO(), record=True)
    console.print(terminal_table(TABLE))
    text = console.export_text()
    for column in columns(TABLE):
        assert all(part in text for part in (column.title, *column.texts))
    assert "1 run is incomplete" in text


def test_csv_has_plain_numbers():
    text = csv_text(TABLE)
    assert text.startswith(CSV)
    label, *numbers = text.splitlines()[2].split(",")
    assert label == "fedbuff"
    assert [float(number) for number in numbers[:2]] == [2, 1]
    assert [float(number) for number in numbers[6:]] == [20.0, 20e6, 1.0, 1.0]


def test_json_has_every_seed():
    values = json.loads(json.dumps(json_values(TABLE)))
    assert values["target"] == {"accuracy": 0.5, "rule": "given"}
    assert values["reference"] == "hetero-asyncdrop"
    fjord, fedbuff, _ = values["rows"]
    assert fjord["seconds"] is None
    assert fedbuff["incomplete"] == [2]
    assert fedbuff["seeds"]["0"] == {
        "best": 0.5,
        "final": 0.5,
        "arrival": {"value": 0.5, "time": 20.0, "update": 16, "num_bytes": 20_000_000},
    }
    assert fedbuff["seeds"]["1"]["arrival"] is None


def test_columns_sort_by_numbers():
    seconds = columns(TABLE)[4]
    assert seconds.texts == ("N/A", "20.0 (1/2)", "10.0")
    assert seconds.values == (None, 20.0, 10.0)
