"""A change of the structure changes no bit of any history, nor of any model."""

import json
from pathlib import Path

import pytest
import torch

from tests.golden.cases import CASES, machine

RECORDED = json.loads(Path(__file__).with_name("recorded.json").read_text())


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def recorded(one_thread):
    """Return what was recorded on a machine that computes the same bits as this."""
    if (here := machine()) not in RECORDED:
        pytest.skip("this processor or PyTorch computes other bits than the recorded")
    return RECORDED[here]


@pytest.mark.parametrize("case", CASES)
def test_the_same_history_and_model_as_recorded(case, recorded):
    if case not in recorded:
        pytest.skip("recorded on another kind of machine only")
    assert CASES[case]() == recorded[case]


def test_every_case_is_recorded():
    assert any(CASES.keys() == runs.keys() for runs in RECORDED.values())


def test_nothing_else_is_recorded():
    assert all(runs.keys() <= CASES.keys() for runs in RECORDED.values())
