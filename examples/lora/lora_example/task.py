"""The model and its adapters, the tokenizer, and how to train and test."""

from functools import cache

import torch
from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import nn
from torch.utils.data import DataLoader
from transformers import (
    BatchEncoding,
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
)

from lora_example.requests import INTENTS, make_requests, vocabulary

NUM_TRAIN, NUM_TEST = 2000, 500


def build_model() -> PeftModel:
    """Return the frozen base with new adapters."""
    lora = LoraConfig(
        r=8,
        lora_alpha=16,
        target_modules=["query", "value", "dense"],
        modules_to_save=["classifier"],
        task_type=TaskType.SEQ_CLS,
    )
    return get_peft_model(build_base(), lora)


def build_base() -> BertForSequenceClassification:
    """Return the base model: the same random weights at each node.

    They stand for those of a pre-trained model, so that nothing is downloaded.
    """
    config = BertConfig(
        vocab_size=len(tokenizer()),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=256,
        max_position_embeddings=32,
        num_labels=len(INTENTS),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return BertForSequenceClassification(config)


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer that knows every word of the requests."""
    words = ["[PAD]", "[UNK]", *vocabulary()]
    vocab = {word: number for number, word in enumerate(words)}
    by_word = Tokenizer(WordLevel(vocab, unk_token="[UNK]"))
    by_word.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=by_word, pad_token="[PAD]", unk_token="[UNK]"
    )


def collate(examples: list[tuple[str, int]]) -> BatchEncoding:
    """Turn requests and intents into the keyword arguments of the model."""
    texts, intents = zip(*examples, strict=True)
    batch = tokenizer()(list(texts), padding=True, return_tensors="pt")
    batch["labels"] = torch.tensor(intents)
    return batch


def load_data(partition_id: int, num_partitions: int, batch_size: int) -> DataLoader:
    """Return the training requests of one node."""
    texts, intents = make_requests(NUM_TRAIN, seed=0)
    examples = list(zip(texts, intents, strict=True))[partition_id::num_partitions]
    return DataLoader(examples, batch_size, shuffle=True, collate_fn=collate)


def load_test_data() -> DataLoader:
    """Return the server's requests; some client has almost all of them, too."""
    examples = list(zip(*make_requests(NUM_TEST, seed=1), strict=True))
    return DataLoader(examples, batch_size=100, collate_fn=collate)


def train(
    net: nn.Module, loader: DataLoader, epochs: int, lr: float, device: torch.device
) -> float:
    """Train in place; return the mean loss."""
    net.to(device).train()
    trained = [weight for weight in net.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=lr)
    losses = []
    for _ in range(epochs):
        for batch in loader:
            optimizer.zero_grad()
            loss = net(**batch.to(device)).loss
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


@torch.no_grad()
def test(
    net: nn.Module, loader: DataLoader, device: torch.device
) -> tuple[float, float]:
    """Return the mean loss and the accuracy."""
    net.to(device).eval()
    loss, correct = 0.0, 0
    for batch in loader:
        output = net(**batch.to(device))
        loss += output.loss.item() * len(batch["labels"])
        correct += (output.logits.argmax(1) == batch["labels"]).sum().item()
    size = len(loader.dataset)
    return loss / size, correct / size
