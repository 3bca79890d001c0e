"""Try a folder's wheel in a fresh environment: ``python -m scripts.try_wheel dist``.

It is installed without its dependencies, which the running environment lends: what is
tried is what the wheel itself holds.
"""

import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from pathlib import Path

_NEEDED = {"flwr_asyncdrop/py.typed", "flwr_asyncdrop/cli/main.py"}
_TRIED = (
    ["-m", "flwr_asyncdrop", "--version"],
    ["-c", "import flwr_asyncdrop; flwr_asyncdrop.HeteroAsyncDrop"],
    ["-m", "flwr_asyncdrop", "init", "made"],
    ["-m", "flwr_asyncdrop", "simulate", "--algo", "asyncdrop", "--model", "mlp",
     "--num-rounds", "1", "--workers", "0", "--out", "run"],
)  # fmt: skip


def main() -> int:
    """Install the only wheel, and run it away from the clone."""
    (wheel,) = Path(sys.argv[1]).resolve().glob("*.whl")
    missing = _NEEDED - set(zipfile.ZipFile(wheel).namelist())
    if missing:
        print(f"{wheel.name} lacks {', '.join(sorted(missing))}")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "venv"
        venv.create(home, with_pip=True)
        python = home / "bin" / "python"
        pip = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", str(wheel)]
        subprocess.run(pip, check=True)
        (site,) = home.glob("lib/python*/site-packages")
        lent = sysconfig.get_path("purelib")
        (site / "lent.pth").write_text(f"{lent}\n", encoding="utf-8")
        for words in _TRIED:
            subprocess.run([python, *words], check=True, cwd=folder)
        shown = "import flwr_asyncdrop; print(flwr_asyncdrop.__file__)"
        done = subprocess.run(
            [python, "-c", shown],
            check=True,
            cwd=folder,
            capture_output=True,
            text=True,
        )
        if not Path(done.stdout.strip()).is_relative_to(home):
            print(f"the wheel was not what ran: {done.stdout.strip()}")
            return 1
    print(f"{wheel.name}: installed and run")
    return 0


if __name__ == "__main__":
    sys.exit(main())
