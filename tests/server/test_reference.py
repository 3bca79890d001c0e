"""The real loop against the whole algorithm written down naively, bit for bit.

The reference knows no index maps, no messages and no sub-tensors: its masks are dense
0/1 matrices written by hand for two networks of a few layers, and its fleet is a list.
"""

import pytest
import torch

from flwr_asyncdrop import wire
from flwr_asyncdrop.fleet.profiles import DeviceProfile
from flwr_asyncdrop.seeding import torch_generator
from tests.grids import HandlerGrid
from tests.runs import Recorder, answer, mlp, record, residual_mlp
from tests.strategies import STRATEGIES

SECONDS = (1.0, 1.4, 2.3, 3.1)
UPDATES = 20
RATE = 0.4
SIZES = (6, 5)  # hidden units of `mlp`
FULL_FLOPS = 4 * 6 + 6 * 5 + 5 * 3
BLOCKS = 5  # of `residual_mlp`


def trained(weights):
    """Local training that treats every coordinate alike, so that slicing commutes."""
    return weights + 0.1 * torch.cos(5.0 * weights)


def random_keep(number, rank, state, initial):
    """Alg. 2: units drawn anew for order `number`, group after group."""
    generator = torch_generator(3, "mask", number)
    drops = counts(generator)
    draws = [torch.randperm(size, generator=generator) for size in SIZES]
    return [
        sorted(draw[drop:].tolist()) for draw, drop in zip(draws, drops, strict=True)
    ]


def counts(generator):
    """0.4 of 6 units is 2.4: in four of ten tasks 3 of them go, else 2; of 5, 2."""
    return (3 if float(torch.rand((), generator=generator)) >= 0.6 else 2), 2


def smart_keep(number, rank, state, initial):
    """Alg. 3: the rank drops its window of the units that have moved most."""
    drops = counts(torch_generator(3, "mask", number))
    moved = {name: (state[name] - initial[name]).abs().double() for name in state}
    scores = [
        moved["0.weight"].sum(1) + moved["0.bias"] + moved["2.weight"].sum(0),
        moved["2.weight"].sum(1) + moved["2.bias"] + moved["4.weight"].sum(0),
    ]
    return [
        outside_window(score.tolist(), rank, drop)
        for score, drop in zip(scores, drops, strict=True)
    ]


def outside_window(scores, rank, drop):
    size = len(scores)
    order = sorted(range(size), key=lambda unit: (-scores[unit], unit))
    start = min(rank * (size // len(SECONDS)), size - drop)
    return sorted(order[:start] + order[start + drop :])


def channel_part(keep):
    """Return what gives a task's masks and its share of the multiplications."""

    def part(number, rank, state, initial):
        first, second = keep(number, rank, state, initial)
        flops = 4 * len(first) + len(first) * len(second) + len(second) * 3
        return dense_masks(first, second), flops / FULL_FLOPS

    return part


def block_part(number, rank, state, initial):
    """The ablation: the rank drops its window of the blocks that have moved most."""
    moved = {n: (state[n] - initial[n]).abs().double().sum().item() for n in state}
    names = [[f"{n}.layer.weight", f"{n}.layer.bias"] for n in range(1, BLOCKS + 1)]
    scores = [moved[weight] + moved[bias] for weight, bias in names]
    kept = outside_window(scores, rank, 2)  # 0.4 of 5
    masks = {name: torch.ones_like(tensor) for name, tensor in state.items()}
    for block in set(range(BLOCKS)) - set(kept):
        for name in names[block]:
            masks[name].zero_()
    flops = 4 * 6 + len(kept) * 6 * 6 + 6 * 3
    return masks, flops / (4 * 6 + BLOCKS * 6 * 6 + 6 * 3)


def dense_masks(first, second):
    rows, columns = torch.zeros(6), torch.zeros(5)
    rows[first], columns[second] = 1.0, 1.0
    return {
        "0.weight": rows[:, None].expand(6, 4),
        "0.bias": rows,
        "2.weight": columns[:, None] * rows[None, :],
        "2.bias": columns,
        "4.weight": columns[None, :].expand(3, 5),
        "4.bias": torch.ones(3),
    }


def reference(part, alpha, mode="sliced", net=mlp):
    """Return the model after each update, with its time and device."""
    state = {name: tensor.clone() for name, tensor in net().state_dict().items()}
    initial = {name: tensor.clone() for name, tensor in state.items()}
    flying, now, number, merged = [], 0.0, 0, []
    idle = list(range(len(SECONDS)))
    while len(merged) < UPDATES:
        while idle and len(flying) < UPDATES - len(merged):
            device = idle.pop(0)
            masks, share = part(number, device, state, initial)
            due = now + SECONDS[device] * (share if mode == "sliced" else 1.0)
            result = {name: trained(tensor) for name, tensor in state.items()}
            flying.append((due, number, device, masks, result))
            number += 1
        flying.sort(key=lambda order: order[:2])
        now, _, device, masks, result = flying.pop(0)
        for name, old in state.items():
            mixed = torch.lerp(old, result[name], alpha)
            state[name] = torch.where(masks[name] == 1, mixed, old)
        idle.append(device)
        merged.append((now, device, {name: t.clone() for name, t in state.items()}))
    return merged


class Snapshots(Recorder):
    def __init__(self):
        super().__init__(len(SECONDS))
        self.states = []

    def on_update(self, state, merged):
        super().on_update(state, merged)
        self.states.append({name: t.clone() for name, t in state.arrays.items()})


def train(message):
    state = wire.from_record(message.content["arrays"])
    return answer(message, {name: trained(tensor) for name, tensor in state.items()})


# Without 2 of 6 and 2 of 5 units 3 x 4 is left of a 5 x 6 matrix, and so on; without 3
# of 6 3 x 3. A block has 6 weights and a bias for each of 6 units.
MISSING = {
    mlp: {
        2 * 4 + 2 + (30 - 12) + 2 + 2 * 3,
        3 * 4 + 3 + (30 - 9) + 2 + 2 * 3,
    },
    residual_mlp: {2 * 6 * (6 + 1)},
}


def num_weights(state):
    return sum(tensor.numel() for tensor in state.values())


@pytest.mark.parametrize(
    ("algorithm", "net", "part"),
    [
        ("asyncdrop", mlp, channel_part(random_keep)),
        ("hetero-asyncdrop", mlp, channel_part(smart_keep)),
        ("layerwise-asyncdrop", residual_mlp, block_part),
    ],
)
@pytest.mark.parametrize(
    ("alpha", "mode"), [(0.5, "sliced"), (1.0, "sliced"), (0.5, "masked")]
)
@pytest.mark.usefixtures("no_settling")
def test_the_loop_equals_the_naive_algorithm(algorithm, net, part, alpha, mode):
    snapshots = Snapshots()
    strategy = STRATEGIES[algorithm](
        net(),
        torch.zeros(1, 4),
        drop_rate=RATE,
        alpha=alpha,
        mode=mode,
        in_flight=len(SECONDS),
        fraction_evaluate=0.0,
        fleet=lambda count: [DeviceProfile(seconds) for seconds in SECONDS],
        seed=3,
        callbacks=[snapshots],
    )
    grid = HandlerGrid(train, node_ids=range(1, 5))
    initial = record(net().state_dict())
    result = strategy.start(grid, initial, num_rounds=UPDATES // len(SECONDS))
    expected = reference(part, alpha, mode, net)
    assert len(grid.pushed) == len(expected) == UPDATES
    assert snapshots.times == [time for time, _, _ in expected]
    devices = [merged.order.device for merged in snapshots.merged]
    assert devices == [device for _, device, _ in expected]
    assert any(merged.staleness > 1 for merged in snapshots.merged)
    for found, (_, _, wanted) in zip(snapshots.states, expected, strict=True):
        for name, tensor in wanted.items():
            assert torch.equal(found[name], tensor), name
    sent = [wire.from_record(message.content["arrays"]) for message in grid.pushed]
    missing = {num_weights(net().state_dict()) - num_weights(part) for part in sent}
    assert missing == (MISSING[net] if mode == "sliced" else {0})
    final = wire.from_record(result.arrays)
    assert all(torch.equal(final[name], t) for name, t in expected[-1][2].items())


def test_the_reference_tells_the_algorithms_apart():
    random, smart = (
        reference(channel_part(keep), 0.5)[-1][2] for keep in (random_keep, smart_keep)
    )
    assert not torch.equal(random["2.weight"], smart["2.weight"])
