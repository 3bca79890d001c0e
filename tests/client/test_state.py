"""The states of the devices that one node plays lie side by side in its context."""

import torch
from flwr.app import Context, RecordDict

from flwr_asyncdrop.client.state import read_client_state, write_client_state


def test_each_device_has_its_own_and_nothing_that_it_has_given_up():
    context = Context(0, 0, {}, RecordDict(), {})
    for number in (1, 11):
        ones = {"w": torch.full((2,), float(number))}
        write_client_state(context, number, {"scaffold.control": ones, "old": ones})

    write_client_state(context, 1, {"scaffold.control": {"w": torch.zeros(2)}})

    assert read_client_state(context, 2) == {}
    first, second = (read_client_state(context, number) for number in (1, 11))
    assert list(first) == ["scaffold.control"]
    assert torch.equal(first["scaffold.control"]["w"], torch.zeros(2))
    assert second.keys() == {"scaffold.control", "old"}
    assert torch.equal(second["old"]["w"], torch.full((2,), 11.0))
