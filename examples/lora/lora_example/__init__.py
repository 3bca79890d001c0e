"""LoRA adapters of a small BERT, fine-tuned asynchronously at unequal ranks."""
