"""The names that the submodel room passes around."""

from typing import Literal, TypeAlias

from torch import Tensor

State: TypeAlias = dict[str, Tensor]
"""A ``state_dict``: parameters and buffers by name."""

Keep: TypeAlias = tuple[Tensor, ...]
"""Per group of a plan the kept unit numbers: int64, ascending, at least one."""

Indices: TypeAlias = dict[str, dict[int, Tensor]]
"""Tensor name -> dim -> kept positions (int64, ascending); narrowed dims only."""

Scope: TypeAlias = Literal["internal", "residual"]
"""Whether units live inside one block or are carried along a residual stream."""
