"""Make torchvision importable beside a CPU build of PyTorch.

PyPI has no CPU build of torchvision, and the import of its wheel stops at operators
that only its CUDA build registers (pytorch/vision issue 9085). Where it does, this
puts a module into the environment that declares the schemas of those operators when
torchvision is imported. Models, data sets and transforms work then.
"""

import subprocess
import sys
import sysconfig
from pathlib import Path

_MODULE = '''\
"""Declares torchvision's operators when it is imported; see mend_torchvision.py."""

import sys


class _DeclareOperators:
    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            self.library = torch.library.Library("torchvision", "DEF")
            boxes = "Tensor dets, Tensor scores, float iou_threshold"
            self.library.define(f"nms({boxes}) -> Tensor")
            self.library.define(f"qnms({boxes}) -> Tensor")
            sys.modules[__name__].keep = self


sys.meta_path.insert(0, _DeclareOperators())
'''


def main() -> None:
    """Mend the environment that this runs in, if it needs it."""
    if imports():
        return
    site = Path(sysconfig.get_path("purelib"))
    (site / "_torchvision_operators.py").write_text(_MODULE)
    (site / "_torchvision_operators.pth").write_text("import _torchvision_operators\n")
    if not imports():
        sys.exit("torchvision does not import: it does not fit this version of torch")


def imports() -> bool:
    """Return whether torchvision can be imported, in a process of its own."""
    command = [sys.executable, "-c", "import torchvision"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


if __name__ == "__main__":
    main()
