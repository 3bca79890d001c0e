"""What goes down to the devices and what comes up, by name."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.parameters import A_SWITCH, did_you_mean
from flwr_asyncdrop.readable import shown
from flwr_asyncdrop.wire.codec.blocks import Blocks
from flwr_asyncdrop.wire.codec.rotated import Rotated
from flwr_asyncdrop.wire.codec.scheme import Scheme
from flwr_asyncdrop.wire.codec.specs import scheme
from flwr_asyncdrop.wire.codec.top_k import TopK

_OWN = re.compile("down=([^,]+),up=([^,]+)(,feedback)?")


@dataclass(frozen=True)
class Codec:
    """A scheme for each direction; None leaves the tensors as they are."""

    down: Scheme | None
    """Of the weights that a device is sent."""
    up: Scheme | None
    """Of the change that it sends back."""
    feedback: bool = False
    """Whether a device adds to its change what coding has cost earlier ones."""

    def __post_init__(self) -> None:
        for direction in ("down", "up"):
            found = getattr(self, direction)
            if not (found is None or isinstance(found, Scheme)):
                raise ConfigError(
                    f"{direction}={found!r} must be a Scheme or None: write "
                    "scheme('q4'), or codec('q4') for both directions"
                )
        if A_SWITCH.check("feedback", self.feedback) and self.up is None:
            raise ConfigError(
                "feedback=True has no effect with up=None: changes that come as they "
                "are lose nothing"
            )

    @property
    def keeps_zeros(self) -> bool:
        """Whether weights that are 0 arrive as 0."""
        return self.down is None or self.down.keeps_zeros

    @property
    def name(self) -> str:
        """The name of a preset, else both schemes: ``"down=q8,up=none"``.

        With feedback: ``"down=q8,up=q4,feedback"``.
        """
        for name, preset in PRESETS.items():
            if preset == self:
                return name
        down, up = (each.name if each else "none" for each in (self.down, self.up))
        return f"down={down},up={up}" + (",feedback" if self.feedback else "")


PRESETS: Mapping[str, Codec] = MappingProxyType(
    {
        "none": Codec(None, None),
        "q8": Codec(Blocks(8), Blocks(8)),
        "q4": Codec(Blocks(4), Blocks(4)),
        "q2": Codec(Blocks(4), Rotated(2)),
        "topk-q4": Codec(Blocks(4), TopK(0.1, Blocks(4)), feedback=True),
    }
)
"""All codecs that have a name; see `codec`."""


def codec(name: str) -> Codec:
    """Return the codec of a name; ConfigError for what is none.

    =========== =============================== ====================================
    name        down: weights                   up: changes
    =========== =============================== ====================================
    ``none``    as they are                     as they are
    ``q8``      8 bits                          8 bits
    ``q4``      4 bits                          4 bits
    ``q2``      4 bits                          2 bits, rotated
    ``topk-q4`` 4 bits                          the largest 10 %, 4 bits, feedback
    =========== =============================== ====================================

    Weights take 4 bits at the least: an error in them is an error in what every device
    begins with. Any two schemes make a codec too: ``down=q8,up=q1``, or
    ``down=q8,up=top5%+q4,feedback``.
    """
    if isinstance(name, str):
        if name in PRESETS:
            return PRESETS[name]
        if own := _OWN.fullmatch(name):
            down, up = (
                None if own[way] == "none" else scheme(own[way]) for way in (1, 2)
            )
            return Codec(down, up, own[3] is not None)
    hint = did_you_mean(str(name), PRESETS)
    raise ConfigError(
        f"unknown codec {shown(name)}: "
        + (hint or f"write one of {', '.join(PRESETS)}, or 'down=q8,up=top5%+q4'")
    )
