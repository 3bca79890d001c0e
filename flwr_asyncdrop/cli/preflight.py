"""What can be known to fail is refused before the first run starts, once for all."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from flwr_asyncdrop.app.config import RunConfig, Value
from flwr_asyncdrop.app.data import check_dataset
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.fleet.traces import read_trace
from flwr_asyncdrop.references import is_reference, load_reference


def check_inputs(settings: Iterable[Mapping[str, Value]], devices: int) -> None:
    """Raise what is wrong with the files and the fleet of some runs' settings.

    Data sets are looked for, and not read: that takes seconds.
    """
    seen: set[tuple[object, ...]] = set()
    for each in settings:
        config = RunConfig.parse(each)
        # One that resumes has begun so: its devices may be real, and have left.
        too_many = config.is_given("in-flight") and config.in_flight > devices
        if too_many and not config.resume:
            raise ConfigError(
                f"in-flight={config.in_flight} of {devices} devices cannot train at "
                "once: give more --devices, or a smaller --in-flight"
            )
        files = (config.dataset, config.data_path, config.download, config.trace)
        if (named := (*files, config.model)) not in seen:
            seen.add(named)
            _check_files(config)


def _check_files(config: RunConfig) -> None:
    if config.trace:
        read_trace(Path(config.trace).expanduser().absolute(), config.local_steps)
    if is_reference(config.dataset):
        load_reference("dataset", config.dataset)
    elif not config.download:
        check_dataset(config.dataset, config.data_path)
    if is_reference(config.model):
        load_reference("model", config.model)
