"""Which codec a device's next task travels with."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.parameters import in_interval
from flwr_asyncdrop.readable import printable, shown
from flwr_asyncdrop.wire.codec import PRESETS, Codec, codec

PACKED = "packed"
"""Tensors as they are, and one array of all of them on the way to real devices."""

_SHARES = in_interval("(0, 1)")
_LADDER = tuple(PRESETS[name] for name in ("none", "q8", "q4", "q2"))

Sizes = Callable[[Codec], tuple[int, int]]
"""From a codec to the bytes of a task, down and up."""


@dataclass(frozen=True)
class Link:
    """What is known of a device's next task: its compute in seconds, and its link.

    Seconds are infinite while its speed or its bandwidth is unknown. A bandwidth, in
    bytes per second, is infinite if it is unlimited.
    """

    seconds: float = math.inf
    bytes_per_second_down: float = math.inf
    bytes_per_second_up: float = math.inf

    def transfer(self, sizes: tuple[int, int]) -> float:
        """Return the seconds that so many bytes, down and up, are on their way."""
        down, up = sizes
        return down / self.bytes_per_second_down + up / self.bytes_per_second_up


class CodecChoice(ABC):
    """Chooses the codec of every task.

    Attributes
    ----------
    typical : Codec
        What stands for the choice where bytes are estimated before the run.
    varies : bool
        Whether devices may have different ones.
    """

    typical: Codec
    varies: ClassVar[bool] = True

    @property
    def label(self) -> str:
        """What tells one choice from another: runs resume with the same one alone.

        The class alone, unless a class says more of itself, as dataclasses do.
        """
        kind = type(self)
        has_own = kind.__repr__ is not object.__repr__
        return repr(self) if has_own else kind.__qualname__  # else it has an address

    @property
    def uses_feedback(self) -> bool:
        """Whether devices keep what coding has cost them, which no checkpoint has."""
        return self.typical.feedback

    @property
    def keeps_zeros(self) -> bool:
        """Whether weights that are 0 arrive as 0."""
        return self.typical.keeps_zeros

    @property
    def is_lossy(self) -> bool:
        """Whether a number may come out as another one."""
        return True

    @abstractmethod
    def choose(self, link: Link, sizes: Sizes) -> Codec:
        """Return the codec of a device's next task.

        Parameters
        ----------
        link : Link
            What is known of the device.
        sizes : callable
            Returns the bytes of the task, down and up, with a codec.
        """


@dataclass(frozen=True)
class OneCodec(CodecChoice):
    """The same codec for every task."""

    typical: Codec
    varies: ClassVar[bool] = False

    @property
    def label(self) -> str:
        """The codec's name."""
        return self.typical.name

    @property
    def is_lossy(self) -> bool:
        """Whether a number may come out as another one."""
        return (self.typical.down, self.typical.up) != (None, None)

    def choose(self, link: Link, sizes: Sizes) -> Codec:
        """Return it."""
        return self.typical


@dataclass(frozen=True)
class AutoCodec(CodecChoice):
    """As many bits as a device's bandwidth allows.

    Of `ladder`, most bits first, it takes the first codec with which transfers are at
    most `share` of the task's time; the smallest one if none is small enough. A device
    whose speed or bandwidth is unknown gets `unknown`.
    """

    share: float = 0.2
    ladder: tuple[Codec, ...] = _LADDER
    unknown: Codec = PRESETS["q8"]
    typical: Codec = PRESETS["q8"]

    def __post_init__(self) -> None:
        _SHARES.check("share", self.share)
        if not self.ladder:
            raise ConfigError("ladder=() has no codec: list at least one")
        for each in (*self.ladder, self.unknown, self.typical):
            if not isinstance(each, Codec):
                raise ConfigError(
                    f"AutoCodec has {printable(shown(each))}, which is no codec: pass "
                    "one as codec('q4') of flwr_asyncdrop.wire.codec makes it"
                )

    @property
    def uses_feedback(self) -> bool:
        """Whether a codec of the ladder does."""
        return any(each.feedback for each in (*self.ladder, self.unknown))

    @property
    def keeps_zeros(self) -> bool:
        """Whether all codecs of the ladder do."""
        return all(each.keeps_zeros for each in (*self.ladder, self.unknown))

    def choose(self, link: Link, sizes: Sizes) -> Codec:
        """Return the codec with the most bits that the link has time for."""
        if link.seconds == math.inf:
            return self.unknown
        allowed = link.seconds * self.share / (1 - self.share)
        for candidate in self.ladder:
            if link.transfer(sizes(candidate)) <= allowed:
                return candidate
        # The last one, if several are the smallest.
        return min(reversed(self.ladder), key=lambda each: link.transfer(sizes(each)))


def codec_choice(given: str | Codec | CodecChoice | None) -> CodecChoice | None:
    """Return what chooses the codecs; None if everything travels as it is.

    `given` is ``"auto"``, ``"packed"``, the name of a codec, a codec, or what chooses.
    ConfigError for anything else.
    """
    if isinstance(given, CodecChoice):
        return given
    if given == PACKED:
        return OneCodec(PRESETS["none"])
    if given == "auto":
        return AutoCodec()
    if isinstance(given, str):
        given = codec(given)
    if given is not None and not isinstance(given, Codec):
        raise ConfigError(
            f"codec={given!r} is no codec: pass a name, e.g. 'q4', or a Codec"
        )
    return None if given is None or given == PRESETS["none"] else OneCodec(given)
