"""Small fleets on which it is known what suits them, and runs in this process."""

from flwr_asyncdrop.cli import advise
from flwr_asyncdrop.cli.answer import find
from flwr_asyncdrop.cli.backend import Backend
from flwr_asyncdrop.cli.budget import choose_plan, in_runs
from flwr_asyncdrop.cli.parser import Parser
from flwr_asyncdrop.cli.question import question_of
from flwr_asyncdrop.cli.runs import is_complete, resumed
from flwr_asyncdrop.cli.worker import execute

SMALL = [
    *("--model=mlp", "--width=0.25", "--partition=iid", "--devices=12"),
    *("--in-flight=4", "--local-steps=5", "--batch-size=8", "--num-rounds=15"),
    *("--checkpoint-every=0",),
]
# Full models of the task have 12 kB, which take 47 s each way over the slow links.
FLEETS = {
    "one speed": ["--levels=1", "--speed-ratio=1"],
    "stragglers": ["--levels=4", "--speed-ratio=50"],
    "slow links": ["--levels=1", "--speed-ratio=1", "--bandwidth-mbps=0.002"],
}


def asked(*flags):
    """Return the question of a command line."""
    parser = Parser(prog="asyncdrop advise", allow_abbrev=False)
    advise.add_arguments(parser, flags)
    return question_of(parser.parse_args(flags))


def do(what, runs):
    """Do the runs that are missing, without processes of their own."""
    for run in runs:
        if not is_complete(run):
            execute(resumed(run), Backend(), lambda event: None, "")


def answer_of(out, *flags, budget=None, do=do):
    """Return the answer to a command line, from runs in this process."""
    question = asked(*flags, f"--out={out}")
    return find(question, choose_plan(question, *in_runs(budget)), out, do)


def without_pictures(monkeypatch):
    """Let runs write an empty picture: drawing takes longer than such a run."""
    monkeypatch.setattr(
        "flwr_asyncdrop.app.end.draw_run", lambda history, path: path.write_bytes(b"")
    )
