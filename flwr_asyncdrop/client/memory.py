"""How much memory this process may still use."""

from pathlib import Path

import torch

from flwr_asyncdrop.machine_memory import (
    CGROUP,
    MEMINFO,
    available_memory,
    left_in_container,
)


def training_memory(meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> int:
    """Return the bytes that training may take: the GPU's, else the machine's, or 0.

    What PyTorch keeps of the GPU's after a task counts: the next one has it again. Swap
    does not count, though a process may use it: each step would wait for it.
    """
    if torch.cuda.is_available():
        free, _ = torch.cuda.mem_get_info()
        return int(free) + torch.cuda.memory_reserved()
    bounds = (available_memory(meminfo), left_in_container(cgroup))
    return min((bound for bound in bounds if bound is not None), default=0)
