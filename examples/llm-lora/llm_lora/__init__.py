"""A small Llama, fine-tuned asynchronously by unequal devices with LoRA."""
