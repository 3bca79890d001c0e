"""Asks Flower's health service whether the process beside it serves; exits 0 if so."""

import os
import sys

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from settings import InvalidError, port

_PATIENCE = 5.0
_DIRECTLY = [("grpc.enable_http_proxy", 0)]


def serves(number: int) -> bool:
    """Return whether the service on this port says so."""
    with grpc.insecure_channel(f"127.0.0.1:{number}", _DIRECTLY) as channel:
        try:
            answer = HealthStub(channel).Check(HealthCheckRequest(), timeout=_PATIENCE)
        except grpc.RpcError:
            return False
    return bool(answer.status == HealthCheckResponse.SERVING)


def main() -> None:
    """Exit 0 if it serves, else 1."""
    try:
        number = port(os.environ, "ASYNCDROP_HEALTH_PORT", 9095)
    except InvalidError as error:
        sys.exit(f"healthcheck: {error}")
    sys.exit(0 if serves(number) else 1)


if __name__ == "__main__":
    main()
