import pytest
from flwr.app import Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from flwr_asyncdrop.flower_internals.identity import assume_identity, stamp
from flwr_asyncdrop.simulation.task_queue import TaskQueue


def message(node: int, number: int = 0) -> Message:
    assume_identity(1)
    made = Message(RecordDict(), node, "train")
    stamp(made, message_id=str(number))
    return made


def test_oldest_of_the_free_nodes_comes_first() -> None:
    queue = TaskQueue()
    a1, a2, b1, c1 = (message(node) for node in (1, 1, 2, 3))
    for each in (a1, a2, b1, c1):
        queue.push(each)
    assert queue.pop() is a1
    assert queue.pop() is b1  # a2 is older, but its node is busy
    queue.done(1)
    assert queue.pop() is a2  # older than c1
    assert queue.pop() is c1
    assert not queue


def test_nothing_to_take_while_the_only_node_is_busy() -> None:
    queue = TaskQueue()
    queue.push(message(1))
    queue.pop()
    queue.push(message(1))
    assert not queue
    with pytest.raises(IndexError):
        queue.pop()
    queue.done(1)
    assert queue


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("push"), st.integers(1, 4)),
            st.tuples(st.sampled_from(["pop", "done"]), st.just(0)),
            st.tuples(st.just("drop"), st.integers(0, 60)),
        ),
        max_size=60,
    )
)
def test_same_as_a_list_that_is_searched(steps: list[tuple[str, int]]) -> None:
    queue = TaskQueue()
    waiting: list[Message] = []
    busy: list[int] = []
    for number, (step, node) in enumerate(steps):  # of a drop it is a number
        if step == "push":
            waiting.append(message(node, number))
            queue.push(waiting[-1])
        elif step == "pop":
            free = [m for m in waiting if m.metadata.dst_node_id not in busy]
            assert bool(queue) == bool(free)
            if free:
                assert queue.pop() is free[0]
                waiting.remove(free[0])
                busy.append(free[0].metadata.dst_node_id)
        elif step == "drop":
            gone = range(node, node + 3)
            queue.drop({*map(str, gone)})
            waiting = [m for m in waiting if int(m.metadata.message_id) not in gone]
        elif busy:
            queue.done(busy.pop(0))
        kept = sum(map(len, queue._lines.values()))
        assert kept == len(waiting) + len(busy)
