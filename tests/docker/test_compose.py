"""Reading compose files and Dockerfiles, and finding their things on this machine."""

from itertools import pairwise
from pathlib import Path

import pytest

from scripts.edge.compose import ComposeError, Mount, Service, interpolate, read_compose
from scripts.edge.containers import ContainerFleet
from scripts.edge.image import read_image
from scripts.edge.local import places_of

DOCKER = Path(__file__).parents[2] / "docker"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${SET}", "value"),
        ("a/${SET}/b", "a/value/b"),
        ("${UNSET}", ""),
        ("${UNSET:-x}", "x"),
        ("${EMPTY:-x}", "x"),
        ("${EMPTY-x}", ""),
        ("${UNSET-x}", "x"),
        ("${UNSET:-}", ""),
        ("${SET}:${UNSET:-1}", "value:1"),
        ("no variable", "no variable"),
    ],
)
def test_variables_are_replaced_as_compose_does(text, expected):
    assert interpolate(text, {"SET": "value", "EMPTY": ""}) == expected


def test_a_service_lies_over_what_it_extends(tmp_path):
    (tmp_path / "base.yml").write_text(
        """
services:
  base:
    restart: on-failure
    networks: {devices: {}, operators: {aliases: [control]}}
    environment: {A: "1", B: "2"}
    volumes: ["./keys:/keys:ro", "state:/state"]
"""
    )
    (tmp_path / "compose.yml").write_text(
        """
services:
  one:
    extends: {file: base.yml, service: base}
    image: picture
    build: {target: device}
    environment: {B: "${B}", C: 3}
    volumes: ["/data:/data"]
"""
    )
    assert read_compose(tmp_path / "compose.yml", {"B": "two"}) == {
        "one": Service(
            name="one",
            image="picture",
            target="device",
            environment={"A": "1", "B": "two", "C": "3"},
            mounts=(
                Mount(str(tmp_path / "keys"), "/keys"),
                Mount("state", "/state"),
                Mount("/data", "/data"),
            ),
            networks=("devices", "operators"),
            restart="on-failure",
        )
    }


def test_a_container_that_is_added_is_on_the_networks_of_its_service(monkeypatch):
    device = Service("device-0", "image", "device", networks=("devices", "more"))
    fleet = ContainerFleet(DOCKER / "compose.edge.yml", {})
    ran = []
    monkeypatch.setattr(fleet, "_podman", lambda *words: ran.append(words))
    fleet.add(device)
    (words,) = ran
    given = [after for word, after in pairwise(words) if word == "--network"]
    assert [name.split("_")[1] for name in given] == ["devices", "more"]


def test_extending_nothing_is_an_error(tmp_path):
    (tmp_path / "base.yml").write_text("services: {}")
    (tmp_path / "compose.yml").write_text(
        "services: {one: {extends: {file: base.yml, service: absent}}}"
    )
    with pytest.raises(ComposeError, match="one extends 'absent'"):
        read_compose(tmp_path / "compose.yml", {})


def test_an_image_has_what_its_stages_say(tmp_path):
    dockerfile = tmp_path / "Dockerfile"
    dockerfile.write_text(
        """\
ARG BASE=debian
FROM ${BASE} AS runtime
# ENV COMMENT=1
ENV A=1 \\
    B="two words"
ENTRYPOINT ["sh"]
FROM runtime AS device
ENV A=3
FROM runtime
ENTRYPOINT ["python3", "x.py"]
"""
    )
    device = read_image(dockerfile, "device")
    assert device.entrypoint == ("sh",)
    assert device.environment == {"A": "3", "B": "two words"}
    assert read_image(dockerfile, "runtime").environment["A"] == "1"
    with pytest.raises(KeyError):
        read_image(dockerfile, "server")


def test_paths_and_addresses_are_found_on_this_machine(tmp_path):
    authority = tmp_path / "certificates" / "ca.crt"
    authority.parent.mkdir()
    authority.touch()
    service = Service(
        name="x",
        image="",
        target="",
        mounts=(
            Mount(str(authority), "/run/asyncdrop/ca.crt"),
            Mount("/elsewhere/data", "/data"),
            Mount("state", "/var/lib/asyncdrop"),
        ),
    )
    places = places_of(service, tmp_path / "home", {"superlink:9092": "localhost:1"})
    expected = {
        "/run/asyncdrop": str(authority.parent),
        "/run/asyncdrop/ca.crt": str(authority),
        "/data/mnist": "/elsewhere/data/mnist",
        "/database": "/database",
        "/var/lib/asyncdrop/flwr": str(tmp_path / "home" / "flwr"),
        "superlink:9092": "localhost:1",
        "superlink:9999": "superlink:9999",
        "plain": "plain",
    }
    assert {value: places.local(value) for value in expected} == expected
