"""Tells the ``flwr`` command of this machine how to reach the fleet.

    python3 docker/edge/connect.py            # after docker/make_certificates.sh
    flwr run . edge --stream

It writes the connection ``edge`` into Flower's configuration, ``config.toml`` in
``~/.flwr`` or ``$FLWR_HOME``, and leaves everything else in it alone.
"""

import argparse
import json
import os
import re
import shutil
import sys
import tomllib
from pathlib import Path

# What Flower writes where there is nothing, so that `flwr run .` simulates.
_NOTHING_BEFORE = """[superlink]
default = "local"

[superlink.local]
address = ":local:"
"""
_DOCKER = Path(__file__).resolve().parents[1]
_CERTIFICATES = _DOCKER / "certificates"
_IN_ENV_FILE = re.compile(r"\s*(?:export\s+)?EDGE_CERTIFICATES\s*[=:]\s*(.*)")


def write_connection(name: str, address: str, authority: str | None) -> Path:
    """Write a connection into Flower's configuration, in place of one of its name.

    Parameters
    ----------
    name : str
        What stands behind ``flwr run .``.
    address : str
        Host and port of the SuperLink's control API.
    authority : str or None
        Path of the certificate that signed the server's; None means no TLS.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    ValueError
        If the file is no TOML, or would be none then. It stays as it is.
    """
    home = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")
    path = home / "config.toml"
    home.mkdir(parents=True, exist_ok=True)
    try:
        before = path.read_text(encoding="utf-8") if path.exists() else _NOTHING_BEFORE
        tomllib.loads(before)
    except ValueError as error:
        raise ValueError(f"{path} is no TOML: {error}") from error
    after = with_connection(before, name, address, authority)
    if not has_connection(after, name):
        raise ValueError(
            f"{path} cannot have [superlink.{name}]: it has that name in another form, "
            "or the name has more than letters, digits, '-' and '_'"
        )
    replace(path, after)
    return path


def replace(path: Path, text: str) -> None:
    """Write a file in one step: a full disk leaves what was there before.

    A link stays one, and a file keeps its mode.
    """
    target = path.resolve()
    draft = target.with_name(f".{target.name}.tmp")
    try:
        draft.write_text(text, encoding="utf-8")
        if target.exists():
            shutil.copymode(target, draft)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def with_connection(before: str, name: str, address: str, authority: str | None) -> str:
    """Return a configuration with a connection added or replaced."""
    trust = (
        "insecure = true"
        if authority is None
        else f"root-certificates = {quoted(str(Path(authority).absolute()))}"
    )
    heading = rf"^\[superlink\.{re.escape(name)}\][ \t]*(?:#.*)?$"
    # Comments before the next heading are of that one.
    next_one = r"(?:\n[ \t]*(?:#.*)?)*(?:\n\[|\Z)"
    rest = re.sub(rf"(?m){heading}(?:\n.*)*?(?={next_one})", "", before)
    block = f"[superlink.{name}]\naddress = {quoted(address)}\n{trust}\n"
    return f"{rest.rstrip()}\n\n{block}".lstrip("\n")


def quoted(text: str) -> str:
    """Return a text as TOML has it, which knows none of JSON's pairs of escapes."""
    return json.dumps(text, ensure_ascii=False)


def has_connection(text: str, name: str) -> bool:
    """Return whether a text is TOML, and a configuration with a connection."""
    try:
        return name in tomllib.loads(text)["superlink"]
    except (ValueError, LookupError, TypeError):
        return False


def certificates_of_compose() -> str:
    """Return EDGE_CERTIFICATES as Compose finds it, or ``""``.

    It is the one of the environment, or else that of ``docker/.env``. ValueError if
    it is no absolute path, or has what ends one for Compose.
    """
    value = os.environ.get("EDGE_CERTIFICATES")
    if value is None:
        value = _of_env_file(_DOCKER / ".env")
    if ":" in value:
        raise ValueError(
            f"EDGE_CERTIFICATES={value!r} has a ':', where Compose ends a path: take "
            "another"
        )
    if value and not Path(value).is_absolute():
        raise ValueError(
            f"EDGE_CERTIFICATES={value!r} must be an absolute path: Compose would look "
            f"for it in {_DOCKER}"
        )
    return value


def _of_env_file(path: Path) -> str:
    """Return the last value there, without quotes, or without a comment."""
    value = ""
    if not path.is_file():
        return value
    for line in path.read_text(encoding="utf-8").splitlines():
        if found := _IN_ENV_FILE.match(line):
            value = found[1]
    if quoted := re.match(r"""(["'])(.*?)\1""", value):
        value = quoted[2]
    else:
        value = re.sub(r"\s#.*", "", value).rstrip()
    if {"$", "\\"} & set(value):
        raise ValueError(
            f"EDGE_CERTIFICATES='{value}' of {path}: write the path without $ and \\"
        )
    return value


def main() -> None:
    """Write the connection that the arguments describe."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--name", default="edge", help="(%(default)s)")
    parser.add_argument(
        "--address", default="127.0.0.1:9093", help="of the control API (%(default)s)"
    )
    parser.add_argument(
        "--certificates",
        type=Path,
        help="folder that make_certificates.sh made (EDGE_CERTIFICATES, of the "
        "environment or docker/.env, or docker/certificates)",
    )
    parser.add_argument(
        "--insecure", action="store_true", help="no TLS: for compose.insecure.yml"
    )
    arguments = parser.parse_args()
    certificates = arguments.certificates
    if certificates is None:
        try:
            certificates = Path(certificates_of_compose() or _CERTIFICATES)
        except (ValueError, OSError) as error:
            parser.error(str(error))
    authority = certificates / "ca.crt"
    if not arguments.insecure:
        try:
            authority.read_bytes()
        except OSError as error:
            parser.error(
                f"{authority} cannot be read ({error.strerror}): run "
                "docker/make_certificates.sh first, as the same user"
            )
    try:
        path = write_connection(
            arguments.name,
            arguments.address,
            None if arguments.insecure else str(authority),
        )
    except (ValueError, OSError) as error:
        sys.exit(f"connect: {error}")
    print(f"{path}: flwr run . {arguments.name} --stream")


if __name__ == "__main__":
    main()
