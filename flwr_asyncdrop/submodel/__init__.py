"""Submodels of any module: unit groups, plan, extract, merge, narrow."""

from flwr_asyncdrop.submodel.plan import Plan, UnitGroup
from flwr_asyncdrop.submodel.types import Indices, Keep, Scope, State

__all__ = ["Indices", "Keep", "Plan", "Scope", "State", "UnitGroup"]
