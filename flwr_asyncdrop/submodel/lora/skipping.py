"""PEFT's layers run without the adapters that have no components."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

_SKIPPED = "_asyncdrop_skipped"


@dataclass
class _Skipped:
    """What a layer does not run, though its adapters would be active.

    Attributes
    ----------
    trains : dict of str to list of bool
        Which parameters of an adapter trained when it was left out.
    rest : list of str
        The adapters that the layer was left with.
    """

    trains: dict[str, list[bool]] = field(default_factory=dict)
    rest: list[str] = field(default_factory=list)


def skip_empty(layers: Iterable[Any]) -> None:
    """Have PEFT's layers run the adapters that are active and have components.

    PEFT freezes what is not active, as on leaving `disable_adapter()`: what trained
    before it was left out trains again, unless the client has chosen anew since.
    """
    for layer in layers:
        active, skipped = list(layer.active_adapters), _skipped_in(layer)
        for adapter in layer.r:
            factors = _factors(layer, adapter)
            if len(factors[0]) == 0 and adapter in active:
                active.remove(adapter)
                # PEFT has frozen what is disabled, and lets all of it train after.
                off = layer.disable_adapters
                skipped.trains[adapter] = [off or f.requires_grad for f in factors]
            elif len(factors[0]) > 0 and adapter in skipped.trains:
                trained = skipped.trains.pop(adapter)
                active.append(adapter)
                if not any(each.requires_grad for each in factors):
                    for each, trains in zip(factors, trained, strict=True):
                        each.requires_grad_(trains)
        layer.__dict__[_SKIPPED] = _Skipped(skipped.trains, active)
        layer._active_adapter = list(active)


def active_in(layer: Any) -> list[str]:
    """Return the adapters that a PEFT layer runs, or would if they had components."""
    return [*layer.active_adapters, *_skipped_in(layer).trains]


def _skipped_in(layer: Any) -> _Skipped:
    """Return what is left out of a layer; nothing if it was told anew what to run."""
    skipped: _Skipped = vars(layer).get(_SKIPPED, _Skipped())
    return skipped if skipped.rest == list(layer.active_adapters) else _Skipped()


def _factors(layer: Any, adapter: str) -> list[Tensor]:
    """Return the parameters of an adapter in one of PEFT's layers, ``A`` first."""
    kinds = [getattr(layer, name) for name in layer.adapter_layer_names]
    own = [kind[adapter] for kind in kinds if adapter in kind]
    return [
        tensor
        for each in own
        for tensor in ([each] if isinstance(each, Tensor) else each.parameters())
    ]
