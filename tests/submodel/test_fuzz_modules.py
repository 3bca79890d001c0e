"""Random modules: a plan that is handed out holds on other inputs and in both modes."""

import dataclasses

import pytest
import torch

from flwr_asyncdrop.exceptions import UnsupportedModelError
from flwr_asyncdrop.submodel import plan_submodels
from tests.submodel.fuzzing import modules
from tests.submodel.fuzzing.modules import NEARLY, judge, judge_all, main, module_of

# `make nightly` tries 2,000.
COUNT = 8
COMMAND = "python -m tests.submodel.fuzzing.modules --seed"

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def figures():
    return judge_all(range(COUNT))


def test_no_plan_is_wrong(figures):
    assert not [f"{COMMAND} {wrong.seed}: {wrong.why}" for wrong in figures.wrong]


def test_what_can_be_narrowed_is(figures):
    plain = [verdict for verdict in figures.verdicts if verdict.plain]

    assert len(plain) >= COUNT / 10
    assert [verdict.seed for verdict in plain if verdict.share < NEARLY] == []
    assert figures.refused_share <= 0.4


def test_a_seed_makes_the_same_module_each_time():
    one, other = module_of(5), module_of(5)

    assert str(one) == str(other)
    assert str(one) != str(module_of(6))
    for mine, yours in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, yours)


def test_a_wrong_plan_is_found_and_shown(monkeypatch, capsys):
    def forgetful(model, inputs):
        plan = plan_submodels(model, inputs)
        axes = {name: dims for name, dims in plan.axes.items() if name != "head.weight"}
        return dataclasses.replace(plan, axes=axes)

    monkeypatch.setattr(modules, "plan_submodels", forgetful)

    assert judge(0).outcome == "wrong"
    assert main(["--seed", "0"]) == 1
    assert "the submodel does not run" in capsys.readouterr().out
    assert main(["--count", "1"]) == 1
    assert "--seed 0: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(UnsupportedModelError("no"), "refused"), (RuntimeError("crash"), "wrong")],
)
def test_a_refusal_is_no_crash(monkeypatch, error, outcome):
    def fail(model, inputs):
        raise error

    monkeypatch.setattr(modules, "plan_submodels", fail)

    assert judge(0).outcome == outcome


def test_what_rounding_leaves_of_nothing_is_no_fault():
    """Norms of one number each: gradients below them are 0, or 1e-15 by some CPUs."""
    assert judge(1736).outcome == "narrowed"
