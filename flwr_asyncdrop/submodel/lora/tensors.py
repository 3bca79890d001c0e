"""The tensors of a module that travel: its adapters, and what else it trains."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from flwr_asyncdrop.exceptions import ConfigError, ShapeError, UnsupportedModelError
from flwr_asyncdrop.extras import require
from flwr_asyncdrop.submodel.lora.memory import LoraMemory, memory_of
from flwr_asyncdrop.submodel.lora.pairs import Adapter
from flwr_asyncdrop.submodel.lora.skipping import active_in
from flwr_asyncdrop.submodel.types import Shapes, State, owner_of, shapes_of, tensors_of

# PEFT's layers that add B(A(x)) to what the base layer makes of x. Those of quantised
# bases are the same, and are named after their library.
_LAYERS = frozenset(
    {
        *("Linear", "Embedding", "Conv1d", "Conv2d", "Conv3d"),
        *("Linear4bit", "Linear8bitLt", "TorchaoLoraLinear", "GPTQLoraLinear"),
        *("AwqLoraLinear", "AqlmLoraLinear", "EetqLoraLinear", "HqqLoraLinear"),
    }
)


def lora_state(model: nn.Module) -> State:
    """Return what travels of a model with adapters: send it, or reply with it.

    Of a PEFT model it is what ``get_peft_model_state_dict`` returns: the adapters and
    ``modules_to_save``, without the name of the adapter. Of any other module these are
    the parameters that are trained, and the buffers beside them. As in a
    ``state_dict``, the tensors share memory with the model.

    Raises
    ------
    ConfigError
        If the model trains nothing, or has several adapters of which not one is active.
    UnsupportedModelError
        If it is a PEFT model whose adapters are not LoRA's ``B A``.
    """
    return {name: tensor.detach() for name, tensor in travelling(model).items()}


def travelling(model: nn.Module) -> State:
    """Return the tensors themselves, by the names under which they travel."""
    found = peft_tensors(model) if is_peft(model) else _trained(model)
    if not found:
        raise ConfigError(
            f"{type(model).__name__} trains nothing: freeze the base, and leave "
            "requires_grad of the adapters on"
        )
    return found


def is_peft(model: nn.Module) -> bool:
    """Whether PEFT has put adapters into the model."""
    return bool(getattr(model, "peft_config", None))


def peft_tensors(model: nn.Module) -> State:
    """Return the tensors of a PEFT model's adapter, and its ``modules_to_save``."""
    check_layers(model, adapter_name(model))
    return _by_peft(model)


def peft_names(model: nn.Module) -> dict[str, str]:
    """Return the names under which a PEFT model's tensors travel, by their own.

    Empty for any other module.
    """
    if not is_peft(model):
        return {}
    travel = {id(tensor): name for name, tensor in _by_peft(model).items()}
    return {n: travel[id(t)] for n, t in tensors_of(model).items() if id(t) in travel}


def _by_peft(model: nn.Module) -> State:
    peft = require("peft", "lora")
    found: State = peft.get_peft_model_state_dict(
        model,
        model.state_dict(keep_vars=True),
        adapter_name=adapter_name(model),
        # Those of the frozen base stay where they are.
        save_embedding_layers=False,
    )
    return found


def adapter_name(model: Any) -> str:
    """Return the name of the PEFT model's only adapter, or of the active one.

    Of a module with PEFT models inside, those of all that are active; "" if there are
    none.
    """
    if not is_peft(model):
        return ",".join(_active_names(model))
    names = known = list(model.peft_config)
    if len(known) > 1:
        active = getattr(model, "active_adapters", [])
        # That of Transformers asks the first layer alone, which may have been left out.
        names = _active_names(model) if callable(active) else list(active)
    if not names:
        raise ConfigError(
            f"none of the adapters {', '.join(known)} of this model is active: choose "
            "one, with model.set_adapter(name)"
        )
    if len(names) > 1:
        raise ConfigError(
            f"the adapters {', '.join(names)} of this model are all in use: make one "
            "active, with model.set_adapter(name)"
        )
    return str(names[0])


def _active_names(model: nn.Module) -> list[str]:
    """Return the adapters that PEFT's layers run, or would if they had components."""
    layers = lora_layers(model).values()
    return sorted({name for layer in layers for name in active_in(layer)})


def lora_layers(model: nn.Module) -> dict[str, Any]:
    """Return PEFT's layers with adapters, by their names."""
    return {
        name: module
        for name, module in model.named_modules()
        if hasattr(module, "lora_A") and isinstance(getattr(module, "r", None), dict)
    }


def ranks_of(model: nn.Module) -> dict[str, int]:
    """Return the ranks that PEFT's layers were made with, by the layers' names."""
    adapter = adapter_name(model)
    layers = lora_layers(model).items() if adapter else ()
    return {name: layer.r[adapter] for name, layer in layers if adapter in layer.r}


def current_memory(model: nn.Module, shapes: Shapes) -> LoraMemory | None:
    """Return what a model remembers of its tensors, which have these shapes now.

    None if it was never loaded, or has other adapters since. ShapeError if some of its
    own adapters were replaced while others are narrowed.
    """
    memory = memory_of(model, adapter_name(model))
    if memory is None or (memory.loaded == shapes and memory.ranks == ranks_of(model)):
        return memory
    if is_peft(model) or memory.loaded == memory.shapes:
        return None
    raise ShapeError(
        f"adapters of this {type(model).__name__} were replaced after load_lora had "
        "narrowed it: load all components first, or build it anew for each task"
    )


def check_layers(model: Any, adapter: str) -> None:
    """Raise UnsupportedModelError unless every adapter is a plain product."""
    found = getattr(model.peft_config[adapter], "peft_type", "LORA")
    kind = str(getattr(found, "value", found))
    if kind != "LORA":
        raise UnsupportedModelError(
            f"the adapter {adapter!r} is of PEFT's type {kind}, whose parameters are "
            "no rank components: use a LoraConfig, or train without a plan"
        )
    for name, layer in lora_layers(model).items():
        if adapter not in layer.r:
            continue
        if layer.merged:
            raise UnsupportedModelError(_merged(name, "model.unmerge_adapter()"))
        variant = getattr(layer, "lora_variant", {}).get(adapter)
        dora = getattr(layer, "use_dora", {}).get(adapter)
        if variant is not None or dora:
            what = "DoRA" if dora else type(variant).__name__
            raise UnsupportedModelError(
                f"the adapter of {name} is a variant of LoRA ({what}), which is more "
                "than a product: use a plain LoraConfig, or train without a plan"
            )
        if type(layer).__name__ not in _LAYERS:
            raise UnsupportedModelError(
                f"the adapter of {name} is PEFT's {type(layer).__name__}, whose "
                "factors are not rows of A with columns of B: leave it out of "
                "target_modules and target_parameters, or train without a plan"
            )


def check_unmerged(model: nn.Module, adapters: Iterable[Adapter]) -> None:
    """Raise UnsupportedModelError if adapters of the model's own are merged.

    Those of loralib are in eval mode: what another adapter had added to the base would
    be taken out with the one that has been loaded. A PEFT model may be inside another
    module.
    """
    if is_peft(model):  # whose layers `check_layers` knows
        return
    layers = lora_layers(model)
    for adapter in adapters:
        # PEFT's layers have modules for their factors: fc, fc.lora_A, fc.lora_A.default
        outer = owner_of(adapter.a)
        while outer and outer not in layers:
            outer = owner_of(outer)
        if outer and layers[outer].merged:
            raise UnsupportedModelError(_merged(outer, "model.unmerge_adapter()"))
        if vars(model.get_submodule(owner_of(adapter.a))).get("merged"):
            raise UnsupportedModelError(_merged(adapter.name, "model.train()"))


def _merged(name: str, fix: str) -> str:
    return (
        f"the adapter of {name} is merged into the base, where no task changes it: "
        f"call {fix} first"
    )


def _trained(model: nn.Module) -> State:
    """Return what a module trains, and the buffers of the same layers."""
    tensors = tensors_of(model)
    memory = memory_of(model, adapter_name(model))
    if memory is not None:
        mine = {name: tensors[name] for name in memory.shapes if name in tensors}
        if shapes_of(mine) == memory.loaded:  # what is left out does not train just now
            return mine
    layers = {owner_of(n) for n, t in tensors.items() if _is_trained(t)}
    return {
        name: tensor
        for name, tensor in tensors.items()
        if _is_trained(tensor)
        or (not _is_parameter(tensor) and owner_of(name) in layers)
    }


def _is_parameter(tensor: Tensor) -> bool:
    return isinstance(tensor, nn.Parameter)


def _is_trained(tensor: Tensor) -> bool:
    return _is_parameter(tensor) and tensor.requires_grad
