"""Downloads of data sets, by torchvision."""

from pathlib import Path
from tempfile import TemporaryDirectory

from flwr_asyncdrop.app.data.files import Source, describe, find_file
from flwr_asyncdrop.exceptions import DataError, MissingExtraError
from flwr_asyncdrop.extras import require


def download(source: Source, data_dir: Path) -> Path:
    """Fetch a data set's files; return the folder under `data_dir` that holds them.

    They are fetched elsewhere and moved into place one by one, whole: nobody sees half
    a file, and two processes that fetch at once do no harm.
    """
    folder = data_dir / source.folder
    if not source.torchvision:
        raise DataError(
            f"torchvision has no {source.folder}: put it in {data_dir} by hand"
        )
    try:
        kind = getattr(require("torchvision.datasets", "data"), source.torchvision)
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=data_dir, prefix=".download-") as staging:
            kind(staging, download=True)
            for name in source.files:
                path = find_file(Path(staging) / source.folder, name)
                if path is None:
                    raise FileNotFoundError(f"torchvision brought no {name}")
                path.replace(folder / path.name)
    except MissingExtraError:
        raise
    # What torchvision's mirrors, its archives and the disk raise, or torchvision
    # itself, if it was built for another torch.
    except Exception as error:
        raise DataError(
            f"could not download {source.torchvision} to {data_dir} "
            f"({describe(error)}); put its files in {folder} by hand"
        ) from error
    return folder
