"""Submodels of any module: find the droppable units, extract, merge, narrow.

`plan_submodels` runs the module once on labelled tensors, learns which positions of
which tensors belong together, and verifies what it found. The resulting `Plan` turns
kept units into indices, with which `extract` makes really smaller tensors and `merge_`
writes them back. `load_submodel` builds the module that fits them, and `load_in_place`
makes a module fit them.
"""

from flwr_asyncdrop.submodel.batchnorm import recalibrate_bn
from flwr_asyncdrop.submodel.block_plan import BlockPlan
from flwr_asyncdrop.submodel.blocks import plan_blocks
from flwr_asyncdrop.submodel.counts import DropCounts
from flwr_asyncdrop.submodel.declare import declare_plan
from flwr_asyncdrop.submodel.default_device import cpu_by_default
from flwr_asyncdrop.submodel.discovery.rules import RULES, add_rule
from flwr_asyncdrop.submodel.flop_formula import FlopFormula
from flwr_asyncdrop.submodel.flops import forward_flops, step_flops
from flwr_asyncdrop.submodel.frozen import Frozen, content_hash, split
from flwr_asyncdrop.submodel.kernels import one_thread, steady_kernels
from flwr_asyncdrop.submodel.lora import (
    Adapter,
    LoraFlops,
    LoraPlan,
    Pairs,
    find_adapters,
    load_lora,
    lora_plan,
    lora_state,
)
from flwr_asyncdrop.submodel.masking import check_maskable
from flwr_asyncdrop.submodel.narrowing.in_place import load_in_place
from flwr_asyncdrop.submodel.narrowing.narrow import load_submodel, narrow
from flwr_asyncdrop.submodel.narrowing.patches import PATCHES
from flwr_asyncdrop.submodel.plan import Plan, UnitGroup
from flwr_asyncdrop.submodel.planning import plan_submodels, verify_plan
from flwr_asyncdrop.submodel.savings import (
    SubmodelCost,
    droppable_share,
    savings,
    savings_table,
)
from flwr_asyncdrop.submodel.trainable import (
    Trainable,
    check_trainable,
    frozen_names,
)
from flwr_asyncdrop.submodel.transfer import (
    add_,
    check_fits,
    extract,
    merge_,
    part_of,
    silenced,
)
from flwr_asyncdrop.submodel.types import (
    Example,
    Indices,
    Inputs,
    Keep,
    Scope,
    State,
    UnitKind,
    check_module,
    examples_of,
)

__all__ = [
    "PATCHES",
    "RULES",
    "Adapter",
    "BlockPlan",
    "DropCounts",
    "Example",
    "FlopFormula",
    "Frozen",
    "Indices",
    "Inputs",
    "Keep",
    "LoraFlops",
    "LoraPlan",
    "Pairs",
    "Plan",
    "Scope",
    "State",
    "SubmodelCost",
    "Trainable",
    "UnitGroup",
    "UnitKind",
    "add_",
    "add_rule",
    "check_fits",
    "check_maskable",
    "check_module",
    "check_trainable",
    "content_hash",
    "cpu_by_default",
    "declare_plan",
    "droppable_share",
    "examples_of",
    "extract",
    "find_adapters",
    "forward_flops",
    "frozen_names",
    "load_in_place",
    "load_lora",
    "load_submodel",
    "lora_plan",
    "lora_state",
    "merge_",
    "narrow",
    "one_thread",
    "part_of",
    "plan_blocks",
    "plan_submodels",
    "recalibrate_bn",
    "savings",
    "savings_table",
    "silenced",
    "split",
    "steady_kernels",
    "step_flops",
    "verify_plan",
]
