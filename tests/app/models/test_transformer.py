import pytest
import torch
import torch.nn.functional as F

from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.experiment import initial_model
from flwr_asyncdrop.app.models import NEXT_WORD_MODELS, build_model
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.masks import RandomMask
from flwr_asyncdrop.submodel import extract, plan_submodels
from flwr_asyncdrop.submodel.savings import savings
from tests.masks.choosing import choose

LENGTH, VOCABULARY = 12, 30


def build(each_token=False, width=1.0):
    outputs = VOCABULARY if each_token else 3
    model = build_model(
        "transformer",
        (LENGTH,),
        outputs,
        seed=0,
        vocabulary=VOCABULARY,
        width=width,
        each_token=each_token,
    )
    return model.eval()


def texts(count, padding=0):
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, VOCABULARY, (count, LENGTH), generator=generator)
    tokens[:, :padding] = 0
    return tokens


def by_hand(model, text):
    """Compute the logits of a text without padding, token by token, head by head."""
    x = model.tokens.weight[text] + model.positions
    block = model.block
    y, attention = block.norm1(x), block.attention
    heads = []
    for head in range(4):
        rows = slice(8 * head, 8 * head + 8)
        q, k, v = (
            y @ layer.weight[rows].T
            for layer in (attention.query, attention.key, attention.value)
        )
        mixed = []
        for place in range(len(text)):
            seen = place + 1 if model.each_token else len(text)
            scores = torch.stack([q[place] @ k[s] for s in range(seen)]) / 8**0.5
            mixed.append(scores.softmax(0) @ v[:seen])
        heads.append(torch.stack(mixed))
    x = x + attention.output(torch.cat(heads, dim=1))
    x = x + block.output(F.relu(block.hidden(block.norm2(x))))
    x = model.norm(x)
    return model.output(x if model.each_token else x.mean(0))


@pytest.mark.parametrize("each_token", [False, True])
def test_logits_by_hand(each_token):
    model, tokens = build(each_token), texts(2)
    expected = torch.stack([by_hand(model, text) for text in tokens])
    assert torch.allclose(model(tokens), expected, atol=1e-5)


@pytest.mark.parametrize("each_token", [False, True])
def test_padding_makes_no_difference(each_token):
    model, tokens = build(each_token), texts(2, padding=5)
    before = model(tokens)
    with torch.no_grad():
        model.tokens.weight[0] += torch.randn(32)
    after = model(tokens)
    words = (slice(None), slice(5, None)) if each_token else slice(None)
    assert torch.equal(before[words], after[words])


@pytest.mark.parametrize("each_token", [False, True])
def test_a_text_without_a_word_has_finite_logits_and_gradients(each_token):
    model = build(each_token)
    logits = model(texts(2, padding=LENGTH))
    logits.sum().backward()
    assert logits.isfinite().all()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_no_token_sees_those_after_it():
    model, tokens = build(each_token=True), texts(3)
    other = tokens.clone()
    other[:, 7:] = tokens[:, 7:].flip(0)
    one, two = model(tokens), model(other)
    assert torch.equal(one[:, :7], two[:, :7])
    assert not torch.allclose(one[:, 7:], two[:, 7:])


@pytest.mark.parametrize("each_token", [False, True])
def test_the_planner_finds_heads_and_feed_forward_units(each_token):
    model, tokens = build(each_token), texts(2, padding=3)
    plan = plan_submodels(model, tokens)
    assert [group.size for group in plan.groups] == [4, 64]
    generator = torch.Generator().manual_seed(0)
    keep = choose(RandomMask(0.25), plan.groups, None, 0, 1, generator)
    assert [len(units) for units in keep] == [3, 48]
    small = extract(model.state_dict(), plan.indices(keep))
    blocks = [
        sum(v.numel() for k, v in state.items() if k.startswith("block."))
        for state in (small, model.state_dict())
    ]
    assert blocks[0] / blocks[1] == pytest.approx(0.75, abs=0.01)
    (cost,) = savings(plan, model, tokens, [0.25])
    assert cost.bytes_ratio < 0.85
    assert cost.flops_ratio < 0.8


@pytest.mark.parametrize("width", [0.5, 2.0])
def test_width(width):
    model = build(width=width)
    assert model.tokens.weight.shape == (VOCABULARY, 32 * width)
    attention = model.block.attention
    assert attention.query.weight.shape == (32 * width, 32 * width)
    assert len(model.block.hidden.weight) == 64 * width


def test_a_task_of_next_tokens_gets_a_language_model():
    config = RunConfig.parse(
        {
            "dataset": "tests.app.own:counting",
            "model": "transformer",
            "partition": "iid",
        }
    )
    model = initial_model(config)
    assert model.each_token
    assert model(torch.ones(2, 8, dtype=torch.int64)).shape == (2, 8, 7)


def test_other_models_have_no_outputs_of_each_token():
    assert NEXT_WORD_MODELS == ("transformer",)
    with pytest.raises(ConfigError, match="'lstm' has no outputs of each token"):
        build_model("lstm", (4,), 9, 0, vocabulary=9, each_token=True)
