"""Whether a GPU is there, and works."""

from pathlib import Path

import torch

from flwr_asyncdrop.doctor.finding import Finding, ok, problem, warning
from flwr_asyncdrop.readable import readable_bytes

_DRIVER = Path("/proc/driver/nvidia/version")


def check_gpu(driver: Path = _DRIVER) -> Finding:
    """Compute something on the GPU, if PyTorch sees one.

    Parameters
    ----------
    driver : Path
        There if the machine has an NVIDIA driver.
    """
    if not torch.cuda.is_available():
        if not driver.exists():
            return ok("gpu", "none: devices train on the CPU")
        return warning(
            "gpu",
            f"there is an NVIDIA driver, but torch {torch.__version__} uses no GPU",
            "install a torch with CUDA for that driver, or see CUDA_VISIBLE_DEVICES",
        )
    try:
        names = [
            torch.cuda.get_device_name(number)
            for number in range(torch.cuda.device_count())
        ]
        two = torch.ones(2, device="cuda").sum().item()
        free, total = torch.cuda.mem_get_info()
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        return problem(
            "gpu",
            f"it is there but fails: {reason}",
            "update its driver, or set CUDA_VISIBLE_DEVICES='' to do without",
        )
    if two != 2:
        return problem(
            "gpu", f"on {names[0]} 1 + 1 is {two:g}", "do not use this GPU for anything"
        )
    sizes = f"{readable_bytes(free)} of {readable_bytes(total)} free"
    return ok("gpu", f"{', '.join(names)}: {sizes}")
