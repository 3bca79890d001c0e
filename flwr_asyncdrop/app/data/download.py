"""Downloads of data sets, by torchvision."""

import importlib
from pathlib import Path
from tempfile import TemporaryDirectory

from flwr_asyncdrop.app.data.files import Layout, describe, find_file
from flwr_asyncdrop.exceptions import DataError


def download(layout: Layout, data_dir: Path) -> Path:
    """Fetch a data set's files into torchvision's layout under ``data_dir``.

    The files are fetched elsewhere and moved into place one by one, whole: nobody
    sees half a file, and two processes that fetch at once do no harm.

    Returns
    -------
    Path
        The folder that now holds the files.

    Raises
    ------
    DataError
        torchvision is missing or unusable, or the download failed.
    """
    if layout.torchvision is None:
        msg = f"torchvision has no {layout.folder}: put it in {data_dir} by hand"
        raise DataError(msg)
    try:
        datasets = importlib.import_module("torchvision.datasets")
    except ModuleNotFoundError as error:
        msg = (
            f"downloading {layout.torchvision} needs torchvision: "
            'pip install "flwr-asyncdrop[vision]"'
        )
        raise DataError(msg) from error
    # A torchvision built for another torch fails with RuntimeError, or others.
    except Exception as error:
        msg = (
            f"downloading {layout.torchvision} needs torchvision, which does not "
            f"import here ({describe(error)}); install the one that fits your torch"
        )
        raise DataError(msg) from error
    folder = data_dir / layout.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=data_dir, prefix=".download-") as staging:
            getattr(datasets, layout.torchvision)(staging, download=True)
            _move(layout, Path(staging) / layout.folder, folder)
    # torchvision raises what its mirrors, its archives and the disk raise.
    except Exception as error:
        msg = (
            f"could not download {layout.torchvision} to {data_dir} "
            f"({describe(error)}); put its files in {folder} by hand"
        )
        raise DataError(msg) from error
    return folder


def _move(layout: Layout, source: Path, target: Path) -> None:
    for name in layout.files:
        path = find_file(source, name)
        if path is None:
            msg = f"torchvision brought no {name}"
            raise FileNotFoundError(msg)
        path.replace(target / path.name)
