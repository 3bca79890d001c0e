"""What one adds to flwr-asyncdrop from outside."""
