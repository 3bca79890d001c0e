"""Names under which rules of one's own are added."""

import pytest
import torch

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.submodel import RULES, add_rule
from flwr_asyncdrop.submodel.discovery.rules import elementwise, rule_for


@pytest.fixture(autouse=True)
def restored():
    before = RULES.copy()
    yield
    RULES.clear()
    RULES.update(before)


@pytest.mark.parametrize("name", ["tril", "aten::tril"])
def test_operations_of_torch(name):
    assert rule_for(torch.ops.aten.tril.default) is None
    add_rule(name, elementwise)
    assert rule_for(torch.ops.aten.tril.default) is elementwise


def test_operations_of_others_do_not_take_the_place_of_torchs():
    torch.library.define("adding_rules::tril", "(Tensor x) -> Tensor")
    add_rule("adding_rules::tril", elementwise)
    assert rule_for(torch.ops.adding_rules.tril.default) is elementwise
    assert rule_for(torch.ops.aten.tril.default) is None


@pytest.mark.parametrize("name", ["", "mine::", "aten.tril", "mine::tril.default"])
def test_what_is_no_name(name):
    with pytest.raises(ConfigError, match="must be a name of aten's"):
        add_rule(name, elementwise)
