"""torchvision's models, beside whatever build of torch there is."""

from types import ModuleType

import torch

__all__ = ["vision_models"]

_LIBRARIES: list[torch.library.Library] = []


def vision_models() -> ModuleType:
    """Return ``torchvision.models``.

    Beside a CPU build of torch the import of torchvision's wheel stops at operators
    that only its CUDA build registers: then their schemas are declared first.
    """
    try:
        import torchvision.models
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        boxes = "Tensor dets, Tensor scores, float iou_threshold"
        library.define(f"nms({boxes}) -> Tensor")
        library.define(f"qnms({boxes}) -> Tensor")
        _LIBRARIES.append(library)  # the schemas last as long as the library does
        import torchvision.models
    models: ModuleType = torchvision.models
    return models
