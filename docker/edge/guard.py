"""Starts Flower's SuperLink over HTTP, with a control API at some addresses only.

Devices and operators have one port there, and Flower takes a run from whoever reaches
it. Behind this guard a request that came in at another address of this machine than
those given, or the loopback interface, gets the devices' part and nothing else.

    python3 guard.py ADDRESS... -- ARGUMENTS OF FLOWER-SUPERLINK
"""

import importlib
import inspect
import ipaddress
import sys
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any

_FOR_DEVICES = "/v1/fleet/"
_REFUSED = 403

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Any, Any], Awaitable[None]]


def guarded(app: App, addresses: Collection[str]) -> App:
    """Return an ASGI app that passes on what may be asked at the address it came to."""

    async def guard(scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan" or is_allowed(scope, addresses):
            await app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        text = b"only the devices' part of the API is open here\n"
        headers = [(b"content-type", b"text/plain")]
        await send(
            {"type": "http.response.start", "status": _REFUSED, "headers": headers}
        )
        await send({"type": "http.response.body", "body": text})

    return guard


def is_allowed(scope: Scope, addresses: Collection[str]) -> bool:
    """Return whether a request is for the devices' part, or came to an own address."""
    if str(scope["path"]).startswith(_FOR_DEVICES):
        return True
    host = (scope.get("server") or ("", 0))[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback or str(address) in addresses


def main() -> None:
    """Run Flower's SuperLink with the guard before its app."""
    import uvicorn

    # The package has a function of the same name.
    superlink = importlib.import_module("flwr.superlink.cli.flower_superlink")
    at = sys.argv.index("--")
    addresses = frozenset(sys.argv[1:at])
    if "uvicorn.run(" not in inspect.getsource(superlink):
        sys.exit("guard: this Flower starts its server in another way; use flwr 1.42")
    run = uvicorn.run

    def run_guarded(app: App, **settings: Any) -> None:
        run(app=guarded(app, addresses), **settings)

    uvicorn.run = run_guarded
    sys.argv = ["flower-superlink", *sys.argv[at + 1 :]]
    superlink.flower_superlink()


if __name__ == "__main__":
    main()
