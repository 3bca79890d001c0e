"""The ClientApp that a grid runs: loaded here, or sent to where it is loaded."""

import pickle
from collections.abc import Callable

from flwr.clientapp import ClientApp

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.readable import one_line, type_of
from flwr_asyncdrop.references import load_reference

ClientAppSource = str | Callable[[], ClientApp]
"""``"module:attribute"`` of a ClientApp, or a function that returns one."""


def load_client_app(source: ClientAppSource) -> ClientApp:
    """Load the ClientApp that ``source`` names or makes; ConfigError if it cannot."""
    _check_source(source)
    app: object
    if isinstance(source, str):
        app = load_reference("client_app", source)
    else:
        try:
            app = source()
        except Exception as error:  # whatever a user's function raises
            raise ConfigError(
                f"The ClientApp cannot be made by {source!r}: {one_line(error)}"
            ) from error
    if not isinstance(app, ClientApp):
        raise ConfigError(
            f"{source!r} gives {type_of(app)}, not a ClientApp; "
            "give module:attribute of a ClientApp, or a function that returns one."
        )
    return app


def pickled(source: ClientAppSource) -> bytes:
    """Pickle a source; ConfigError for a function that no process can be given."""
    _check_source(source)
    try:
        return pickle.dumps(source)
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        raise ConfigError(
            f"The ClientApp {source!r} cannot be sent to a worker: {error}; "
            "give module:attribute, or a function of a module."
        ) from error


def _check_source(source: object) -> None:
    if isinstance(source, ClientApp):
        raise ConfigError(
            "client_app is a ClientApp itself: give module:attribute, e.g. "
            "'my_app.client_app:app', or a function that returns one."
        )
