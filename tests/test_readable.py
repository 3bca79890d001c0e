import math

import pytest

from flwr_asyncdrop.readable import (
    Notation,
    byte_unit,
    counted,
    headline,
    lower_is_better,
    metric_text,
    one_line,
    printable,
    printable_error,
    readable_bytes,
    readable_joules,
    readable_seconds,
    shown,
    sparkline,
    three_digits,
    type_of,
    with_article,
    with_decimals,
)


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ({"loss": 0.5, "accuracy": 0.9}, ("accuracy", 0.9)),
        ({"eval_loss": 0.5, "eval_acc": 0.9}, ("eval_acc", 0.9)),
        ({"loss": 0.5, "val/Accuracy": 0.9, "acc": 0.8}, ("val/Accuracy", 0.9)),
        ({"eval_acc": 0.8, "accuracy": 0.9}, ("accuracy", 0.9)),
        ({"eval_acc": math.nan, "loss": 0.5}, ("loss", 0.5)),
        ({"loss": 0.5, "f1": 0.9, "vacc": 0.1}, ("loss", 0.5)),
        ({"per-class": [0.1, 0.9], "name": "x", "f1": 1}, ("f1", 1.0)),
        ({"accuracy": math.nan, "loss": 0.5}, ("loss", 0.5)),
        ({"per-class": [0.1, 0.9]}, None),
        ({}, None),
    ],
)
def test_headline_is_an_accuracy_or_the_first_finite_number(metrics, expected):
    assert headline(metrics) == expected


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("accuracy", 0.5, "0.500"),
        ("eval/accuracy", 0.91349, "0.913"),
        ("eval_acc", 0.09134, "0.091"),
        ("loss", 2.29471, "2.295"),
        ("loss", 1.25e-6, "1.250e-06"),
        ("mae", 6.7761557e33, "6.776e+33"),
        ("perplexity", 123.456, "123.5"),
        ("perplexity", 12_345.6, "12,346"),
    ],
)
def test_a_metric_can_be_read_however_small_or_large(name, value, text):
    assert metric_text(name, value) == text


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([12_350.4, 9_999.6, 2.5, 0.01234567], ["12,350", "10,000", "2.5", "0.01235"]),
        ([12.0, 3e-6, 1e-17], ["12", "0.000003", "0"]),
        ([1.3e25, 12.5, 0.0], ["1.300e+25", "1.250e+01", "0.000e+00"]),
        ([3e-6, -2.5e-7], ["3.000e-06", "-2.500e-07"]),
        ([0.0, 0.0], ["0", "0"]),
        ([], []),
    ],
)
def test_numbers_of_a_column_are_written_alike(values, texts):
    notation = Notation.of(values)
    assert [notation.text(value) for value in values] == texts
    for value, text in zip(values, texts, strict=True):
        if value > 0:
            assert notation.text(value, sign="+") == f"+{text}"


def test_losses_fall_and_accuracies_rise():
    falls = ["loss", "val_loss", "eval-Loss", "top1_error", "perplexity"]
    falls += ["mse", "test/RMSE", "val_mae", "mape", "nll", "wer", "eval-cer", "ppl"]
    assert all(lower_is_better(name) for name in falls)
    assert not any(
        lower_is_better(name)
        for name in ["accuracy", "f1", "lossless", "power", "mse_gain"]
    )


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0.00 kB"),
        (512, "0.512 kB"),
        (1_234, "1.23 kB"),
        (12_345_678, "12.3 MB"),
        (999_400_000, "999 MB"),
        (1_000_000_000, "1.00 GB"),
        (1_234_567_000_000, "1.23 TB"),
        (1_234_567_000_000_000, "1,235 TB"),
    ],
)
def test_bytes_have_three_digits_and_a_unit(count, text):
    assert readable_bytes(count) == text


@pytest.mark.parametrize(
    ("joules", "text"),
    [
        (0.0, "0.00 J"),
        (0.5, "0.500 J"),
        (999.4, "999 J"),
        (12_345.0, "12.3 kJ"),
        (4_500_000.0, "4.50 MJ"),
        (1.2e12, "1,200 GJ"),
    ],
)
def test_joules_have_three_digits_and_a_unit(joules, text):
    assert readable_joules(joules) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0.0171, "0.0171"), (1, "1.00"), (9.996, "10.0"), (99.96, "100")),
        *((1e4, "10,000"), (1.5e-6, "0.00000150"), (0, "0.00")),
    ],
)
def test_small_numbers_have_three_digits_and_large_ones_all(value, text):
    assert three_digits(value) == text


@pytest.mark.parametrize(
    ("value", "decimals", "text"),
    [
        *((0, 0, "0"), (0.0, 1, "0.0"), (0.4, 0, "0.400"), (0.6, 0, "1")),
        *((0.04, 1, "0.0400"), (0.06, 1, "0.1"), (12345.6, 0, "12,346")),
        *((10, 0, "10"), (3e-4, 0, "0.000300")),
    ],
)
def test_what_is_more_than_nothing_is_not_said_to_be_0(value, decimals, text):
    assert with_decimals(value, decimals) == text


def test_unit_fits_the_largest_number():
    assert byte_unit(999_999) == ("kB", 1_000)
    assert byte_unit(1_000_000) == ("MB", 1_000_000)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("plain, with umlauts: äöü 漢字 \N{SNOWMAN}", None),
        ("two\nlines\r\nand\ttabs", "two lines and tabs"),
        ("\x1b[31mred\x1b[0m", "[31mred[0m"),
        ("\x9b2J\x07bell\x00", "2Jbell"),
        ("\u202egnp.exe\u2066", "gnp.exe"),
        ("zero\u200bwidth\ufeff", "zerowidth"),
        ("\u2028line\u2029s", "line s"),
        ("lone \ud800 surrogate", "lone surrogate"),
        ("\x1c\x1d\x85", ""),
    ],
)
def test_what_strangers_write_becomes_one_line_that_can_be_printed(text, line):
    line = text if line is None else line
    assert printable(text) == line
    assert line.isprintable()
    line.encode()


def test_a_long_text_is_cut():
    assert printable("x" * 10, 10) == "x" * 10
    assert printable("x" * 11, 10) == "x" * 10 + "..."
    assert len(printable("\n" * 10**7)) < 10


def test_what_ray_writes_for_terminals_is_left_out():
    """Its errors are coloured, and have the marks of a traceback."""
    call = "  File 'a.py', line 1, in run\n    value = run(~x)\n            ^^^~^^^\n"
    text = f"\x1b[36mray::Actor.run()\x1b[39m (pid=1)\n{call}KeyError: '^^'"
    line = "ray::Actor.run() (pid=1) File 'a.py', line 1, in run value = run(~x) "
    assert printable_error(text) == f"{line}KeyError: '^^'"
    long = text.replace(call, call * 100)
    assert printable_error(long).startswith(line[:60])
    assert printable_error(long).endswith("value = run(~x) KeyError: '^^'")
    assert "^^^" not in printable_error(long)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a", "'a'"),
        ("\x1b[2J", r"'\x1b[2J'"),
        (3, "3"),
        (math.nan, "nan"),
        ([1, 2], "[1, 2]"),
        (1 << 20_000, "a number of 20001 bits"),
        (b"x" * 100, f"b'{'x' * 78}..."),
        ("x" * 10**6, f"'{'x' * 79}..."),
        ([0.5] * 10**6, f"[{'0.5, ' * 15}0.5,..."),
    ],
    ids=[*"abcdefghi"],
)
def test_a_strangers_value_is_short(value, text):
    assert shown(value) == text


def test_an_error_is_one_line():
    assert one_line(ValueError("a\n\x1b[1mb")) == "ValueError: a [1mb"
    assert len(one_line(ValueError("x" * 10**6))) < 1100


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ([0, 1, 2, 3, 4, 5, 6, 7], "▁▂▃▄▅▆▇█"),
        ([0.9, 0.1, 0.5], "█▁▅"),
        ([3.0, 3.0], "▁▁"),
        ([-1e300, 1e300], "▁█"),
        ([], ""),
    ],
)
def test_a_sparkline_goes_from_the_lowest_to_the_highest(values, line):
    assert sparkline(values) == line


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (86, "1 min 26 s"),
        (660, "11 min"),
        (3600, "1 h"),
        (5400, "1 h 30 min"),
        (360_000, "100 h"),
    ],
)
def test_a_time_has_two_units_at_most(seconds, text):
    assert readable_seconds(seconds) == text


@pytest.mark.parametrize(
    "text", ["an accuracy", "a loss", "an int", "a str", "an OrderedDict"]
)
def test_a_noun_has_its_article(text):
    assert with_article(text.partition(" ")[2]) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "None"), (3, "an int"), ([], "a list")]
)
def test_none_is_no_name_of_a_type(value, text):
    assert type_of(value) == text


@pytest.mark.parametrize(
    ("count", "words", "text"),
    [
        (0, ("run",), "0 runs"),
        (1, ("run",), "1 run"),
        (2000, ("run",), "2,000 runs"),
        (1, ("reply", "replies"), "1 reply"),
        (3, ("reply", "replies"), "3 replies"),
    ],
)
def test_things_are_counted(count, words, text):
    assert counted(count, *words) == text
