"""Schemes by name."""

import re
from decimal import Decimal

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.parameters import did_you_mean, read_integer
from flwr_asyncdrop.readable import shown
from flwr_asyncdrop.wire.codec.blocks import BLOCK, Blocks
from flwr_asyncdrop.wire.codec.rotated import Rotated
from flwr_asyncdrop.wire.codec.scheme import Scheme
from flwr_asyncdrop.wire.codec.top_k import TopK

_KNOWN = ("q8", "q4", "q2", "q1", "top10%+q4")
_TOP = re.compile(r"top(?P<percent>[0-9]{1,3}(\.[0-9]{1,30})?)%\+(?P<inner>.+)")
_BLOCKS = re.compile(r"q(?P<bits>[48])(/(?P<block>[0-9]{1,6}))?")


def scheme(name: str) -> Scheme:
    """Return the scheme of a spec; ConfigError for one that is none.

    ========================= ================================================
    ``q8``, ``q4``            `Blocks` of 8 or 4 bits; ``q4/128``: 128 in a block
    ``q2``, ``q1``            `Rotated`, 2 bits or 1 bit
    ``top10%+q4``             `TopK`: the largest 10 %, in the scheme that follows
    ========================= ================================================
    """
    found = _top_k(name) or _simple(name) if isinstance(name, str) else None
    if found is None:
        hint = did_you_mean(str(name), _KNOWN) or f"write one of {', '.join(_KNOWN)}"
        raise ConfigError(f"unknown scheme {shown(name)}: {hint}")
    return found


def _top_k(name: str) -> TopK | None:
    top = _TOP.fullmatch(name)
    inner = _simple(top["inner"]) if top else None
    if top is None or inner is None:
        return None
    return TopK(float(Decimal(top["percent"]) / 100), inner)


def _simple(name: str) -> Blocks | Rotated | None:
    if name in ("q1", "q2"):
        return Rotated(int(name[1]))
    if found := _BLOCKS.fullmatch(name):
        return Blocks(int(found["bits"]), read_integer(found["block"] or str(BLOCK)))
    return None
