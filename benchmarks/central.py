"""What a model reaches when it is trained in one place: the bar for federated runs.

``python -m benchmarks.central --dataset imdb --data-dir DIR --model lstm --lr 1``
prints the accuracy on the test set as it rises.
"""

import argparse
from collections.abc import Iterator, Sequence

import torch

from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.device import best_device
from flwr_asyncdrop.app.evaluation import evaluate
from flwr_asyncdrop.app.experiment import initial_model, load_data
from flwr_asyncdrop.app.precision import in_precision
from flwr_asyncdrop.app.training import LocalTraining
from flwr_asyncdrop.objectives import LocalSteps, LocalTask
from flwr_asyncdrop.seeding import torch_generator


def accuracies(config: RunConfig, steps: int) -> Iterator[tuple[int, float]]:
    """Train on all training samples; yield steps done and test accuracy.

    The clients' optimiser, new every ``local-steps`` steps as theirs is: what a single
    device with all the data would reach.
    """
    data, device = load_data(config), best_device()
    model = initial_model(config).to(device)
    sgd = LocalTraining(
        config.local_steps,
        config.batch_size,
        config.lr,
        config.momentum,
        optimizer=config.optimizer,
    )
    for done in range(config.local_steps, steps + 1, config.local_steps):
        sgd.train(
            in_precision(model, config.precision),
            LocalSteps(LocalTask(model, data.task.loss)),
            lambda positions: data.batch("train", positions, device),
            len(data.train_y),
            torch_generator(config.seed, "central", done),
        )
        totals = evaluate(model, data, config.precision)
        yield done, data.task.metrics(totals)["accuracy"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line every some steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--model", required=True)
    parser.add_argument("--width", type=float, default=1.0)
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--optimizer", default="sgd")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--every", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = {
        name.replace("_", "-"): value
        for name, value in vars(parser.parse_args(arguments)).items()
    }
    steps = options.pop("steps")
    options["local-steps"] = options.pop("every")
    config = RunConfig.parse(options)
    torch.set_num_threads(config.threads)
    for done, accuracy in accuracies(config, steps):
        print(f"{done:6} steps  {accuracy:.1%}", flush=True)


if __name__ == "__main__":
    main()
