"""What a client forgot is noticed on the server, and named with its fix."""

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord
from torch import nn

from flwr_asyncdrop import (
    AsyncDrop,
    AsyncFedAvg,
    LocalGrid,
    load_submodel,
    speed_levels,
    wire,
)
from flwr_asyncdrop.exceptions import RunError
from flwr_asyncdrop.observers.unchanged import UnchangedReplies
from flwr_asyncdrop.server.fingerprint import fingerprint, is_unchanged
from flwr_asyncdrop.wire.advice import advice
from tests.grids import HandlerGrid
from tests.runs import Recorder, answer, mlp, record
from tests.strategy.test_strategy import ZEROS, log  # noqa: F401

pytestmark = pytest.mark.usefixtures("no_settling")


def run(handle, strategy=AsyncFedAvg, net=mlp, nodes=3, rounds=2, **changes):
    model = () if strategy is AsyncFedAvg else (net(), torch.zeros(2, 4))
    options = {"in_flight": nodes, "fleet": speed_levels, "fraction_evaluate": 0.0}
    grid = HandlerGrid(handle, node_ids=range(1, nodes + 1))
    strategy = strategy(*model, **{**options, **changes})
    return strategy.start(grid, record(net().state_dict()), num_rounds=rounds)


def untouched(message):
    return answer(message, message.content["arrays"].to_torch_state_dict())


def normalised():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


def training(message, *, train_another):
    """Train as users do: another object, or the very model that is returned."""
    model = normalised()
    returned = load_submodel(model, message.content["arrays"])
    other = normalised() if train_another else returned
    steps = torch.optim.SGD(other.parameters(), lr=0.1)
    returned.train()
    returned(torch.randn(5, 4)).square().sum().backward()
    steps.step()
    return answer(message, returned.state_dict())


class TestAnUnchangedReply:
    @pytest.mark.parametrize("strategy", [AsyncFedAvg, AsyncDrop])
    def test_it_is_warned_of_by_name_and_counted(self, log, strategy):  # noqa: F811
        run(
            lambda message: training(message, train_another=True),
            strategy,
            net=normalised,
        )
        # Running statistics changed: they say nothing of what was trained.
        for device in range(3):
            complaint = f"device {device} returned exactly the weights that it was sent"
            assert log.text.count(complaint) == 1
        assert "load_submodel(model, ...)" in log.text
        assert "replies with exactly the weights that were sent: 6 of 6" in log.text

    @pytest.mark.parametrize("strategy", [AsyncFedAvg, AsyncDrop])
    def test_one_that_was_trained_is_none(self, log, strategy):  # noqa: F811
        run(
            lambda message: training(message, train_another=False),
            strategy,
            net=normalised,
        )
        assert "exactly the weights" not in log.text

    def test_it_is_merged_like_any_other(self):
        recorder = Recorder()
        run(
            lambda message: answer(
                message, message.content["arrays"].to_torch_state_dict()
            ),
            callbacks=[recorder],
        )
        assert (len(recorder.merged), recorder.failures) == (6, [])

    def test_of_many_devices_the_first_few_are_named(self, log):  # noqa: F811
        run(
            lambda message: answer(
                message, message.content["arrays"].to_torch_state_dict()
            ),
            nodes=9,
        )
        assert log.text.count("returned exactly the weights") == 5
        assert "from 9 devices" in log.text

    def test_its_count_is_saved(self):
        counts, other = UnchangedReplies(), UnchangedReplies()
        counts.by_device = {3: 2}
        other.load_state_dict(counts.state_dict())
        assert other.by_device == {3: 2}


class TestFingerprint:
    def test_a_single_bit_of_a_single_weight(self):
        state = {"w": torch.randn(5, 3), "b": torch.randn(3), "s": torch.tensor(2.0)}
        sent = fingerprint(state)
        assert is_unchanged(state, sent)
        for name, tensor in state.items():
            for place in range(tensor.numel()):
                changed = tensor.clone()
                changed.view(-1).view(torch.int32)[place] ^= 1
                assert not is_unchanged({**state, name: changed}, sent)

    def test_weights_that_move_by_the_same_in_opposite_directions(self):
        state = {"w": torch.tensor([[0.5, 0.625], [0.75, 0.875]])}
        moved = state["w"] + torch.tensor([[0.0625, 0.03125], [-0.0625, -0.03125]])
        assert not is_unchanged({"w": moved}, fingerprint(state))

    def test_what_was_never_sent(self):
        assert not is_unchanged({"w": torch.ones(2)}, {})
        assert not is_unchanged({}, {})

    @pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.float16])
    def test_any_dtype_and_layout(self, dtype):
        state = {"w": torch.ones(7, 3).to(dtype).t()}
        assert is_unchanged(state, fingerprint(state))
        assert not is_unchanged({"w": state["w"] * 2}, fingerprint(state))


class TestAForgottenLine:
    def test_load_state_dict_is_named_in_the_error(self, log):  # noqa: F811
        def forgotten(message):
            mlp().load_state_dict(message.content["arrays"].to_torch_state_dict())

        def app():
            from flwr.clientapp import ClientApp

            found = ClientApp()
            found.train()(lambda message, context: forgotten(message))
            return found

        with (
            LocalGrid(app, num_nodes=2, workers=0) as grid,
            pytest.raises(RunError) as caught,
        ):
            AsyncDrop(mlp(), torch.zeros(1, 4), in_flight=2).start(
                grid, ArrayRecord(mlp().state_dict()), 1, train_config=ConfigRecord()
            )
        assert "load_submodel(model, message.content['arrays'])" in str(caught.value)
        assert "load_submodel(model, message.content['arrays'])" in log.text
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("keeps", ["the model", "a layer"])
    def test_what_a_client_keeps_is_named_where_an_evaluation_does_not_fit(
        self,
        log,  # noqa: F811
        keeps,
    ):
        """It was told that the server sends submodels, which it does not here."""

        def app():
            from flwr.clientapp import ClientApp

            found, kept = ClientApp(), mlp()

            @found.train()
            def train(message, context):
                load_submodel(kept, message.content["arrays"])
                return answer(message, kept.state_dict())

            @found.evaluate()
            def evaluate(message, context):
                model = kept
                if keeps == "a layer":
                    model = mlp()
                    model[2].load_state_dict(kept[2].state_dict())
                model.load_state_dict(message.content["arrays"].to_torch_state_dict())

            return found

        with LocalGrid(app, num_nodes=2, workers=0) as grid:
            AsyncDrop(mlp(), torch.zeros(1, 4), in_flight=2).start(
                grid, ArrayRecord(mlp().state_dict()), 1, train_config=ConfigRecord()
            )
        assert "no evaluation from node" in log.text
        assert "an evaluation gets the full model" in log.text
        assert "load_personal and save_personal" in log.text

    @pytest.mark.parametrize(
        "error",
        [
            "could not broadcast input array from shape (3,4) into shape (6,4)",
            "shape (4, 6) not compatible with provided weight shape (4, 3)",
        ],
    )
    def test_other_frameworks_are_told_of_masked_mode(self, error):
        assert "mode='masked'" in advice(error)
        assert advice("ZeroDivisionError: division by zero") == ""

    @pytest.mark.parametrize("reads", [ArrayRecord, wire.to_record])
    def test_a_dtype_that_numpy_lacks_is_told_which_to_return(self, reads):
        with pytest.raises(TypeError) as caught:
            reads({"w": torch.ones(2, dtype=torch.bfloat16)})
        assert ".float()" in advice(str(caught.value))

    def test_tensors_that_a_client_keeps_are_told_of_units(self):
        with pytest.raises(RuntimeError) as caught:
            torch.zeros(3) + torch.zeros(4)
        assert "each task has other units" in advice(str(caught.value))

    def test_a_fedprox_client_is_told_where_its_key_comes_from(self):
        with pytest.raises(KeyError) as caught:
            ConfigRecord({})["proximal-mu"]
        # As a runner of ours, and as a SuperNode of Flower's tells it.
        for reason in (
            f"KeyError: {caught.value}",
            f"<class 'KeyError'>:<'{caught.value}'>",
        ):
            assert "train_config=ConfigRecord({'proximal-mu': ...})" in advice(reason)
