"""The global model on the server's test set, for the ready app."""

import torch
from flwr.app import ArrayRecord, MetricRecord

from flwr_asyncdrop import wire
from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.evaluate import evaluate
from flwr_asyncdrop.app.experiment import level_mixes, load_data, trained_model
from flwr_asyncdrop.app.learning import Classification
from flwr_asyncdrop.server.callbacks import Callback
from flwr_asyncdrop.server.state import RunState

LEVEL_ACCURACY = "level-accuracy"


class CentralTest(Callback):
    """Flower's ``evaluate_fn``: the metrics of the global model.

    Where labels are tied to the speed of devices, it adds ``level-accuracy``: for each
    speed level, the fastest first, the accuracy on the mix of labels of that level. It
    must be among the run's callbacks, to get the size of the fleet.
    """

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._data = load_data(config)
        self._num_devices = 0

    def on_start(self, state: RunState) -> None:
        """Note how many devices there are."""
        self._num_devices = state.num_devices

    def __call__(self, server_round: int, arrays: ArrayRecord) -> MetricRecord:
        """Test a model."""
        # Each thread has a setting of its own, and evaluations run in one.
        torch.set_num_threads(self._config.threads)
        model = trained_model(self._config, wire.from_record(arrays))
        task = self._data.task
        totals = evaluate(model, self._data, self._config.precision)
        metrics = MetricRecord(dict(task.metrics(totals)))
        by_level = self._num_devices > 0 and self._config.partition == "speed-level"
        if by_level and isinstance(task, Classification):
            mixes = level_mixes(self._config, self._num_devices)
            levels = mixes @ task.class_accuracy(totals).numpy()
            metrics[LEVEL_ACCURACY] = levels.tolist()
        return metrics
