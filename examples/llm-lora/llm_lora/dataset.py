"""Reviews as questions to a language model, and its tokens."""

from functools import partial

import torch
from torch.utils.data import DataLoader
from transformers import BatchEncoding, PreTrainedTokenizerBase

from llm_lora.reviews import Review, load_reviews

QUESTION = " Verdict :"
ANSWERS = (" bad", " good")
LENGTH = 96
"""Tokens of a review that the model sees: its last ones."""
NUM_TESTED = 500


def encode(reviews: list[Review], tokenizer: PreTrainedTokenizerBase) -> BatchEncoding:
    """Ask for the verdict on each review; only the answer counts for the loss."""
    tokens = partial(tokenizer.encode, add_special_tokens=False)
    rows = [
        [*tokens(text.replace("<br />", " "))[-LENGTH:], *tokens(QUESTION)]
        for text, _ in reviews
    ]
    answers = [tokens(ANSWERS[label])[-1] for _, label in reviews]
    width = max(map(len, rows)) + 1
    batch = {
        # Many models have no token for padding, and the mask hides what it is.
        "input_ids": torch.zeros(len(rows), width, dtype=torch.int64),
        "attention_mask": torch.zeros(len(rows), width, dtype=torch.int64),
        "labels": torch.full((len(rows), width), -100),
    }
    for place, (row, answer) in enumerate(zip(rows, answers, strict=True)):
        size = len(row) + 1
        batch["input_ids"][place, -size:] = torch.tensor([*row, answer])
        batch["attention_mask"][place, -size:] = 1
        batch["labels"][place, -1] = answer
    return BatchEncoding(batch)


def load_data(
    partition_id: int,
    num_partitions: int,
    batch_size: int,
    data_file: str,
    tokenizer: PreTrainedTokenizerBase,
) -> DataLoader:
    """Return the training reviews of one node."""
    reviews = load_reviews(data_file, "train")[partition_id::num_partitions]
    collate = partial(encode, tokenizer=tokenizer)
    return DataLoader(reviews, batch_size, shuffle=True, collate_fn=collate)


def load_test_data(data_file: str, tokenizer: PreTrainedTokenizerBase) -> DataLoader:
    """Return the server's reviews."""
    reviews = load_reviews(data_file, "test")[:NUM_TESTED]
    collate = partial(encode, tokenizer=tokenizer)
    return DataLoader(reviews, batch_size=50, collate_fn=collate)
