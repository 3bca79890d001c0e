"""What planning the submodels of GPT-2 takes: seconds, and memory over the model's.

``python -m benchmarks.planning`` prints both, of a process of its own.
"""

import gc
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.figures import Figure
from flwr_asyncdrop.submodel import plan_submodels

__all__ = ["planning_figures"]

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


def planning_figures() -> Iterator[Figure]:
    """Measure Hugging Face's GPT-2 (124 M weights, default settings), one thread."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.planning"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    measured = json.loads(done.stdout.splitlines()[-1])
    yield Figure("plan_s_gpt2", measured["seconds"], 20)
    yield Figure("submodel_plan_bytes_ratio", measured["bytes_ratio"], 2)


def _resident(what: str) -> int:
    """Return bytes of this process: ``VmRSS`` now, ``VmHWM`` at most so far."""
    lines = _STATUS.read_text(encoding="utf-8").splitlines()
    value = next(line.split()[1] for line in lines if line.startswith(what))
    return int(value) * 1024


def main() -> None:
    """Plan once, and print what it took."""
    from transformers import GPT2Config, GPT2LMHeadModel  # an extra

    torch.set_num_threads(1)
    model = GPT2LMHeadModel(GPT2Config())
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    gc.collect()
    _CLEAR.write_text(_RESET_PEAK, encoding="utf-8")
    before, started = _resident("VmRSS"), time.perf_counter()
    plan_submodels(model, torch.zeros(1, 8, dtype=torch.int64))
    seconds = time.perf_counter() - started
    ratio = (_resident("VmHWM") - before) / size
    print(json.dumps({"seconds": seconds, "bytes_ratio": ratio}))


if __name__ == "__main__":
    main()
