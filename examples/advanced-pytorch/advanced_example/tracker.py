"""A tracker of experiments, in the place of Weights & Biases or MLflow."""

import json
from collections.abc import Mapping
from pathlib import Path


class Tracker:
    """Appends what is logged to a file, a line each."""

    def __init__(self, path: Path, config: Mapping[str, object]) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
        self.log(0, {"config": dict(config)})

    def log(self, step: int, metrics: Mapping[str, object]) -> None:
        """Log metrics of a round."""
        with self._path.open("a") as file:
            file.write(json.dumps({"step": step, **metrics}) + "\n")
