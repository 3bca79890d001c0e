"""The run-config of ``flwr run``: its keys, and what they may be."""

from flwr_asyncdrop.app.config.run_config import INCIDENTAL, IRRELEVANT, RunConfig

__all__ = ["INCIDENTAL", "IRRELEVANT", "RunConfig"]
