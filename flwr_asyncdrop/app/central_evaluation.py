"""The global model on the server's test set, for the ready app."""

import numpy as np
import torch
from flwr.app import ArrayRecord, MetricRecord
from numpy.typing import NDArray

from flwr_asyncdrop import wire
from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.evaluate import score
from flwr_asyncdrop.app.experiment import level_mixes, load_data, trained_model
from flwr_asyncdrop.server.callbacks import Callback
from flwr_asyncdrop.server.state import RunState

LEVEL_ACCURACY = "level-accuracy"


class CentralTest(Callback):
    """Flower's ``evaluate_fn``: accuracy and loss of the global model.

    Where labels are tied to the speed of devices, it adds ``level-accuracy``: one
    number a speed level, the fastest first, the accuracy that devices of that level
    see because of the labels that they have. It must be among the run's callbacks,
    which is how it gets to know the size of the fleet.

    Parameters
    ----------
    config : RunConfig
        The configuration of the run.
    """

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._data = load_data(config)
        self._mixes: NDArray[np.float64] | None = None

    def on_start(self, state: RunState) -> None:
        """Find out which labels the levels of this fleet have."""
        if self._config.partition == "speed-level":
            self._mixes = level_mixes(self._config, state.num_devices)

    def __call__(self, server_round: int, arrays: ArrayRecord) -> MetricRecord:
        """Test a model."""
        # Each thread has a setting of its own, and evaluations run in one.
        torch.set_num_threads(self._config.threads)
        model = trained_model(self._config, wire.from_record(arrays))
        scores = score(model, self._data, self._config.precision)
        metrics = MetricRecord({"accuracy": scores.accuracy, "loss": scores.loss})
        if self._mixes is not None:
            metrics[LEVEL_ACCURACY] = (self._mixes @ scores.class_accuracy).tolist()
        return metrics
