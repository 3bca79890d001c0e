"""Switches of the whole process, and the threads that run models meanwhile."""

import threading

import torch
from torch import nn

from flwr_asyncdrop.submodel import steady_kernels
from flwr_asyncdrop.submodel.kernels import eval_mode, plain_kernels
from tests.submodel.lora.models import Merging


def test_no_kernel_is_switched_while_another_thread_runs_a_model():
    seen, inside, leave = [], threading.Event(), threading.Event()

    def run_a_model():
        with steady_kernels():
            inside.set()
            leave.wait(10)
            seen.append(torch.backends.mkldnn.enabled)

    def plan():
        with plain_kernels():
            seen.append(torch.backends.mkldnn.enabled)

    runner, planner = (threading.Thread(target=f) for f in (run_a_model, plan))
    runner.start()
    assert inside.wait(10)
    planner.start()
    planner.join(0.2)
    leave.set()
    runner.join()
    planner.join()
    assert seen == [True, False]
    assert torch.backends.mkldnn.enabled


def test_a_model_may_be_planned_by_who_runs_it():
    with steady_kernels(), plain_kernels(), plain_kernels():
        assert not torch.backends.mkldnn.enabled
    assert torch.backends.mkldnn.enabled


def test_what_a_module_does_in_eval_mode_is_taken_back():
    model = nn.Sequential(Merging(), nn.Dropout())
    model[1].eval()
    before = model[0].weight.clone()

    with eval_mode(model):
        assert model[0].merged

    assert not model[0].merged
    assert [module.training for module in model.modules()] == [True, True, False]
    torch.testing.assert_close(model[0].weight, before)
