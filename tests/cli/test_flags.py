import argparse
import re
from pathlib import Path

import pytest

from flwr_asyncdrop.cli.descriptions import DESCRIPTIONS
from flwr_asyncdrop.cli.flags import DEFAULTS, add_flags, given, value_of
from flwr_asyncdrop.exceptions import ConfigError

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def commented():
    """Section, then key, then comment, as pyproject has them."""
    section = PYPROJECT.read_text().split("[tool.flwr.app.config]\n")[1].split("\n[")[0]
    found = {}
    for line in section.splitlines():
        if line.startswith("# "):
            title = line.removeprefix("# ")
            found[title] = {}
        elif match := re.fullmatch(r"(\S+) = .*?(?: # (.*))?", line):
            found[title][match[1]] = match[2]
    return found


def parsed(*arguments, without=()):
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_flags(parser, without=without)
    return given(parser.parse_args(arguments))


def test_descriptions_are_the_comments_of_pyproject():
    """One who edits a comment there edits `cli/descriptions.py` too."""
    comments = commented()
    assert list(DESCRIPTIONS) == list(comments)
    for section, keys in comments.items():
        assert list(DESCRIPTIONS[section]) == list(keys)
        for key, comment in keys.items():
            if comment is not None:
                assert DESCRIPTIONS[section][key] == comment


def test_every_key_is_a_flag_of_its_type():
    flags = {
        key: [f"--{key}"] if isinstance(value, bool) else [f"--{key}", str(value)]
        for key, value in DEFAULTS.items()
    }
    values = parsed(*(word for words in flags.values() for word in words))
    assert values == {**DEFAULTS, "download": True}
    assert [type(value) for value in values.values()] == [
        type(value) for value in DEFAULTS.values()
    ]


def test_only_what_was_given_is_given():
    assert parsed() == {}
    assert parsed("--drop-rate", "0.25", "--no-download") == {
        "drop-rate": 0.25,
        "download": False,
    }


def test_out_is_short_for_out_dir():
    assert parsed("--out", "here") == parsed("--out-dir", "here") == {"out-dir": "here"}


@pytest.mark.parametrize(
    "arguments", [("--lr", "high"), ("--seed", "1"), ("--alph", 1)]
)
def test_a_wrong_type_a_key_left_out_and_an_abbreviation_are_refused(arguments, capsys):
    with pytest.raises(SystemExit):
        parsed(*map(str, arguments), without=("seed",))
    assert arguments[0] in capsys.readouterr().err


def test_help_shows_what_a_key_means_and_its_default(capsys):
    with pytest.raises(SystemExit):
        parsed("--help")
    text = " ".join(capsys.readouterr().out.split())
    assert "--local-steps INT mini-batches per task (default: 50)" in text


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("drop-rate", "0.5", 0.5),
        ("local-steps", "25", 25),
        ("scope", "internal", "internal"),
        ("download", "true", True),
    ],
)
def test_values_are_read_by_the_type_of_their_key(key, text, value):
    read = value_of(key, text)
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    ("key", "text", "says"),
    [
        ("drop-rat", "0.5", "did you mean 'drop-rate'"),
        ("drop-rate", "much", "drop-rate='much' must be a number (float)"),
        ("download", "1", "download='1' must be true or false"),
    ],
)
def test_unknown_keys_and_wrong_values_are_named(key, text, says):
    with pytest.raises(ConfigError, match=re.escape(says)):
        value_of(key, text)
