"""The size attributes of torch's modules, set right after their tensors narrowed."""

from collections.abc import Callable
from typing import Any, TypeAlias

from torch import nn

from flwr_asyncdrop.submodel.narrowing.attention import NarrowMultiheadAttention
from flwr_asyncdrop.submodel.narrowing.derived import refresh
from flwr_asyncdrop.submodel.narrowing.recurrent import PaddedLSTM

Patch: TypeAlias = Callable[[Any, Any], None]
"""Sets the attributes of a narrowed module; the second argument is the full one."""


def _linear(narrow: nn.Linear, _: nn.Linear) -> None:
    narrow.out_features, narrow.in_features = narrow.weight.shape


def _transposed_linear(narrow: Any, _: Any) -> None:
    narrow.nx, narrow.nf = narrow.weight.shape


def _convolution(narrow: nn.Conv2d, full: nn.Conv2d) -> None:
    first, second = narrow.weight.shape[:2]
    if full.groups > 1:
        narrow.groups = first // (full.weight.shape[0] // full.groups)
    narrow.out_channels, narrow.in_channels = first, second * narrow.groups
    if narrow.transposed:
        narrow.out_channels, narrow.in_channels = second * narrow.groups, first


def _batch_norm(narrow: nn.BatchNorm2d, full: nn.BatchNorm2d) -> None:
    tensor = full.running_mean if full.weight is None else full.weight
    if tensor is not None:
        kept = narrow.running_mean if narrow.weight is None else narrow.weight
        narrow.num_features = len(kept)


def _layer_norm(narrow: nn.LayerNorm | nn.RMSNorm, _: nn.Module) -> None:
    narrow.normalized_shape = tuple(narrow.weight.shape)


def _group_norm(narrow: nn.GroupNorm, full: nn.GroupNorm) -> None:
    narrow.num_channels = len(narrow.weight)
    if full.num_groups > 1:
        per_group = full.num_channels // full.num_groups
        narrow.num_groups = narrow.num_channels // per_group


def _embedding(narrow: nn.Embedding | nn.EmbeddingBag, _: nn.Module) -> None:
    narrow.embedding_dim = narrow.weight.shape[1]


def _bilinear(narrow: nn.Bilinear, _: nn.Bilinear) -> None:
    sizes = narrow.weight.shape
    narrow.out_features, narrow.in1_features, narrow.in2_features = sizes


def _recurrent(narrow: Any, full: Any) -> None:
    gates = len(full.weight_ih_l0) // full.hidden_size
    narrow.hidden_size = len(narrow.weight_ih_l0) // gates
    narrow.input_size = narrow.weight_ih_l0.shape[1]
    if full.proj_size:
        narrow.proj_size = len(narrow.weight_hr_l0)
        if narrow.proj_size == narrow.hidden_size:
            narrow.__class__ = PaddedLSTM


def _recurrent_cell(narrow: nn.LSTMCell, _: nn.LSTMCell) -> None:
    narrow.hidden_size = narrow.weight_hh.shape[1]
    narrow.input_size = narrow.weight_ih.shape[1]


def _prelu(narrow: nn.PReLU, _: nn.PReLU) -> None:
    narrow.num_parameters = len(narrow.weight)


def _attention(narrow: Any, full: nn.MultiheadAttention) -> None:
    narrow.__class__ = NarrowMultiheadAttention
    narrow.num_heads = narrow.out_proj.weight.shape[1] // full.head_dim
    query = key = value = narrow.in_proj_weight
    if query is None:
        query, key = narrow.q_proj_weight, narrow.k_proj_weight
        value = narrow.v_proj_weight
    narrow.embed_dim, narrow.kdim, narrow.vdim = (
        weight.shape[1] for weight in (query, key, value)
    )
    narrow._qkv_same_embed_dim = False  # keeps the encoder layers' fused path away


PATCHES: dict[type[nn.Module], Patch] = {
    nn.Bilinear: _bilinear,
    nn.Linear: _linear,
    nn.modules.conv._ConvNd: _convolution,
    nn.modules.batchnorm._NormBase: _batch_norm,
    nn.LayerNorm: _layer_norm,
    nn.RMSNorm: _layer_norm,
    nn.GroupNorm: _group_norm,
    nn.Embedding: _embedding,
    nn.EmbeddingBag: _embedding,
    nn.RNNBase: _recurrent,
    nn.RNNCellBase: _recurrent_cell,
    nn.MultiheadAttention: _attention,
    nn.PReLU: _prelu,
}
"""Module class -> patch, for subclasses too. Add a class of your own here, wherever
submodels are built, if its forward reads widths from attributes."""

_PATCHES_BY_NAME: dict[str, Patch] = {
    "transformers.pytorch_utils.Conv1D": _transposed_linear,
}
"""The same for classes of packages that may not be installed."""


def patch(narrow: nn.Module, full: nn.Module) -> None:
    """Set the size attributes of `narrow`, a copy of `full` with narrower tensors."""
    refresh(narrow)
    found = _patch_of(full)
    if found is not None:
        found(narrow, full)


def has_patch(module: nn.Module) -> bool:
    """Whether `patch` knows the module's class."""
    return _patch_of(module) is not None


def makes_last_dim(module: nn.Module) -> bool:
    """Whether the weight is (inputs, outputs), unlike that of `torch.nn.Linear`."""
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        return True
    return _patch_of(module) is _transposed_linear


def _patch_of(module: nn.Module) -> Patch | None:
    for base in type(module).__mro__:
        name = f"{base.__module__}.{base.__qualname__}"
        found = PATCHES.get(base) or _PATCHES_BY_NAME.get(name)
        if found is not None:
            return found
    return None
