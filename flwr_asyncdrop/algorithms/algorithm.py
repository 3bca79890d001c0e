"""The base class of algorithms: frozen dataclasses that build the parts of a run."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

from flwr_asyncdrop.aggregation import Aggregator, Clipped
from flwr_asyncdrop.aggregation.aggregator import check_aggregator
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.fleet import Selection, WorkPolicy
from flwr_asyncdrop.masks import MaskPolicy
from flwr_asyncdrop.objectives import LocalObjective, StandardObjective
from flwr_asyncdrop.overrides import check_fields, check_names, check_overrides
from flwr_asyncdrop.parameters import at_least, check_parameters, in_interval, parameter
from flwr_asyncdrop.readable import shown, with_article


@dataclass(frozen=True)
class Algorithm(ABC):
    """How updates merge, what submodels lack, what clients minimise, who is next.

    Its fields are its hyperparameters. A subclass is a frozen dataclass that adds its
    own and overrides the methods below; ``algo='package.module:Class'`` runs it.

    Attributes
    ----------
    clip_norm : float
        L2 norm down to which the change of an update is scaled before it is merged; 0
        for no clipping.
    averaging : float
        Decay of the average of the model's versions that is evaluated and returned, in
        [0, 1); 0 for the latest version itself.
    logit_adjustment : float
        ``tau`` of the loss that corrects a device's label skew, at least 0, which
        follows the schedule of the learning rate; 0 for the plain loss. The ready app
        takes the plain loss, too, where targets are no labels.
    """

    name: ClassVar[str] = ""
    """Its name in a run-config; "" for its class's."""

    units: ClassVar[Literal["channels", "blocks"]] = "channels"
    """What a mask leaves out: channels, neurons, heads and their like, or blocks."""

    keeps_client_state: ClassVar[bool] = False
    """Whether its clients keep state from task to task, which no checkpoint has."""

    clip_norm: float = parameter(
        0.0, "L2 norm down to which an update's change is scaled; 0 = off", at_least(0)
    )
    averaging: float = parameter(
        0.0,
        "decay of the average of versions that is served, in [0, 1); 0 = off",
        in_interval("[0, 1)"),
    )
    logit_adjustment: float = parameter(
        0.0, "tau of the loss that corrects a device's label skew; 0 = off", at_least(0)
    )

    def __post_init__(self) -> None:
        check_fields(type(self))
        check_parameters(self)

    @abstractmethod
    def aggregator(self, in_flight: int) -> Aggregator:
        """Return a new aggregator for so many devices in flight.

        A hyperparameter that does not suit so many raises a ConfigError.
        """

    def masks(self) -> MaskPolicy | None:
        """Return what chooses the units of submodels; None for full models."""
        return None

    def objective(self) -> LocalObjective:
        """Return what clients minimise."""
        return StandardObjective(self.logit_adjustment)

    def selection(self) -> Selection | None:
        """Return what chooses the next device; None for what the run says."""
        return None

    def work(self) -> WorkPolicy | None:
        """Return what says how many local steps a device trains; None for all."""
        return None

    def checked_masks(self) -> MaskPolicy | None:
        """Return what `masks` does; ConfigError if that is no mask policy."""
        found = self.masks()
        self._check("masks", found, MaskPolicy, without="full models")
        return found

    def checked_objective(self) -> LocalObjective:
        """Return what `objective` does; ConfigError if that is no objective."""
        found = self.objective()
        self._check("objective", found, LocalObjective)
        return found

    def checked_selection(self) -> Selection | None:
        """Return what `selection` does; ConfigError if that is no selection."""
        found = self.selection()
        self._check("selection", found, Selection, without="the run's own")
        return found

    def checked_work(self) -> WorkPolicy | None:
        """Return what `work` does; ConfigError if that is no work policy."""
        found = self.work()
        self._check("work", found, WorkPolicy, without="all local steps")
        return found

    def clipped_aggregator(self, in_flight: int) -> Aggregator:
        """Return the aggregator of a run, with clipping if there is any."""
        return self.clipped(self.aggregator(in_flight))

    def clipped(self, aggregator: Aggregator) -> Aggregator:
        """Return an aggregator that clips updates first, if this algorithm does."""
        aggregator = check_aggregator(aggregator, type(self).__name__)
        return Clipped(aggregator, self.clip_norm) if self.clip_norm else aggregator

    @classmethod
    def label(cls) -> str:
        """Return its name, for people and files; a subclass does not inherit it."""
        return vars(cls).get("name", "") or cls.__name__

    def _check(self, method: str, found: object, kind: type, without: str = "") -> None:
        """Raise ConfigError if what a method has returned is of another kind.

        `without` says what None stands for, if it may be returned.
        """
        check_overrides(found)
        check_names(type(found))
        if isinstance(found, kind) or (found is None and without):
            return
        wanted = with_article(kind.__name__) + (without and f", or None for {without}")
        raise ConfigError(
            f"{method}() of {type(self).__name__} returned {shown(found)}: return "
            f"{wanted}"
        )
