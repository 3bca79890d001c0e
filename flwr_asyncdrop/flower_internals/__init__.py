"""The only toucher of what Flower does not export."""
