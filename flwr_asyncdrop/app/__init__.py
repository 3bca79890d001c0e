"""The ready app: run-config, data, models, training."""
