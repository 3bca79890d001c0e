"""The frozen base with new adapters, and how these are trained and tested."""

import math
from importlib.util import find_spec

import torch
from flwr.app import UserConfig
from peft import (
    LoraConfig,
    PeftModel,
    TaskType,
    get_peft_model,
    prepare_model_for_kbit_training,
)
from torch.utils.data import DataLoader
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from llm_lora.base import base_folder
from llm_lora.dataset import ANSWERS

logging.disable_progress_bar()
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def precision() -> str:
    """Return what the base is held in: 4 bits need a GPU and bitsandbytes."""
    return (
        "4 bits" if DEVICE.type == "cuda" and find_spec("bitsandbytes") else "float32"
    )


def folder_of(config: UserConfig) -> str:
    """Return where the base is, as a run config says."""
    return base_folder(config["base-model"], config["data-file"], config["base-steps"])


def build_model(folder: str, rank: int) -> tuple[PeftModel, PreTrainedTokenizerBase]:
    """Return the base with new adapters in its linear layers, and its tokenizer."""
    if precision() == "4 bits":
        four_bits = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_compute_dtype=torch.bfloat16,
        )
        base = AutoModelForCausalLM.from_pretrained(
            folder, quantization_config=four_bits, device_map={"": 0}
        )
        base = prepare_model_for_kbit_training(base, use_gradient_checkpointing=False)
    else:
        base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    lora = LoraConfig(
        r=rank,
        lora_alpha=2 * rank,
        target_modules="all-linear",
        task_type=TaskType.CAUSAL_LM,
    )
    base.config.use_cache = False
    model = get_peft_model(base, lora)
    return model.to(DEVICE), AutoTokenizer.from_pretrained(folder)


def train(model: PeftModel, loader: DataLoader, epochs: int, lr: float) -> float:
    """Train the adapters in place; return the mean loss."""
    model.train()
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=lr, weight_decay=0.0)
    losses = []
    for _ in range(epochs):
        for batch in loader:
            optimizer.zero_grad()
            loss = model(**batch.to(DEVICE)).loss
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


@torch.no_grad()
def test(
    model: PeftModel, loader: DataLoader, tokenizer: PreTrainedTokenizerBase
) -> tuple[float, float]:
    """Return the perplexity of the answers, and the share of right ones."""
    model.eval()
    bad, good = (tokenizer.encode(a, add_special_tokens=False)[-1] for a in ANSWERS)
    loss, correct = 0.0, 0
    for batch in loader:
        output = model(**batch.to(DEVICE))
        answers = batch["labels"][:, -1]
        loss += output.loss.item() * len(answers)
        logits = output.logits[:, -2]
        says_good = logits[:, good] > logits[:, bad]
        correct += (says_good == (answers == good)).sum().item()
    size = len(loader.dataset)
    return math.exp(loss / size), correct / size
