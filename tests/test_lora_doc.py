"""What docs/lora.md shows runs."""

import re
from pathlib import Path

import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from flwr_asyncdrop import HeteroAsyncDrop, LocalGrid
from flwr_asyncdrop.submodel import LoraPlan, load_lora, lora_plan, lora_state
from tests.submodel.lora.models import Layers, vectors

peft = pytest.importorskip("peft")
TEXT = (Path(__file__).parents[1] / "docs" / "lora.md").read_text(encoding="utf-8")


def run_block(heading: str, **names):
    """Run the first Python block under a heading."""
    section = TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    block = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0]
    exec(compile(block, "lora.md", "exec"), names)  # noqa: S102  # our own
    return names


class Causal(Layers):
    """`Layers` with the interface of a language model."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.config = nn.Embedding(20, 8), {}

    def forward(self, input_ids):
        return super().forward(self.embed(input_ids))


def base() -> nn.Module:
    torch.manual_seed(0)
    return Causal()


def get_peft_model(model, config):
    config.target_modules = ["up", "down"]  # PEFT has to know what "all-linear" is
    return peft.get_peft_model(model, config)


TOKENS = torch.randint(0, 20, (2, 4), generator=torch.Generator().manual_seed(0))


def train(model) -> None:
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    model(input_ids=TOKENS).square().mean().backward()
    torch.optim.SGD(trained, lr=0.1).step()


def client_app() -> ClientApp:
    app = ClientApp()

    @app.train()
    def train_(msg: Message, context: Context) -> Message:
        model = get_peft_model(base(), peft.LoraConfig(r=8))
        names = run_block(
            "Client", msg=msg, model=model, train=train, ArrayRecord=ArrayRecord
        )
        metrics = MetricRecord({"num-examples": 1})
        content = RecordDict({"arrays": names["reply"], "metrics": metrics})
        return Message(content=content, reply_to=msg)

    @app.evaluate()
    def evaluate(msg: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": 1, "loss": 0.0})
        return Message(content=RecordDict({"metrics": metrics}), reply_to=msg)

    return app


def test_server_and_client():
    with LocalGrid(client_app, num_nodes=2, workers=0) as grid:
        names = run_block(
            "Server",
            grid=grid,
            get_peft_model=get_peft_model,
            LoraConfig=peft.LoraConfig,
            base=base(),
            tokens=TOKENS,
        )
    assert isinstance(names["strategy"].plan, LoraPlan)


class OwnLayers(nn.Module):
    """Adapters of linear layers of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(6, 5).requires_grad_(False)
        self.down, self.up = nn.Linear(6, 4, bias=False), nn.Linear(4, 5, bias=False)

    def forward(self, x):
        return self.base(x) + 2 * self.up(self.down(x))


def test_pairs():
    model = OwnLayers()
    names = {"lora_plan": lora_plan, "load_lora": load_lora, "model": model}
    found = run_block(
        "Other adapters", inputs=vectors(6), arrays=lora_state(model), **names
    )
    assert found["plan"].num_units == 4


def test_aggregation():
    model = peft.get_peft_model(Layers(), peft.LoraConfig(target_modules=["up"]))
    names = {"model": model, "inputs": vectors(), "plan": lora_plan(model, vectors())}
    run_block("Aggregation", HeteroAsyncDrop=HeteroAsyncDrop, **names)
