"""Random modules: a plan that is handed out holds on other inputs and in both modes."""

import os

import pytest

from tests.submodel.fuzzing.modules import judge_all

COUNT = int(os.environ.get("ASYNCDROP_FUZZ_MODULES", "50"))


@pytest.fixture(scope="module")
def figures():
    return judge_all(range(COUNT))


@pytest.mark.filterwarnings("ignore")
def test_no_plan_is_wrong(figures):
    command = "python -m tests.submodel.fuzzing.modules --seed"

    assert not [f"{command} {wrong.seed}: {wrong.why}" for wrong in figures.wrong]


@pytest.mark.filterwarnings("ignore")
def test_what_can_be_narrowed_is(figures):
    assert figures.narrowed_share >= 0.9
