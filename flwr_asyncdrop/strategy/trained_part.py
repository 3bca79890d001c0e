"""What of the model a strategy trains, by its arguments."""

from collections.abc import Mapping

from torch import Tensor, nn

from flwr_asyncdrop.submodel import Trainable, check_trainable, frozen_names


class TrainedPart:
    """What `trainable` says of a model; the module is asked when a run starts."""

    def __init__(self, model: nn.Module | None, trainable: Trainable) -> None:
        check_trainable(trainable)
        self.model = model
        self._trainable = trainable
        if model is not None:
            self.frozen(model.state_dict())

    def frozen(self, initial: Mapping[str, object]) -> frozenset[str]:
        """Return which tensors of the initial model do not train.

        ConfigError if that cannot be said, or if nothing trains.
        """
        tensors = [name for name, value in initial.items() if isinstance(value, Tensor)]
        return frozen_names(tensors, self.model, self._trainable)
