import json

from flwr_asyncdrop.report.comparison import compare
from flwr_asyncdrop.report.tables import (
    columns,
    csv_text,
    json_values,
    markdown,
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
| algorithm | seeds | max. accuracy | final accuracy | beside the reference \
| s to 50.00% | MB to 50.00% | time overhead | comm. overhead |
| --- | --: | --: | --: | --: | --: | --: | --: | --: |
| async-fjord | 1 | 20.00 | 20.00 | -20.00 | N/A | N/A | N/A | N/A |
| fedbuff | 2 +1 | 45.00 ± 7.07 | **45.00 ± 7.07** | +0.00 | 20.0 (1/2) | 20.0 (1/2) \
| +100.0% | +100.0% |
| hetero-asyncdrop | 2 | **55.00 ± 7.07** | **45.00 ± 7.07** | reference | **10.0** \
| **10.0** \
| reference | reference |

Target: 50.00% (given). Mean ± sample standard deviation over seeds. The reference is \
hetero-asyncdrop: differences are seed by seed, overheads on the seeds with which both \
reached the target. No intervals: they take 5 seeds, and less is no evidence. \
Bold: the best of its column, of those that have it with every seed. \
(m/n): m of n seeds reached the target, and only they count. 1 run is incomplete \
(+) and left out.
"""

CSV = """\
label,seeds,reached,max_accuracy,max_accuracy_std,final_accuracy,final_accuracy_std,\
seconds,bytes,final_difference,final_difference_low,final_difference_high,\
time_overhead,time_overhead_low,time_overhead_high,\
byte_overhead,byte_overhead_low,byte_overhead_high
async-fjord,1,0,0.2,0.0,0.2,0.0,,,-0.2,,,,,,,,
"""


def test_markdown_by_hand():
    assert markdown(TABLE) == MARKDOWN


def test_csv_has_plain_numbers():
    text = csv_text(TABLE)
    assert text.startswith(CSV)
    label, *numbers = text.splitlines()[2].split(",")
    assert label == "fedbuff"
    assert [float(number) for number in numbers[:2]] == [2, 1]
    assert [float(number) for number in numbers[6:8]] == [20.0, 20e6]
    assert numbers[8:] == ["0.0", "", "", "1.0", "", "", "1.0", "", ""]


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
    seconds = columns(TABLE)[5]
    assert seconds.texts == ("N/A", "20.0 (1/2)", "10.0")
    assert seconds.values == (None, 20.0, 10.0)


def test_five_seeds_have_intervals_and_a_mark_where_these_are_clear():
    own = {seed: [0.5, 0.4 + 0.01 * seed] for seed in range(5)}
    ahead = {seed: [0.4, value + 0.1] for seed, (_, value) in own.items()}
    mixed = {
        seed: [0.4, value + 0.1 * (-1) ** seed] for seed, (_, value) in own.items()
    }
    table = compare(
        [
            series("hetero-asyncdrop", own),
            series("fedbuff", ahead),
            series("async-fedavg", mixed),
        ],
        target=0.4,
    )
    beside, overhead = columns(table)[4], columns(table)[7]
    assert beside.texts[:2] == ("reference", "+10.00 [+10.00, +10.00]*")
    assert beside.texts[2].startswith("+2.00 [-")
    assert not beside.texts[2].endswith("*")
    assert overhead.texts == ("reference", *2 * ("+0.0% [+0.0%, +0.0%]",))
    assert "Only what has a * is a difference" in markdown(table)
