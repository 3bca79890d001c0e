"""The ready-made ServerApp; `flwr_asyncdrop.app.server` does the work.

Flower loads the two ready apps in two threads at once, so they stay at the top of the
package: where both were imported with their rooms, each could wait for the other.
"""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.server import run_experiment
from flwr_asyncdrop.exceptions import AsyncDropError
from flwr_asyncdrop.flower_internals.failures import end_with_line

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run an algorithm on a data set; write history, model and picture."""
    try:
        run_experiment(grid, RunConfig.parse(context.run_config))
    except AsyncDropError as error:
        end_with_line(error)
        raise
