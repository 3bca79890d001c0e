"""A pool of which somebody else does all the runs."""

from flwr_asyncdrop.cli.events import Skipped, Started


class BusyPool:
    """Everything that it is given is somebody else's."""

    def __init__(self, *_):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return

    def do(self, runs):
        for run in runs:
            yield run, Started()
            yield run, Skipped("process 7 on node-3")
