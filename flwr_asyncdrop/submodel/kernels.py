"""Run a model so that every unit can be seen, and leave everything as it was."""

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

_switches = threading.RLock()
_SPARSE = (
    torch.sparse_coo_tensor,
    torch.sparse_compressed_tensor,
    torch.sparse_csr_tensor,
    torch.sparse_csc_tensor,
    torch.sparse_bsr_tensor,
    torch.sparse_bsc_tensor,
)


@contextmanager
def steady_kernels() -> Iterator[None]:
    """Let no other thread switch kernels meanwhile.

    For a thread that runs models beside one that plans submodels or counts their
    FLOPs: other kernels round otherwise.
    """
    with _switches:
        yield


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Switch fused kernels and gradients off, and keep the random state as it was.

    Fused LSTM, attention and encoder kernels hide matrix products from dispatch, and so
    does inference mode. The switches are process-wide, and restored on leaving: a
    thread that runs a model meanwhile protects itself with `steady_kernels`.
    """
    mkldnn, mha = torch.backends.mkldnn, torch.backends.mha
    with (
        _switches,
        torch.inference_mode(False),
        torch.no_grad(),
        torch.random.fork_rng(devices=[]),
        sdpa_kernel(SDPBackend.MATH),
        uncompiled(),
        _CheckedIndices(),
        _unvalidated(),
    ):
        was_enabled, was_fast = mkldnn.enabled, mha.get_fastpath_enabled()
        mkldnn.enabled = False  # type: ignore[assignment]  # a descriptor takes it
        mha.set_fastpath_enabled(False)
        try:
            yield
        finally:
            mkldnn.enabled = was_enabled
            mha.set_fastpath_enabled(was_fast)


class _CheckedIndices(TorchFunctionMode):
    """Refuses sparse tensors with wrong indices, which end the process otherwise.

    So it is where the model's code has asked for no checks: its indices are right for
    what it is given, and may be wrong for other lengths.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        if func in _SPARSE:
            given = {**given, "check_invariants": True}
        return func(*args, **given)


@contextmanager
def _unvalidated() -> Iterator[None]:
    """Let `torch.distributions` read no values to check them, which decides nothing."""
    cls = torch.distributions.Distribution
    was_validated = cls._validate_args
    cls.set_default_validate_args(False)
    try:
        yield
    finally:
        cls.set_default_validate_args(was_validated)


def uncompiled() -> AbstractContextManager[object]:
    """Run what ``torch.compile`` has wrapped as it is; without one spare the import."""
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    stance: AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
    return stance


@contextmanager
def one_thread() -> Iterator[Callable[[], None]]:
    """Compute on one thread; what is yielded gives all threads back before the end.

    Threads that have little to do wait for each other more than they compute, and on
    busy cores ten times as long. And sums on several threads are rounded otherwise.
    The setting is this thread's own. As a decorator it is for the whole function.
    """
    threads = torch.get_num_threads()

    def give_back() -> None:
        torch.set_num_threads(threads)

    torch.set_num_threads(1)
    try:
        yield give_back
    finally:
        give_back()


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put `model` into eval mode; on leaving, each module gets its own mode back."""
    modes = {module: module.training for module in model.modules()}
    try:
        model.eval()
        yield
    finally:
        # A module's own train() may take back what its eval() did, such as a merge of
        # adapters into the base.
        for module, mode in modes.items():
            if module.training is not mode:
                module.train(mode)
        for module, mode in modes.items():
            module.training = mode


@contextmanager
def taken_for(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Let modules be in a mode without having been told: none of them does a thing.

    For a model that shares its base: adapters that are merged would be in it.
    """
    modes = {module: module.training for module in model.modules()}
    try:
        for module in modes:
            module.training = training
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
