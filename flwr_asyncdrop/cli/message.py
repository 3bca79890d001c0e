"""What a command says when it ends badly: one line, whatever the text has in it."""

import sys

_LONGEST = 1000


def say(text: str) -> None:
    """Write a line to the standard error."""
    sys.stderr.write(f"asyncdrop: {plain_line(text)}\n")


def plain_line(text: str, longest: int = _LONGEST) -> str:
    """Return a text as one line of characters that are shown, cut in its middle.

    White space becomes blanks, and what cannot be shown its escape.
    """
    half = longest // 2
    short = text if len(text) <= longest else f"{text[:half]}...{text[-half:]}"
    return "".join(
        character if character.isprintable() else repr(character)[1:-1]
        for character in " ".join(short.split())
    )
