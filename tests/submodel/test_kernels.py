"""Switches of the whole process, and the threads that run models meanwhile."""

import threading

import torch

from flwr_asyncdrop.submodel import steady_kernels
from flwr_asyncdrop.submodel.kernels import plain_kernels


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
