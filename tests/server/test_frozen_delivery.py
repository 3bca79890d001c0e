"""Who gets the frozen tensors, and how often."""

import logging
from dataclasses import replace

import pytest
import torch
from flwr.app import Error, Message, RecordDict

from flwr_asyncdrop import wire
from flwr_asyncdrop.exceptions import ReplyError
from flwr_asyncdrop.fleet.profiles import TaskCost
from flwr_asyncdrop.flower_internals.identity import assume_identity
from flwr_asyncdrop.server.frozen_delivery import FrozenDelivery, FrozenLackedError
from flwr_asyncdrop.server.order import Order, Part, Timing
from flwr_asyncdrop.submodel import split
from tests.runs import answer

assume_identity(run_id=1)

FROZEN = split({"f": torch.zeros(3), "w": torch.zeros(2)}, {"f"})[1]
BYTES = 128 + 12  # the header of numpy.save, and three numbers
ORDER = Order(
    0, 0, 5, 0, 1, 1, 0, 1.0, Part(None, {}, {}), TaskCost(1.0, 1, 1), Timing(0.0)
)
TASK = Message(RecordDict(), 5, "train")


class Server:
    """The orders that are out, and what each brings."""

    def __init__(self, **settings):
        self.delivery = FrozenDelivery(**settings)
        self.out, self.sent = [], 0

    def order(self, device=0):
        brings = self.delivery.add_to(FROZEN, self.sent, device, self.out)
        order = replace(ORDER, number=self.sent, device=device)
        record = self.delivery.records(FROZEN, order)
        assert brings == (BYTES if record else 0)
        self.out.append(order)
        self.sent += 1
        return order, bool(record)

    def lose(self, order):
        self.out.remove(order)

    def reply(self, order, message=None):
        self.out.remove(order)
        message = answer(TASK, {"w": torch.ones(2)}) if message is None else message
        self.delivery.check(FROZEN, order, message)

    def ask(self, order):
        self.reply(order, wire.ask_for_frozen(TASK, FROZEN.sha256))

    def restarted(self, **settings):
        other = Server(**settings)
        other.delivery.load_state_dict(self.delivery.state_dict())
        other.out, other.sent = list(self.out), self.sent
        return other


def test_a_device_that_has_them_gets_nothing():
    server = Server(unasked=False)
    for _ in range(3):
        order, brings = server.order()
        assert not brings
        server.reply(order)


def test_one_that_asks_gets_them_once():
    server = Server(unasked=False)
    first, _ = server.order()
    with pytest.raises(FrozenLackedError):
        server.ask(first)
    second, brings = server.order()
    assert brings
    assert server.order(device=1)[1] is False
    server.reply(second)
    assert server.order()[1] is False


def test_one_that_has_lost_them_asks_again():
    server = Server(unasked=False)
    for _ in range(2):
        with pytest.raises(FrozenLackedError):
            server.ask(server.order()[0])
        order, brings = server.order()
        assert brings
        server.reply(order)


def test_tasks_in_a_queue_do_not_bring_them_twice():
    server = Server(unasked=False)
    first, second = server.order()[0], server.order()[0]
    with pytest.raises(FrozenLackedError):
        server.ask(first)
    third, brings = server.order()
    assert brings
    # The second task had left before: the device does not know yet.
    with pytest.raises(FrozenLackedError):
        server.ask(second)
    fourth, brings = server.order()
    assert not brings, "they are on their way"
    server.reply(third)
    server.reply(fourth)
    assert server.order()[1] is False


def test_an_old_question_that_comes_late_says_nothing():
    server = Server(unasked=False)
    old = server.order()[0]
    with pytest.raises(FrozenLackedError):
        server.ask(server.order()[0])
    server.reply(server.order()[0])
    with pytest.raises(FrozenLackedError):
        server.ask(old)
    assert server.order()[1] is False


def test_a_task_that_is_lost_has_brought_nothing():
    server = Server(unasked=True)
    order, brings = server.order()
    assert brings
    assert server.order()[1] is False
    server.lose(order)
    assert server.order()[1] is True


def test_unasked_each_device_gets_them_with_its_first_task():
    server = Server(unasked=True)
    for device in range(3):
        order, brings = server.order(device)
        assert brings
        server.reply(order)
        assert server.order(device)[1] is False


@pytest.mark.parametrize("simulated", [False, True])
def test_asking_for_what_the_task_has_brought_is_a_failure(simulated):
    server = Server(unasked=True, simulated=simulated)
    with pytest.raises(ReplyError, match="has brought") as error:
        server.ask(server.order()[0])
    assert error.value.kind == "frozen"


@pytest.mark.parametrize("unasked", [False, True])
def test_what_a_simulated_device_pays_does_not_depend_on_who_asks(unasked):
    quiet, curious = (Server(unasked=unasked, simulated=True) for _ in range(2))
    for server in (quiet, curious):
        server.reply(server.order()[0])
    asked, _ = curious.order()
    with pytest.raises(FrozenLackedError):
        curious.ask(asked)
    curious.delivery.bring_again(asked)
    assert curious.delivery.records(FROZEN, asked)
    curious.out.append(asked)
    curious.reply(asked)
    quiet.reply(quiet.order()[0])
    assert curious.delivery.state_dict() == quiet.delivery.state_dict()
    assert curious.order()[1] is False


def test_a_simulated_task_is_sent_again_once():
    server = Server(unasked=False, simulated=True)
    order, _ = server.order()
    with pytest.raises(FrozenLackedError):
        server.ask(order)
    server.delivery.bring_again(order)
    server.out.append(order)
    with pytest.raises(ReplyError, match="has brought"):
        server.ask(order)


def test_a_server_that_resumes_knows_who_has_them():
    server = Server(unasked=True)
    server.reply(server.order(0)[0])
    on_its_way = server.order(1)[0]
    server = server.restarted(unasked=True)
    assert server.delivery.records(FROZEN, on_its_way)
    assert server.order(0)[1] is False
    assert server.order(1)[1] is False
    assert server.order(2)[1] is True


def test_other_tensors_are_nobodys():
    server = Server(unasked=True)
    server.reply(server.order()[0])
    server.delivery.forget()
    assert server.order()[1] is True


def test_an_evaluation_brings_them_to_who_asked():
    server = Server(unasked=False)
    assert server.delivery.for_evaluation(FROZEN, 0) == {}
    with pytest.raises(FrozenLackedError):
        server.ask(server.order()[0])
    assert list(server.delivery.for_evaluation(FROZEN, 0)) == [wire.FROZEN_RECORD]
    assert server.delivery.for_evaluation(FROZEN, 0) == {}
    assert server.order()[1] is False


@pytest.mark.parametrize(
    ("reason", "hint"),
    [
        ("these arrays are no submodel: the module also needs the tensor f", True),
        (
            "Error(s) in loading state_dict for Net:\n\tMissing key(s) in state_dict",
            True,
        ),
        ("File '/some/where.py' " * 90 + "Missing key(s) in state_dict", True),
        ("out of memory", False),
    ],
)
def test_a_client_without_the_mod_is_told_so(reason, hint):
    server = Server(unasked=False)
    failed = Message(Error(3, reason), reply_to=TASK)
    if not hint:
        server.reply(server.order()[0], failed)  # wire.read_reply says what it is
        return
    with pytest.raises(ReplyError, match=r"mods=\[FrozenMod\(\)\]") as error:
        server.reply(server.order()[0], failed)
    assert error.value.kind == "client-error"
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("reason", ["KeyError: 'metrics'", "StopIteration"])
def test_a_mod_that_an_ask_is_too_little_for_is_told_where_to_stand(reason):
    server = Server(unasked=False)
    failed = Message(Error(3, reason), reply_to=TASK)
    with pytest.raises(ReplyError, match=rf"{reason}; if a mod .* FrozenMod") as error:
        server.reply(server.order()[0], failed)
    assert error.value.kind == "client-error"
    with pytest.raises(FrozenLackedError):
        server.ask(server.order()[0])
    server.reply(server.order()[0])
    server.reply(server.order()[0], failed)  # it has them: nobody asks any more


def test_an_error_whose_fix_is_known_is_no_such_mod():
    server = Server(unasked=False)
    failed = Message(Error(3, "KeyError: 'proximal-mu'"), reply_to=TASK)
    server.reply(server.order()[0], failed)  # wire.read_reply names the fix


def test_a_reply_with_frozen_tensors_is_refused_by_name():
    server = Server(unasked=False)
    reply = answer(TASK, {"w": torch.ones(2), "f": torch.zeros(3)})
    with pytest.raises(ReplyError, match=r"'f'.*mods=\[FrozenMod\(\)\]") as error:
        server.reply(server.order()[0], reply)
    assert error.value.kind == "names"


def test_a_device_that_always_forgets_is_named_once(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    server = Server(unasked=False)
    for _ in range(5):
        with pytest.raises(FrozenLackedError):
            server.ask(server.order(7)[0])
        server.reply(server.order(7)[0])
    warned = [r.message for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warned) == 1
    assert "device 7 has asked 3 times" in warned[0]
