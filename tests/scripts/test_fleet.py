"""What a trial says of a fleet that does not start, or does not end."""

import pytest

from scripts.edge.containers import ContainerFleet
from scripts.edge.fleet import Fleet, TrialError


class Broken(Fleet):
    """A fleet whose end fails, and its start, too, if it is told so."""

    def __init__(self, starts):
        self._starts = starts

    def up(self):
        if not self._starts:
            raise TrialError("there is no space left for the image")

    def down(self):
        raise TrialError("no such container")

    add = kill = restart = log = flwr = read = None


def test_what_did_not_start_says_why():
    """It said that there was no container to remove."""
    with pytest.raises(TrialError, match="no space left"), Broken(starts=False):
        pass


def test_what_went_wrong_is_not_replaced_by_how_it_ended():
    with pytest.raises(ValueError, match="the first"), Broken(starts=True):
        raise ValueError("the first")


def test_an_end_that_fails_is_said():
    with pytest.raises(TrialError, match="no such container"), Broken(starts=True):
        pass


def test_all_images_are_removed_though_one_was_not_built(tmp_path, monkeypatch):
    compose, asked = tmp_path / "compose.yml", []
    services = "".join(
        f"  {name}: {{image: {name}-image, build: {{target: device}}}}\n"
        for name in ("superlink", "device-0")
    )
    compose.write_text(f"services:\n{services}")

    def do(self, *command, check=True):
        asked.append(command)
        if check and "rmi" in command:
            raise TrialError("no such image")
        return ""

    monkeypatch.setattr(ContainerFleet, "_do", do)
    ContainerFleet(compose, {}).down()
    removed = {command[-1] for command in asked if "rmi" in command}
    assert removed == {"superlink-image", "device-0-image"}
