"""Adapters that a client keeps: PEFT's names travel without that of the adapter."""

import pytest
import torch
from flwr.app import Context, RecordDict

from flwr_asyncdrop import load_lora, load_personal, lora_state, save_personal, wire
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.submodel import extract, lora_plan, silenced
from tests.submodel.lora.models import Layers, Text, vectors, with_noise

peft = pytest.importorskip("peft")

KEYS = wire.RecordKeys()
LAYER = "base_model.model.layers.1.up"


def layers(**options):
    torch.manual_seed(0)
    options = {"r": 3, "target_modules": ["up", "down"], **options}
    return with_noise(peft.get_peft_model(Layers(2), peft.LoraConfig(**options)))


def context():
    return Context(1, 2, {}, RecordDict(), {})


def task(state, indices):
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    return wire.make_task(
        wire.to_record(extract(state, indices)),
        wire.kept_entries(indices, shapes, KEYS.arrays),
        wire.TaskConfig(1, 0, None, None),
        node_id=5,
        keys=KEYS,
    )


def factors(state):
    """Return copies of what travels of the layer, by the ends of their names."""
    return {
        name.removeprefix(f"{LAYER}."): tensor.clone()
        for name, tensor in state.items()
        if name.startswith(f"{LAYER}.")
    }


@pytest.mark.parametrize("units", [None, "ranks", "adapters", "layers"])
@pytest.mark.parametrize(
    "names", [[LAYER], [f"{LAYER}.lora_A", f"{LAYER}.lora_B.weight"]]
)
def test_a_table_of_components(units, names):
    """By hand: what is known of a component is the client's, else the server's."""
    server = {n: t.clone() for n, t in lora_state(layers()).items()}
    plan, mine = lora_plan(layers(), units=units or "ranks"), context()
    table, known = factors(server), factors(server)
    for tensor in known.values():
        tensor.zero_()
    generator = torch.Generator().manual_seed(0)
    for step in range(1, 7):
        keep = tuple(
            torch.randperm(g.size, generator=generator)[: 1 + step % 2].sort().values
            for g in plan.groups
        )
        indices = {} if units is None or step == 5 else plan.indices(keep)
        message = task(server, indices)
        model = layers()
        load_lora(model, message.content["arrays"])
        load_personal(mine, model, message, *names)
        here = {n: torch.ones_like(t) for n, t in server.items()}
        for name, kept in factors(silenced(here, indices)).items():
            full = f"{LAYER}.{name}"
            dims = {full: indices[full]} if full in indices else {}
            expected = extract({full: table[name]}, dims)[full]
            assert torch.equal(lora_state(model)[full], expected)
            was_known = extract({full: known[name]}, dims)[full].bool()
            moved = expected + step
            with torch.no_grad():
                lora_state(model)[full].add_(step)
            replied = torch.where(
                was_known, extract(server, indices)[full] + (moved - expected), moved
            )
            table[name] += step * kept
            known[name] = torch.maximum(known[name], kept)
            here[full] = replied
        save_personal(mine, model, message, *names)
        for name in table:
            full = f"{LAYER}.{name}"
            torch.testing.assert_close(lora_state(model)[full], here[full])


def test_a_module_that_is_trained_whole():
    options = {"target_modules": ["fc"], "modules_to_save": ["head"]}
    models = [peft.get_peft_model(Text(), peft.LoraConfig(**options)) for _ in "12"]
    trained, other = models
    message, mine = task(lora_state(other), {}), context()
    save_personal(mine, trained, message, "base_model.model.head")
    load_personal(mine, other, message, "base_model.model.head")
    head = "base_model.model.head.weight"
    assert torch.equal(lora_state(other)[head], lora_state(trained)[head])


@pytest.mark.parametrize("narrowed", [False, True])
def test_what_does_not_travel_cannot_be_kept(narrowed):
    """With the full model it ended in a StopIteration, after training."""
    model = layers()
    plan = lora_plan(model, vectors())
    keep = tuple(torch.tensor([0]) for _ in plan.groups)
    message = task(lora_state(model), plan.indices(keep) if narrowed else {})
    load_lora(model, message.content["arrays"])
    name = f"{LAYER}.base_layer"
    for call in (load_personal, save_personal):
        with pytest.raises(ConfigError, match=f"'{name}.bias' is not among the arrays"):
            call(context(), model, message, name)
