import logging
from itertools import count

from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict

from flwr_asyncdrop.server.client_evaluator import ClientEvaluator
from flwr_asyncdrop.server.mailbox import Mailbox
from tests.grids import HandlerGrid
from tests.runs import Run, plus_one
from tests.server.test_server_evaluator import state, weight

DIED = "<class 'ray.exceptions.ActorDiedError'>:<'The actor died unexpectedly'>"


def measure(message):
    node = message.metadata.dst_node_id
    content = RecordDict({"metrics": MetricRecord({"num-examples": node})})
    return Message(content, reply_to=message)


def clients(grid, nodes=(1, 2, 3), patience=10.0, box=None, **options):
    """Return an evaluator that asks `nodes`, and what its aggregate function gets."""
    box = box or Mailbox(grid, timer=grid.timer, sleep=grid.sleep)
    aggregated = []

    def configure(number, arrays):
        content = RecordDict({"arrays": arrays, "config": ConfigRecord()})
        return [Message(content, node, "evaluate") for node in nodes]

    def aggregate(number, replies):
        found = [reply.content["metrics"]["num-examples"] for reply in replies]
        aggregated.append((number, found))
        return MetricRecord({"count": len(found)}) if found else None

    return ClientEvaluator(box, configure, aggregate, patience, **options), aggregated


class TestClientEvaluator:
    def test_replies_are_aggregated_in_the_order_of_the_messages(self):
        delays = {1: 3.0, 2: 1.0, 3: 2.0}
        grid = HandlerGrid(measure, delay=lambda m: delays[m.metadata.dst_node_id])
        evaluator, aggregated = clients(grid)
        evaluator.submit(state(4.0), 1)
        assert weight(grid.pushed[0].content["arrays"]) == 4.0
        for now in (0.5, 1.5, 2.5):
            grid.now = now
            assert list(evaluator.collect(finish=False)) == []
        grid.now = 3.5
        (evaluation,) = evaluator.collect(finish=False)
        assert aggregated == [(1, [1, 2, 3])]
        assert (evaluation.source, evaluation.round) == ("clients", 1)

    def test_rounds_end_in_order(self):
        grid = HandlerGrid(measure, delay=lambda m: 5.0 if grid.now == 0 else 0.0)
        evaluator, _ = clients(grid)
        evaluator.submit(state(), 1)
        grid.now = 1.0
        evaluator.submit(state(), 2)
        assert list(evaluator.collect(finish=False)) == []
        grid.now = 6.0
        assert [e.round for e in evaluator.collect(finish=False)] == [1, 2]

    def test_the_last_replies_are_waited_for(self):
        grid = HandlerGrid(measure, delay=lambda m: 8.0)
        evaluator, _ = clients(grid)
        evaluator.submit(state(), 1)
        (evaluation,) = evaluator.collect(finish=True)
        assert evaluation.metrics == MetricRecord({"count": 3})

    def test_a_lost_reply_is_waited_for_once_and_not_in_every_round(
        self, caplog, monkeypatch
    ):
        monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
        grid = HandlerGrid(
            lambda m: None if m.metadata.dst_node_id == 2 else measure(m)
        )
        evaluator, aggregated = clients(grid)
        for number in range(1, 51):
            evaluator.submit(state(), number)
        assert len(list(evaluator.collect(finish=True))) == 50
        assert aggregated[0] == (1, [1, 3])
        assert aggregated[-1] == (50, [1, 3])
        assert 10 <= grid.now < 11
        said = "clients that have not evaluated round 1 by the end of the run: 1 of 3"
        assert said in caplog.text
        assert caplog.text.count("have not evaluated") == 1

    def test_a_silent_client_does_not_hold_up_all_rounds(self, caplog, monkeypatch):
        monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
        grid = HandlerGrid(
            lambda m: None if m.metadata.dst_node_id == 2 else measure(m)
        )
        evaluator, aggregated = clients(grid, most_rounds=2)
        for number in range(1, 6):
            evaluator.submit(state(), number)
            assert len(list(evaluator.collect(finish=False))) == (number > 2)
            assert len(evaluator.pending) == min(number, 2)
        assert aggregated == [(number, [1, 3]) for number in (1, 2, 3)]
        assert caplog.text.count("have not evaluated round 1 while 2 later ones") == 1
        assert "round 2" not in caplog.text

    def test_a_message_that_is_not_taken_is_not_waited_for(self, caplog, monkeypatch):
        monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
        grid = HandlerGrid(measure)
        evaluator, aggregated = clients(grid)
        grid.refuse = [None]
        evaluator.submit(state(), 1)
        (evaluation,) = evaluator.collect(finish=False)
        assert aggregated == [(1, [])]
        assert evaluation.metrics is None
        evaluator.submit(state(), 2)
        for node in (1, 2, 3):
            assert caplog.text.count(f"no evaluation from node {node}: the grid") == 1

    def test_rounds_that_are_closed_are_forgotten(self):
        grid = HandlerGrid(lambda message: None)
        evaluator, _ = clients(grid)
        evaluator.submit(state(), 1)
        evaluator.close()
        assert list(evaluator.collect(finish=True)) == []
        assert grid.now == 0

    def test_clients_do_not_evaluate_the_initial_model(self):
        def handle(message):
            kind = message.metadata.message_type
            return measure(message) if kind == "evaluate" else plus_one(message)

        grid = HandlerGrid(handle, node_ids=[1, 2])
        run = Run(grid, seconds=(1.0, 2.0))
        evaluator, aggregated = clients(grid, nodes=(1, 2), box=run.mailbox)
        run.evaluators = (evaluator,)
        run.go()
        assert [number for number, _ in aggregated] == [1, 2, 3]
        assert run.recorder.due == [("clients", number) for number in (1, 2, 3)]
        assert run.state.updates == 6

    def test_an_evaluation_that_a_dead_worker_answered_is_sent_again(self):
        numbers = count()

        def handle(message):
            if next(numbers) in (1, 3):
                return Message(Error(code=0, reason=DIED), reply_to=message)
            return measure(message)

        grid = HandlerGrid(handle)
        grid.has_ray_workers = True
        evaluator, aggregated = clients(grid)
        evaluator.submit(state(4.0), 1)
        assert list(evaluator.collect(finish=True))
        assert aggregated == [(1, [1, 2, 3])]
        assert [m.metadata.dst_node_id for m in grid.pushed] == [1, 2, 3, 2, 2]
        assert weight(grid.pushed[-1].content["arrays"]) == 4.0
