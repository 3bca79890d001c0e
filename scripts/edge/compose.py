"""Reads a compose file, as far as the files of this project go."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import yaml

__all__ = ["ComposeError", "Mount", "Service", "interpolate", "read_compose"]

_VARIABLE = re.compile(r"\$\{(?P<name>\w+)(?:(?P<kind>:?-)(?P<default>[^}]*))?\}")


class ComposeError(ValueError):
    """The file asks for something that is not supported here; says what."""


@dataclass(frozen=True)
class Mount:
    """A folder or file of a container: where it comes from, and where it is there.

    A source that is no path is the name of a volume.
    """

    source: str
    target: str

    @classmethod
    def parse(cls, text: str, folder: Path) -> Self:
        """Read ``source:target[:ro]``, relative to the folder of the compose file."""
        source, target, *_ = text.split(":")
        if source.startswith((".", "/")):
            source = os.path.normpath(folder / source)
        return cls(source, target)

    @property
    def is_volume(self) -> bool:
        """Whether the source is a named volume."""
        return not self.source.startswith("/")


@dataclass(frozen=True)
class Service:
    """What a container of the fleet is."""

    name: str
    image: str
    target: str
    entrypoint: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    networks: tuple[str, ...] = ()
    restart: str = "no"


def read_compose(
    path: Path, environment: Mapping[str, str] | None = None
) -> dict[str, Service]:
    """Read a compose file and what it extends.

    Parameters
    ----------
    path : Path
        The file.
    environment : mapping, optional
        What ``${NAME}`` stands for; by default that of this process.

    Returns
    -------
    dict of str to Service
        The services by name, in the file's order.

    Raises
    ------
    ComposeError
        If the file extends what is not there.
    """
    values = os.environ if environment is None else environment
    services = _load(path, values)
    return {
        name: _service(name, _extended(name, body, path.parent, values), path.parent)
        for name, body in services.items()
    }


def interpolate(value: Any, values: Mapping[str, str]) -> Any:
    """Return a document with ``${NAME}``, ``${NAME:-x}`` and ``${NAME-x}`` replaced."""
    if isinstance(value, dict):
        return {key: interpolate(each, values) for key, each in value.items()}
    if isinstance(value, list):
        return [interpolate(each, values) for each in value]
    if not isinstance(value, str):
        return value
    return _VARIABLE.sub(lambda found: _replacement(found, values), value)


def _replacement(found: re.Match[str], values: Mapping[str, str]) -> str:
    value = values.get(found["name"])
    default = interpolate(found["default"] or "", values)
    if value is None or (not value and found["kind"] == ":-"):
        return str(default)
    return value


def _load(path: Path, values: Mapping[str, str]) -> dict[str, Any]:
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    services: dict[str, Any] = interpolate(document["services"], values)
    return services


def _extended(
    name: str, body: Mapping[str, Any], folder: Path, values: Mapping[str, str]
) -> Mapping[str, Any]:
    """Return a service with what it extends below it, as Compose merges them."""
    extends = body.get("extends")
    if extends is None:
        return body
    others = _load(folder / extends["file"], values)
    if extends["service"] not in others:
        raise ComposeError(
            f"{name} extends {extends['service']!r}, which {extends['file']} lacks"
        )
    base = others[extends["service"]]
    merged = {**base, **body}
    for key in ("environment", "build"):
        if key in base and key in body:
            merged[key] = {**base[key], **body[key]}
    if "volumes" in base and "volumes" in body:
        merged["volumes"] = [*base["volumes"], *body["volumes"]]
    return merged


def _service(name: str, body: Mapping[str, Any], folder: Path) -> Service:
    return Service(
        name=name,
        image=body["image"],
        target=body["build"]["target"],
        entrypoint=tuple(body.get("entrypoint", ())),
        environment={
            key: str(value) for key, value in body.get("environment", {}).items()
        },
        mounts=tuple(Mount.parse(each, folder) for each in body.get("volumes", ())),
        networks=tuple(body.get("networks", ())),
        restart=body.get("restart", "no"),
    )
