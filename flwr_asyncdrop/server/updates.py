"""From the reply to an order to the update that an aggregator gets."""

import math

from flwr.app import MetricRecord

from flwr_asyncdrop import wire
from flwr_asyncdrop.aggregation import OutlierGuard, Update, check_counters
from flwr_asyncdrop.exceptions import ReplyError
from flwr_asyncdrop.fleet.fleet import Fleet
from flwr_asyncdrop.readable import shown
from flwr_asyncdrop.seeding import derive_seed
from flwr_asyncdrop.server.assignment import only
from flwr_asyncdrop.server.order import Order
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.submodel import State, check_fits, extract

_LEAST = 0.01  # of the local steps that were asked for


def update_of(
    state: RunState,
    fleet: Fleet,
    order: Order,
    reply: wire.Reply,
    *,
    staleness: int,
    lr_factor: float,
    discount: float,
    seconds: float,
) -> Update:
    """Return the update of a reply that is merged now; see `Update` for the numbers.

    Tensors that were masked are cut to the units that were kept.
    """
    part = order.part

    def cut(arrays: State) -> State:
        if not part.masked:
            return arrays
        return extract(arrays, only(part.indices, arrays))

    return Update(
        arrays=cut(reply.arrays),
        indices=part.indices,
        staleness=staleness,
        num_examples=reply.num_examples,
        base=None if part.arrays is None else cut(part.arrays),
        capability=fleet.speeds.capability(order.device),
        rank=order.rank,
        num_ranks=order.num_ranks,
        lr_factor=lr_factor,
        discount=discount,
        extra={name: cut(arrays) for name, arrays in reply.extra.items()},
        device=order.device,
        num_devices=state.num_devices,
        metrics=wire.flat_metrics(reply.metrics),
        time=state.time,
        seconds=seconds,
        seed=derive_seed(state.seed, "update", state.updates),
        work=trained_share(order, reply),
    )


def trained_share(order: Order, reply: wire.Reply) -> float:
    """Return the share of the usual local steps that were trained.

    ReplyError if the task says how many it has, and the reply does not: on the virtual
    clock it has been charged for those that were asked for. A share of next to none is
    refused, too, as an aggregator may divide by it.
    """
    asked = order.part.work
    if asked is None:
        return 1.0
    records = wire.records_of(reply.metrics, MetricRecord).values()
    said = next((each[wire.WORK] for each in records if wire.WORK in each), None)
    # Steps are whole ones, at least one, of a number that only the client knows.
    least, most = _LEAST * asked, math.ceil(asked)
    if not isinstance(said, int | float) or not least <= said <= most:
        raise ReplyError(
            "work",
            f"the task has {asked:g} of the usual local steps, and the reply's metric "
            f"{wire.WORK!r} is {shown(said)}: train max(1, round(share * steps)) "
            f"steps, where share is {wire.WORK!r} of the train config, and return the "
            "share that they are",
        )
    return float(said)


def check_update(
    update: Update,
    arrays: State,
    guard: OutlierGuard | None,
    *,
    needs_base: bool,
    num_devices: int,
) -> None:
    """Raise ShapeError, or ReplyError, if an update must not reach the global model.

    `num_devices` are there; `needs_base` is the aggregator's.
    """
    indices = update.indices
    check_fits(arrays, update.arrays, indices)
    check_counters(arrays, update.arrays)
    if guard is None:
        return
    if needs_base:
        sent = update.sent
    else:
        # Some orders keep what was sent, and others do not: all are judged alike, by
        # how far they would move the model as it is now.
        sent = extract(arrays, indices) if indices else arrays
    guard.check(arrays, update, sent, num_devices=num_devices)
