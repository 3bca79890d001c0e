"""The paper's ablations by name: which algorithms, and what varies."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from flwr_asyncdrop.cli.flags import Value


@dataclass(frozen=True)
class Ablation:
    """What an ablation compares.

    Attributes
    ----------
    algorithms : tuple of str
        Names of the algorithms.
    vary : mapping of str to tuple of value
        RunSpec-config keys and the values that each takes.
    """

    algorithms: tuple[str, ...]
    vary: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)


ABLATIONS: Mapping[str, Ablation] = MappingProxyType(
    {
        "drop-rate": Ablation(
            ("hetero-asyncdrop",), {"drop-rate": (0.0, 0.125, 0.25, 0.5)}
        ),
        "local-steps": Ablation(("hetero-asyncdrop",), {"local-steps": (25, 50, 100)}),
        "smart-vs-random": Ablation(("asyncdrop", "hetero-asyncdrop")),
        "filter-vs-layer": Ablation(("hetero-asyncdrop", "layerwise-asyncdrop")),
    }
)
