"""What the installed Flower talks, and which versions no real fleet is started with."""

import pytest

from benchmarks.chaos.__main__ import main as chaos
from benchmarks.chaos.deployment import Deployment
from scripts import transport
from scripts.edge.__main__ import main as edge


def install(number, monkeypatch):
    monkeypatch.setattr(transport, "version", lambda _: number)


@pytest.mark.parametrize(
    ("number", "expected"), [("1.34.0", "grpc"), ("1.40.0", "http"), ("2.0.0", "http")]
)
def test_one_transport(number, expected, monkeypatch):
    install(number, monkeypatch)
    assert transport.installed_transport() == expected


@pytest.mark.parametrize("number", ["1.35.0", "1.39.2"])
def test_both_transports_are_refused_before_anything_is_started(
    number, monkeypatch, tmp_path
):
    install(number, monkeypatch)
    with pytest.raises(SystemExit, match=f"flwr {number} has some APIs over gRPC"):
        Deployment(tmp_path, 1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("program", "words"), [(chaos, ["--part", "fleet"]), (edge, ["--as", "processes"])]
)
def test_programs_refuse_them_at_once(program, words, monkeypatch):
    install("1.36.0", monkeypatch)
    monkeypatch.setattr("sys.argv", ["program", *words])
    with pytest.raises(SystemExit, match=r"install flwr 1\.34, or 1\.40 or newer"):
        program()
