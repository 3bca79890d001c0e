"""Flower strategies that merge on arrival."""

import logging
from contextlib import nullcontext
from dataclasses import replace

from flwr.app import ArrayRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from flwr_asyncdrop.completeness.own_state import Digests, OwnState
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.machine_memory import Memory
from flwr_asyncdrop.observers.joined import JoinedDevices
from flwr_asyncdrop.observers.progress import ProgressLog
from flwr_asyncdrop.observers.results import ResultCollector
from flwr_asyncdrop.observers.rounds import RoundLog
from flwr_asyncdrop.observers.unchanged import UnchangedReplies
from flwr_asyncdrop.parameters import Range, whole_from
from flwr_asyncdrop.readable import counted
from flwr_asyncdrop.server.evaluator import Evaluator
from flwr_asyncdrop.server.run import Run
from flwr_asyncdrop.server.server_evaluator import EvaluateFn
from flwr_asyncdrop.server.steady_grid import SteadyGrid
from flwr_asyncdrop.server.stopping import StoppingRule
from flwr_asyncdrop.strategy.arguments import objective_config
from flwr_asyncdrop.strategy.calls import check_call
from flwr_asyncdrop.strategy.evaluation import evaluator_here, evaluator_on_clients
from flwr_asyncdrop.strategy.fits import check_memory
from flwr_asyncdrop.strategy.flower_hooks import FlowerHooks
from flwr_asyncdrop.strategy.resuming import own_state, run_settings, unresumable
from flwr_asyncdrop.strategy.round_hooks import RoundHooks
from flwr_asyncdrop.strategy.running import running
from flwr_asyncdrop.strategy.runs import run_on
from flwr_asyncdrop.strategy.sampling import Sampling
from flwr_asyncdrop.strategy.start import Connection, StartArguments, assemble
from flwr_asyncdrop.strategy.train_configs import (
    Config,
    TrainConfigs,
    record_or_function,
)

logger = logging.getLogger("flwr.asyncdrop")

_TIMEOUTS = Range(lambda v: v >= 0, "at least 0")  # infinity is one


class AsyncStrategy(FlowerHooks):
    """A Flower strategy that merges each result on arrival.

    It takes the place of ``FedAvg`` in a ServerApp, whose arguments mean what they mean
    there. A round is as many updates as devices are in flight, so that results compare
    with those of a synchronous strategy round by round.

    An `algorithm` says how updates are merged, what submodels leave out, what clients
    minimise and who is next. Each of the four can be given alone, or in place of the
    algorithm's: ``AsyncStrategy(net, x, aggregator=Mixing(), masks=RandomMask(0.25))``.

    Parameters
    ----------
    model : nn.Module, optional
        The model whose submodels are trained; needed if units are dropped and there
        is no `plan`. Only its structure is used: the weights come with `start`.
    example_inputs : Tensor, tuple, mapping, or list of these, optional
        Inputs that the model runs on, e.g. ``torch.zeros(1, 3, 32, 32)``: as
        `plan_submodels` takes them.
    example_kwargs : mapping, optional
        Keyword arguments of every forward pass on them.
    algorithm : Algorithm, optional
        One of `flwr_asyncdrop.algorithms`, or your own.
    aggregator : Aggregator, optional
        How updates are merged. Every run begins with a copy of it.
    masks : MaskPolicy, optional
        Which units a device's submodel keeps. Every run begins with a copy of it.
    objective : LocalObjective, optional
        What clients minimise; what its `config` returns goes into the train config.
    scope : {"all", "internal", "stream"}
        ``"internal"`` drops only units that are made and consumed inside a block, as
        the paper does; ``"all"`` also those of residual streams; ``"stream"`` even of
        those under LayerNorm or RMSNorm, see `plan_submodels`.
    mode : {"sliced", "masked"}
        ``"sliced"`` sends tensors that are really smaller; ``"masked"`` sends
        full-size ones with the dropped units zeroed, for clients of any framework
        that must stay as they are.
    plan : Plan, optional
        The units of the model, e.g. from `declare_plan`, instead of discovering them.
    trainable : str, sequence of str, or callable, optional
        What trains, by names of modules and parameters; or a function that is asked
        about the name of every tensor, buffers too. By default the parameters of
        `model` that have ``requires_grad``, or all without a model. What does not train
        stays where it is: tasks, replies and updates are without it, and a device gets
        it once, if it has not got it. The ClientApp needs a `FrozenMod`.
    in_flight : int, optional
        Devices that train at any moment; in place of `fraction_train`.
    codec : str, Codec or CodecChoice, optional
        How arrays are compressed on the way to the devices and back: ``"q8"``,
        ``"q4"``, ``"q2"``, ``"topk-q4"``, or ``"auto"`` for as many bits as a device's
        bandwidth allows. With any of these, and with ``"packed"`` alone, they travel to
        real devices as one. The ClientApp needs a `CodecMod`. As they are by default.
    fleet : callable, optional
        Builds the profiles of a simulated fleet from the number of nodes, e.g.
        `speed_levels`. The run then has a virtual clock and depends on the seed alone.
        Without it devices and clock are real.
    devices_have_frozen : bool
        Whether simulated devices have what does not train from the start. Else each
        downloads it with its first task, by the books and on the virtual clock. Real
        devices say themselves.
    duration : {"flops", "paper"}
        What a simulated device computes of the full model's work: a submodel's share
        of the FLOPs, or of the units (``1 - drop rate``), as in the paper's tables.
    selection : Selection, optional
        Chooses the next device; the algorithm's, or `Stratified`, by default. Every run
        begins with a copy of it.
    work : WorkPolicy, optional
        How many of the usual local steps a device trains; the algorithm's, or all, by
        default. The ClientApp reads ``"work-share"`` from the train config, and returns
        what it has trained in a metric of that name. Every run begins with a copy.
    schedule : Schedule or callable
        Schedule of ``train_config["lr"]``: `StepDecay`, by updates of the fastest
        device or by seconds; or a function from the costs of the first tasks, one of
        each speed rank, and the number of devices to one.
    faults : FaultPolicy
        How long tasks may take, what becomes of late replies, and how often a device
        may fail in a row.
    probe : bool
        Whether real devices are measured before their first task; their ClientApp
        needs a `CapacityMod`.
    queue_ahead : int
        Tasks that a real device gets beside the one that it trains, if all devices
        are in flight: less idle time, more staleness. Not where devices wait for each
        other.
    seed : int
        Random seed.
    max_seconds : float
        Seconds on the run's clock after which it ends, if it has not ended before. What
        arrives at that very moment still counts, and nothing is sent any more.
    fraction_train : float, optional
        Share of the nodes at the start that train at any moment, 1 by default.
    min_train_nodes : int, optional
        So many train at the least, 2 by default; the run waits for them.
    min_available_nodes : int
        Nodes to wait for before the run starts.
    fraction_evaluate : float
        Share of the nodes that evaluate the global model after every round, on their
        own data; 0 for none.
    min_evaluate_nodes : int, optional
        So many evaluate at the least, 2 by default.
    evaluate_every : int
        Rounds from one evaluation to the next; the last round has one, too.
    weighted_by_key : str
        Key, in the ``MetricRecord`` of a reply, of the number of examples.
    arrayrecord_key, configrecord_key : str
        Keys of the ``ArrayRecord`` and the ``ConfigRecord`` in a message.
    max_examples : int
        Most examples that a client can claim; a reply that claims more is refused.
    outlier_factor : float
        An update whose change is so many times the usual one is refused, see
        `OutlierGuard`; 0 for no guard.
    train_metrics_aggr_fn, evaluate_metrics_aggr_fn : callable, optional
        Flower's ``(list of RecordDict, weighting key) -> MetricRecord``; the weighted
        mean by default.
    evaluators : sequence of Evaluator
        Who else evaluates the global model, beside ``evaluate_fn`` and the clients.
    callbacks : sequence of Callback
        Called at every event of the run.
    checkpointer : Checkpointer, optional
        When and where a run is saved, and what it resumes. With it, Ctrl-C,
        SIGTERM and SIGHUP save the run before they end it.
    log_rounds : bool
        Whether the log has the metrics of each round, and all of them at the end.
    **hyperparameters
        The fields of `algorithm_type`, e.g. ``drop_rate=0.5``, for strategies that
        are named after an algorithm.
    """

    # What a subclass kept when the first run with a checkpointer began.
    _kept_first: Digests | None = None

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: Config = None,
        evaluate_config: Config = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Run to the end, merging each reply on arrival.

        Parameters
        ----------
        grid : Grid
            The way to the nodes.
        initial_arrays : ArrayRecord
            The initial global model.
        num_rounds : int
            Rounds to run; a round is as many updates as devices in flight.
        timeout : float
            Real seconds to wait for a reply at the most, and for a device when none
            is left; then the run ends with what it has.
        train_config : ConfigRecord, mapping or callable, optional
            Sent with every task, or a function of the round that returns a
            ConfigRecord; ``"lr"`` follows the schedule.
        evaluate_config : ConfigRecord, mapping or callable, optional
            The same for every evaluation by clients.
        evaluate_fn : callable, optional
            ``(round, arrays) -> MetricRecord``; runs beside the loop, in a thread,
            before the first update, after every `evaluate_every` rounds and after the
            last one. On a `LocalGrid` with ``workers=0`` the loop waits for it, so that
            clients and it draw the same numbers each time.

        Returns
        -------
        Result
            The final model and the metrics by round.

        Raises
        ------
        ConfigError
            If an argument, or the initial model, is none that a run can have; or if a
            subclass overrides a hook in a way that cannot be followed.
        RunError
            If no node is there, or if every task fails.
        CheckpointError
            If the checkpoint to resume cannot be used.
        FolderError
            If another run holds the checkpointer's folder.
        """
        if evaluate_fn is not None:
            told = "the round and its arrays, and returns a MetricRecord"
            check_call("evaluate_fn", evaluate_fn, "server_round, arrays", told)
        given = StartArguments(
            initial_arrays,
            whole_from(1).check("num_rounds", num_rounds),
            _TIMEOUTS.check("timeout", timeout),
            train_config,
            record_or_function(evaluate_config, "evaluate_config"),
            evaluate_fn,
        )
        self._check_set()
        with self.checkpointer or nullcontext():
            return self._start(grid, given)

    def _start(self, grid: Grid, given: StartArguments) -> Result:
        logger.info("Starting %s:", type(self).__name__)
        self.summary()
        checkpoint = None
        if self.checkpointer is not None:
            settings = run_settings(self, given.num_rounds)
            checkpoint = self.checkpointer.load(settings, unresumable(self))
        connection = Connection.to(
            grid,
            patience=given.timeout,
            insists=self.fleet is not None,
            packs=self.codec is not None,
        )
        configs = TrainConfigs(given.train_config, objective_config(self))
        run = run_on(self, connection, given, configs, checkpoint)
        stopping = StoppingRule(
            num_rounds=given.num_rounds,
            updates_per_round=run.updates_per_round,
            slots=run.slots,
            patience=given.timeout,
            evaluate_every=self.evaluate_every,
            max_seconds=self.max_seconds,
        )
        _check_feasible(run, stopping, connection.grid)
        collector = ResultCollector(
            self.train_metrics_aggr_fn,
            self.weighted_by_key,
            by_hook=self._overrides("aggregate_train"),
        )
        hooks = RoundHooks(
            self,
            configs,
            collector,
            connection.grid,
            given.num_rounds,
            weighting_key=self.weighted_by_key,
            configures=self._overrides("configure_train"),
        )
        logs = [RoundLog(collector.result, given.num_rounds)] if self.log_rounds else []
        own = self._own_state(run, given)
        if own is not None and given.evaluate_fn is not None:
            given = replace(given, evaluate_fn=own.watched(given.evaluate_fn))
        loop = assemble(
            run,
            connection,
            stopping,
            evaluators=[*self._evaluators(run, connection, given), *self.evaluators],
            callbacks=[
                collector,
                hooks,
                UnchangedReplies(),
                JoinedDevices(run, Sampling.of(self).training),
                ProgressLog(stopping.num_updates, stopping.max_seconds),
                *logs,
                *self.callbacks,
                *([] if own is None else [own]),
            ],
            checkpointer=self.checkpointer,
            checkpoint=checkpoint,
            probes=self.probe,
        )
        guard = nullcontext() if self.checkpointer is None else connection.signals
        with guard, running(self, run, hooks):
            loop.run()
        return collector.result

    def _evaluators(
        self, run: Run, connection: Connection, given: StartArguments
    ) -> list[Evaluator]:
        """Return who evaluates beside the `evaluators` that are given."""
        evaluators: list[Evaluator] = []
        if given.evaluate_fn is not None:
            evaluators.append(evaluator_here(given.evaluate_fn, connection))
        hooks = ("configure_evaluate", "aggregate_evaluate")
        if self.fraction_evaluate > 0 or any(map(self._overrides, hooks)):
            evaluators.append(evaluator_on_clients(self, run, connection, given))
        return evaluators

    def _own_state(self, run: Run, given: StartArguments) -> OwnState | None:
        """Return what saves a user's own objects around a run; None for no need."""
        if self.checkpointer is None:
            return None
        own = own_state(self, run, given)
        self._kept_first = own.since("strategy", self._kept_first)
        return own if own.has_any else None


def _check_feasible(run: Run, stopping: StoppingRule, grid: SteadyGrid) -> None:
    """Log how long a run will be.

    ConfigError if it ends before its model changes for the first time, or surely needs
    more memory than there is.
    """
    aggregator, num_updates = run.aggregator, stopping.num_updates
    # Where devices wait for each other, a step is taken with fewer updates, too.
    if aggregator.waits_for == 1 and aggregator.updates_per_version > num_updates:
        raise ConfigError(
            f"the model changes every {aggregator.updates_per_version} updates, and "
            f"the run has {num_updates}, so it would never change: make the buffer "
            "smaller, or run more rounds or devices"
        )
    memory = Memory.here()
    check_memory(run, num_updates, holds_messages=grid.answers_at_once, memory=memory)
    logger.info(
        "%s of %s: %s",
        counted(stopping.num_rounds, "round"),
        counted(stopping.updates_per_round, "update"),
        counted(num_updates, "update"),
    )
