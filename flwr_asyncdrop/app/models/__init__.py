"""The models that the examples and the experiments train."""

from flwr_asyncdrop.app.models.factory import (
    MODEL_NAMES,
    NEXT_WORD_MODELS,
    TEXT_MODELS,
    build_model,
)

__all__ = ["MODEL_NAMES", "NEXT_WORD_MODELS", "TEXT_MODELS", "build_model"]
