import csv
import json
from dataclasses import replace
from statistics import stdev

import pytest

from flwr_asyncdrop.report.comparison import compare
from flwr_asyncdrop.report.markdown import markdown
from flwr_asyncdrop.report.table_files import csv_text, json_values
from flwr_asyncdrop.report.tables import columns, notes
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
Not all have the same seeds: means are over those that each has, differences over \
those that it shares with the reference. \
(m/n): m of n seeds reached the target, and only they count. 1 run is incomplete \
(+) and left out: fedbuff seed 2.
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


def test_a_label_does_not_end_its_cell():
    one = series("fedavg", {0: [0.5]})
    table = compare([replace(one, label="a|b\nc")], target=0.5)
    assert markdown(table).splitlines()[2].startswith(r"| a\|b c | 1 |")


def test_a_metric_does_not_end_its_heading():
    table = compare([series("fedavg", {0: [0.5]}, metric="f1|macro")], target=0.5)
    assert r"| max. f1\|macro | final f1\|macro |" in markdown(table)


def test_markdown_shows_a_label_as_it_is():
    one = series("fedavg", {0: [0.5]})
    label = r"my_own,a<b>,__x__*2,[c](d),`e`,$f$,\g~~h,&lt;&i"
    runs = [series("fedbuff", {0: [0.4]}), replace(one, label=label)]
    *_, row, _, below = markdown(compare(runs, target=0.5)).splitlines()
    shown = r"my_own,a\<b>,\_\_x\_\_\*2,[c\](d),\`e\`,\$f\$,\\g\~\~h,\&lt;&i"
    assert row.startswith(f"| {shown} | 1 | ")
    assert f"The reference is {shown}:" in below


def test_a_note_explains_what_stands_behind_a_cost_of_some_seeds():
    def said(values_by_seed):
        runs = [series("fedbuff", values_by_seed), series("fedavg", {0: [0.9]})]
        return any(note.startswith("(m/n)") for note in notes(compare(runs, 0.5)))

    assert said({0: [0.1], 1: [0.6]})
    assert not said({0: [0.1], 1: [0.2]})  # which has no cost at all
    assert not said({0: [0.6], 1: [0.6]})


def test_a_note_says_that_seeds_differ():
    def said(*seeds):
        runs = {seed: [0.5] for seed in seeds}
        table = compare([series("fedavg", {0: [0.5], 1: [0.6]}), series("own", runs)])
        return "Not all have the same seeds" in " ".join(notes(table))

    assert said(1, 2)
    assert said(0)
    assert not said(1, 0)
    assert not said()


def test_a_note_says_that_grounds_differ():
    runs = [series(f"fed{n}", {0: [0.5]}, width=n) for n in (1, 2)]
    says = "Not all have the same width: the rows differ in more than their algorithms."
    assert says in notes(compare(runs))
    assert not any("their algorithms" in note for note in notes(compare(runs[:1])))


def test_a_note_says_which_settings_are_mixed_in_a_row():
    one = series("fedavg", {0: [0.5]}, lr=0.1)
    two = series("fedavg", {1: [0.7]}, lr=0.2)
    mixed = replace(one, runs={**one.runs, **two.runs})
    others = [series("fedbuff", {0: [0.4], 1: [0.5]}, lr=0.3)]
    said = " ".join(notes(compare([mixed, *others], target=0.5)))
    assert "The runs of fedavg differ in lr, so that its means are over" in said
    assert "fedbuff differ" not in said


def test_csv_has_plain_numbers():
    text = csv_text(TABLE)
    assert text.startswith(CSV)
    label, *numbers = text.splitlines()[2].split(",")
    assert label == "fedbuff"
    assert [float(number) for number in numbers[:2]] == [2, 1]
    assert [float(number) for number in numbers[6:8]] == [20.0, 20e6]
    assert numbers[8:] == ["0.0", "", "", "1.0", "", "", "1.0", "", ""]


def test_csv_has_deviations_and_bounds_in_the_columns_of_their_names():
    values = {seed: [0.5, 0.1 * seed] for seed in range(6)}
    values[0] = [0.9, 0.4]
    base = {seed: [0.5, 0.2] for seed in range(6)}
    runs = [series("fedbuff", values), series("hetero-asyncdrop", base)]
    found, reference = csv.DictReader(csv_text(compare(runs, 0.5)).splitlines())
    # Maxima 0.9 and 5 times 0.5, last values 0.4 and 0.1 to 0.5.
    assert float(found["max_accuracy_std"]) == pytest.approx(stdev([0.9, *5 * [0.5]]))
    finals = [0.4, 0.1, 0.2, 0.3, 0.4, 0.5]
    assert float(found["final_accuracy_std"]) == pytest.approx(stdev(finals))
    bounds = [found[f"final_difference{end}"] for end in ("_low", "", "_high")]
    low, value, high = map(float, bounds)
    assert value == pytest.approx(0.7 / 6)
    assert low < value < high
    assert reference["final_difference_low"] == ""


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


def test_a_column_has_one_notation():
    """12350 stood on a page whose table had 1.235e+04."""
    runs = [
        series(name, {0: [value], 1: [value]}, metric="perplexity")
        for name, value in (("fedavg", 12_350.4), ("fedbuff", 23.0), ("own", 0.5))
    ]
    table = columns(compare(runs, target=12_350.4))
    assert table[3].texts == ("12,350 ± 0", "23 ± 0", "0.5 ± 0")
    assert table[5].title == "s to 12,350"
    large = [*runs, series("worst", {0: [1.3e25]}, metric="perplexity")]
    assert columns(compare(large, 1.0))[3].texts == (
        "1.235e+04 ± 0.000e+00",
        "2.300e+01 ± 0.000e+00",
        "5.000e-01 ± 0.000e+00",
        "1.300e+25",
    )


def test_columns_sort_by_numbers():
    seconds = columns(TABLE)[5]
    assert seconds.texts == ("N/A", "20.0 (1/2)", "10.0")
    assert seconds.values == (None, 20.0, 10.0)


def test_the_bytes_of_small_models_are_not_zero():
    small = series("fedbuff", {0: [0.5]}, megabytes_per_second=0.000123)
    sent = columns(compare([small], target=0.5))[6]
    assert sent.texts == ("0.00123",)


def test_time_and_bytes_are_in_columns_of_their_own():
    """The one that is the sooner there sends more."""
    runs = [
        series("fedbuff", {0: [0.5]}, megabytes_per_second=6.0),
        series("hetero-asyncdrop", {0: [0.1, 0.5]}),
    ]
    found = {column.key: column for column in columns(compare(runs, 0.5))}
    shown = {key: (column.texts, column.best) for key, column in found.items()}
    assert shown["seconds"] == (("10.0", "20.0"), (True, False))
    assert shown["bytes"] == (("60.0", "20.0"), (False, True))
    assert shown["time_overhead"][0] == ("-50.0%", "reference")
    assert shown["byte_overhead"][0] == ("+200.0%", "reference")
    assert found["bytes"].values == (60e6, 20e6)


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


def test_a_note_on_bold_says_that_intervals_decide_where_a_row_has_one():
    def said(*counts):
        values = {seed: [0.5 + 0.01 * seed] for seed in range(max(counts))}
        rows = [
            series(f"fed{n}", {seed: values[seed] for seed in range(count)})
            for n, count in enumerate(counts)
        ]
        return "what an interval over seeds cannot tell" in " ".join(
            notes(compare(rows, 0.5))
        )

    assert said(5, 5, 1)
    assert not said(4, 4, 1)


def counted_table(**others):
    return compare(
        [
            series("fedbuff", {0: [0.2, 0.5], 1: [0.3, 0.5]}, watts=300.0),
            series("hetero-asyncdrop", {0: [0.5], 1: [0.6]}, **others),
        ],
        target=0.5,
    )


def test_an_algorithm_alone_is_compared_with_nobody():
    alone = series("fedbuff", {seed: [0.5, 0.6] for seed in range(6)})
    (target,) = notes(compare([alone], 0.5))
    assert target.startswith("Target: 50.00%")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({seed: [0.1, None] for seed in range(6)}, ""),  # nothing can be compared
        ({seed: [0.1, 0.6] for seed in range(3)}, "No intervals"),
        ({seed: [0.1, 0.6] for seed in range(6)}, "[low, high]"),
    ],
)
def test_notes_are_about_intervals_that_could_be_there(values, says):
    reference = series("hetero-asyncdrop", {seed: [0.2, 0.6] for seed in range(6)})
    said = notes(compare([series("fedbuff", values), reference], 0.5))
    found = [note for note in said if "ntervals" in note]
    assert len(found) == bool(says)
    assert all(note.startswith(says) for note in found)


def test_energy_has_columns_by_hand():
    """It is 6 kJ after 20 s of 300 W, and 2 kJ after 10 s of 200 W."""
    table = counted_table(watts=200.0)
    found = {column.key: column for column in columns(table)}
    assert list(found)[5:] == [
        *("seconds", "bytes", "joules"),
        *("time_overhead", "byte_overhead", "energy_overhead"),
    ]
    assert found["joules"].title == "kJ to 50.00%"
    assert found["joules"].texts == ("6.00", "2.00")
    assert found["joules"].values == (6000.0, 2000.0)
    assert found["joules"].best == (False, True)
    assert found["energy_overhead"].texts == ("+200.0%", "reference")
    row, _ = json_values(table)["rows"]
    assert row["joules"] == {"mean": 6000.0, "std": 0.0, "count": 2}
    assert row["energy_overhead"]["value"] == 2.0
    assert row["seeds"]["0"]["arrival"]["joules"] == 6000.0
    header, fedbuff, _ = csv_text(table).splitlines()
    cells = dict(zip(header.split(","), fedbuff.split(","), strict=True))
    assert (cells["joules"], cells["energy_overhead"]) == ("6000.0", "2.0")


def test_energy_has_no_columns_if_one_run_does_not_count_it():
    table = counted_table()
    assert [column.key for column in columns(table)] == [
        column.key for column in columns(TABLE)
    ]
    assert csv_text(table).splitlines()[0] == csv_text(TABLE).splitlines()[0]
    assert json_values(table)["rows"][0].keys() == json_values(TABLE)["rows"][0].keys()
