"""The base: a small Llama that has read reviews, made here if it is not there."""

import hashlib
import os
import tempfile
from functools import partial
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.trainers import WordLevelTrainer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from llm_lora.dataset import ANSWERS, LENGTH, QUESTION
from llm_lora.reviews import load_reviews

VOCABULARY = 4096
BATCH = 32


def base_folder(base_model: str, data_file: str, steps: int) -> str:
    """Return the folder of the base; train it first if there is none.

    It is kept in ``~/.cache/llm-lora-example``, or where ``XDG_CACHE_HOME`` says, by
    what it was trained on. On several machines it has to be the same: train it on one,
    and give its folder as ``base-model``.
    """
    if base_model:
        return base_model
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    reviews = Path(data_file).expanduser().read_bytes() if data_file else b""
    key = hashlib.sha256(b"%b %d %d" % (reviews, steps, VOCABULARY)).hexdigest()[:12]
    folder = cache / "llm-lora-example" / key
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as unfinished:
            train_base(data_file, steps, Path(unfinished) / "base")
            try:
                (Path(unfinished) / "base").rename(folder)
            except OSError:  # another process was faster
                if not folder.exists():
                    raise
    return str(folder)


def train_base(data_file: str, steps: int, folder: Path) -> None:
    """Train a Llama to go on with reviews, and save it with its tokenizer.

    It has seen verdicts, too, but drawn by lot: what they mean is left to learn.
    """
    texts = [
        text.replace("<br />", " ") for text, _ in load_reviews(data_file, "train")
    ]
    tokenizer = train_tokenizer(texts)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(llama(len(tokenizer)))
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model.to(device).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        encode = partial(tokenizer.encode, add_special_tokens=False)
        lines = [torch.tensor(encode(text)[-LENGTH:]) for text in texts]
        verdicts = [torch.tensor(encode(QUESTION + answer)) for answer in ANSWERS]
        for step in range(steps):
            drawn = torch.randint(len(lines), (BATCH,))
            lots = torch.randint(len(verdicts), (BATCH,))
            rows = [
                torch.cat([lines[line], verdicts[lot]])
                for line, lot in zip(drawn, lots, strict=True)
            ]
            tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
            labels = tokens.masked_fill(tokens == tokenizer.pad_token_id, -100)
            for group in optimizer.param_groups:
                group["lr"] = 3e-3 * (1 - step / steps)
            optimizer.zero_grad()
            model(input_ids=tokens.to(device), labels=labels.to(device)).loss.backward()
            optimizer.step()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def llama(vocabulary: int) -> LlamaConfig:
    """Return the shape of the base."""
    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=2 * LENGTH,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
    )


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Return a tokenizer of the most frequent words."""
    by_word = Tokenizer(WordLevel(unk_token="[UNK]"))
    by_word.pre_tokenizer = Whitespace()
    words = [*QUESTION.split(), *(answer.strip() for answer in ANSWERS)]
    trainer = WordLevelTrainer(
        vocab_size=VOCABULARY, special_tokens=["[PAD]", "[UNK]"], show_progress=False
    )
    by_word.train_from_iterator([" ".join(words), *texts], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=by_word, pad_token="[PAD]", unk_token="[UNK]"
    )
