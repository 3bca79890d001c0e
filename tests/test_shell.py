"""A shell reads from a line what was meant, whatever it is made of."""

import shutil
import subprocess

import pytest

from flwr_asyncdrop.cli.message import plain_line
from flwr_asyncdrop.shell import as_operand, command_of, quoted

WORDS = [
    *("plain", "", "two words", "it's", 'a "b"', "$HOME `x` $(y)", "c\\d", "!!", "~"),
    *("two  blanks", "three   blanks", " at  both ends ", "    ", "it's  two", "é ü"),
    *(
        "new\nline",
        "tab\t it's \\ two  blanks",
        "\x1b[31m",
        "a\xa0b",
        "\udcff7",
        "\u202e",
    ),
    *("-lead", "*?[a]", "a;b|c&d>e", "{1,2}", "#x"),
]


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs Bash")
def test_a_shell_reads_the_words_of_a_line_that_was_printed():
    line = plain_line(f"to resume it: {command_of(WORDS)}", 10_000)
    assert line.isprintable()
    command = line.removeprefix("to resume it:")
    said = subprocess.run(
        ["bash", "-c", rf"printf '%s\0' {command}"], check=True, capture_output=True
    )
    read = said.stdout.decode(errors="surrogateescape").split("\0")
    assert read[:-1] == WORDS


@pytest.mark.parametrize("word", ["one two", "it's", "a  b", "a    b", "é"])
def test_what_can_be_printed_is_read_by_every_shell(word):
    said = subprocess.run(
        ["/bin/sh", "-c", f"printf %s {quoted(word)}"], check=True, capture_output=True
    )
    assert said.stdout.decode() == word


def test_an_operand_is_no_flag():
    assert [as_operand(path) for path in ("-a", "a-b", "./-a")] == [
        "./-a",
        "a-b",
        "./-a",
    ]
