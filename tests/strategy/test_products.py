"""Products are merged where adapters are products."""

import pytest
import torch

from flwr_asyncdrop import FedBuff, HeteroAsyncDrop
from flwr_asyncdrop.aggregation import Mixing, ProductBuffered, ProductMixing
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.submodel import lora_plan
from tests.submodel.lora.models import OWN_PAIRS, Own, vectors


class Bottleneck(Own):
    def forward(self, x):
        return self.base(x) + torch.relu(x @ self.down.T) @ self.up.T


@pytest.mark.parametrize("strategy", [FedBuff, HeteroAsyncDrop])
@pytest.mark.parametrize("clip_norm", [0.0, 1.0])
@pytest.mark.parametrize("merges", [ProductMixing, ProductBuffered])
def test_adapters_with_an_activation(strategy, clip_norm, merges):
    options = {"clip_norm": clip_norm} if clip_norm else {}
    plans = [lora_plan(m, vectors(6), pairs=OWN_PAIRS) for m in (Bottleneck(), Own())]
    aggregator = merges(2, pairs=OWN_PAIRS) if merges is ProductBuffered else merges()
    with pytest.raises(ConfigError, match=f"{merges.__name__} merges products.* down"):
        strategy(plan=plans[0], aggregator=aggregator, **options)
    strategy(plan=plans[0], aggregator=Mixing(), **options)
    strategy(plan=plans[1], aggregator=aggregator, **options)
