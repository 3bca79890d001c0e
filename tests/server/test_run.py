import math

import numpy as np
import pytest
import torch

from flwr_asyncdrop.aggregation import Buffered, Clipped, Mixing
from flwr_asyncdrop.exceptions import ConfigError, ReplyError, ShapeError
from flwr_asyncdrop.strategy.driven import DrivenRun
from tests.grids import HandlerGrid
from tests.runs import Run, answer, failing, plus_one

ONES = {"w": torch.ones(2)}


def session(nodes=3, in_flight=2, seconds=None, **changes):
    grid = HandlerGrid(plus_one, node_ids=range(1, nodes + 1))
    return Run(grid, seconds, in_flight=in_flight, **changes).open()


def one_order(opened):
    (message, *_) = DrivenRun(opened).train(1)
    return next(iter(opened.state.in_flight.values())), message


def test_a_merge_keeps_the_books():
    opened = session(alpha=0.25)
    order, message = one_order(opened)
    reply = opened.read(order, answer(message, ONES))
    assert reply.arrays["w"].tolist() == [1, 1]
    opened.merge(order, reply, staleness=3)
    state = opened.state
    assert state.arrays["w"].tolist() == [0.25, 0.25]
    assert (state.version, state.updates, state.fastest_updates) == (1, 1, 1)


def test_who_waits_for_a_step_keeps_nothing_of_what_was_sent():
    opened = session(build_aggregator=lambda _: Buffered(2, waits=True))
    order, message = one_order(opened)
    assert order.part.arrays is not None
    opened.merge(order, opened.read(order, answer(message, ONES)), staleness=0)
    (waiting,) = opened.state.waiting
    assert (waiting.device, waiting.number) == (order.device, order.number)
    assert waiting.part.arrays is None


@pytest.mark.parametrize(
    "reply",
    [
        failing,
        lambda m: answer(m, {"w": torch.ones(3)}),
        lambda m: answer(m, {"w": torch.ones(2, dtype=torch.int64)}),
        lambda m: answer(m, {"w": torch.ones(2, dtype=torch.bool)}),
    ],
)
def test_a_reply_that_does_not_fit_leaves_all_as_it_was(reply):
    opened = session()
    order, message = one_order(opened)
    with pytest.raises(ReplyError) as caught:
        opened.read(order, reply(message))
    assert "\n" not in str(caught.value)
    state = opened.state
    assert state.arrays["w"].tolist() == [0, 0]
    assert (state.version, state.updates, state.fastest_updates) == (0, 0, 0)


def test_a_discount_halves_what_an_update_moves():
    opened = session(alpha=0.25)
    order, message = one_order(opened)
    reply = opened.read(order, answer(message, ONES))
    opened.merge(order, reply, staleness=0, discount=0.5)
    assert opened.state.arrays["w"].tolist() == [0.125, 0.125]


@pytest.mark.parametrize(
    ("says", "named"),
    [
        (lambda state: None, "None"),
        # As true as True, and devices would have trained the first model for ever.
        (lambda state: {name: w + 1 for name, w in state.items()}, "a dict"),
        (lambda state: state["w"] > 0, "a Tensor"),
        (lambda state: 1, "an int"),
    ],
)
def test_an_aggregator_says_whether_the_model_has_changed(says, named):
    class Odd(Mixing):
        def merge(self, state, update):
            return says(state)

    opened = session()
    opened.aggregator = Odd()
    order, message = one_order(opened)
    reply = opened.read(order, answer(message, ONES))
    refusal = f"^merge of Odd returned {named}, no bool: change the global model in pla"
    with pytest.raises(ConfigError, match=refusal):
        opened.merge(order, reply, staleness=0)


@pytest.mark.parametrize("scalar", [np.bool_, torch.tensor])
def test_it_may_say_so_in_a_scalar(scalar):
    class Scalar(Mixing):
        def merge(self, state, update):
            return scalar(super().merge(state, update))

    opened = session()
    opened.aggregator = Scalar(0.5)
    order, message = one_order(opened)
    reply = opened.read(order, answer(message, ONES))
    opened.merge(order, reply, staleness=0)
    assert opened.state.version == 1


def test_an_average_that_was_saved_in_half_precision_goes_on_in_single():
    """Versions before this one kept it so, and small steps were rounded away."""
    half = {"w": torch.zeros(2, dtype=torch.float16)}
    opened = session(arrays=half)
    saved = opened.state_dict()
    saved["state"]["averaged"] = half
    opened.load_state_dict(saved)
    assert opened.state.averaged["w"].dtype == torch.float32
    assert opened.state.served["w"].dtype == torch.float16


def doubled_in_place(tensor):
    tensor.data = tensor.data.double()
    return tensor


@pytest.mark.parametrize(
    ("write", "says", "why"),
    [
        (lambda w: w.add_(1), False, "has written into the global model and returned"),
        (lambda w: w + 1, False, "has written into the global model and returned"),
        (lambda w: w.double(), True, "has changed names, shapes or dtypes"),
        (lambda w: w[:1], True, "has changed names, shapes or dtypes"),
        (doubled_in_place, True, "has changed names, shapes or dtypes"),
        (lambda w: None, True, "has changed names, shapes or dtypes"),
    ],
    ids=["in place", "another tensor", "dtype", "shape", "dtype in place", "name"],
)
def test_what_an_aggregator_of_ones_own_must_not_do_is_refused(write, says, why):
    """Devices trained the initial model, and tests were of another."""

    class Wrong(Mixing):
        def merge(self, state, update):
            written = write(state.pop("w"))
            state.update({} if written is None else {"w": written})
            return says

    opened = session()
    order, message = one_order(opened)
    reply = opened.read(order, answer(message, ONES))
    opened.aggregator = Wrong(0.5)
    with pytest.raises(ConfigError, match=f"merge of Wrong {why}"):
        opened.merge(order, reply, staleness=0)


@pytest.mark.parametrize("error", [ReplyError("refused", "odd"), ShapeError("odd")])
def test_an_aggregator_that_refuses_what_it_has_begun_to_merge_is_refused(error):
    """The device was told to have failed, and half of its update was in the model."""

    class Late(Mixing):
        def merge(self, state, update):
            super().merge(state, update)
            raise error

    opened = session()
    order, message = one_order(opened)
    reply = opened.read(order, answer(message, ONES))
    opened.aggregator = Late(0.5)
    with pytest.raises(ConfigError, match=r"^merge of Late has written .* \(odd\): ra"):
        opened.merge(order, reply, staleness=0)


@pytest.mark.parametrize("clip", [lambda made: made, lambda made: Clipped(made, 9.0)])
@pytest.mark.parametrize("attribute", ["steps_at", "waits_for", "wait_limit"])
def test_an_attribute_that_becomes_what_no_run_can_go_by_is_refused(attribute, clip):
    """NaN was never due, and nobody waited for it."""

    class Odd(Mixing):
        def merge(self, state, update):
            setattr(self, attribute, math.nan)
            return super().merge(state, update)

    opened = session(build_aggregator=lambda _: clip(Odd(0.5)))
    order, message = one_order(opened)
    reply = opened.read(order, answer(message, ONES))
    with pytest.raises(ConfigError, match=f"^{attribute} of Odd=nan must be "):
        opened.merge(order, reply, staleness=0)
