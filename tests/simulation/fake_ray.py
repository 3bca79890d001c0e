"""A Ray of one process: nodes with room, actors on them, and losses to order."""

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar


class RayError(Exception):
    """As ray.exceptions.RayError."""


@dataclass
class Node:
    name: str
    room: int = 2
    alive: bool = True
    data: str = "same"  # what the tests' fingerprint finds there
    busy: int = 0  # places that others have


@dataclass(eq=False)
class Handle:
    ray: "FakeRay"
    actor: Any
    options: dict[str, Any]
    node: Node | None = None
    is_dead: bool = False

    def __getattr__(self, method: str) -> Any:
        def remote(*arguments: object) -> "Reference":
            # What is changed later has been sent as it was.
            sent = [a if isinstance(a, Reference) else _copy(a) for a in arguments]
            return Reference(self, lambda: self._call(method, sent))

        return SimpleNamespace(remote=remote)

    def _call(self, method: str, arguments: list[Any]) -> Any:
        values = [self.ray.get(a) if isinstance(a, Reference) else a for a in arguments]
        self.ray.current = self.node
        try:
            return getattr(self.actor, method)(*values)
        finally:
            self.ray.current = None
            self.ray.calls.append((method, self.node.name if self.node else ""))


@dataclass(eq=False)
class Reference:
    handle: Handle | None
    compute: Callable[[], Any]
    value: Any = None
    error: Exception | None = None
    is_over: bool = False


@dataclass
class FakeRay:
    """A Ray in which `lose` is asked before each call; True loses its actor.

    With `stillborn`, actors end before they are ready.
    """

    node_list: list[Node]
    lose: Callable[[Handle], bool] = lambda handle: False
    stillborn: bool = False
    handles: list[Handle] = field(default_factory=list)
    calls: list[tuple[str, str]] = field(default_factory=list)
    puts: int = 0
    current: Node | None = None
    exceptions: ClassVar[Any] = SimpleNamespace(RayError=RayError)

    def is_initialized(self) -> bool:
        return True

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {
                "NodeID": n.name,
                "NodeManagerHostname": n.name,
                "Alive": n.alive,
                "Resources": {"CPU": float(n.room)},
            }
            for n in self.node_list
        ]

    def available_resources(self) -> dict[str, float]:
        return {"CPU": float(sum(n.room for n in self.node_list if n.alive))}

    def get_runtime_context(self) -> Any:
        name = self.current.name if self.current else ""
        return SimpleNamespace(get_node_id=lambda: name)

    def remote(self, kind: type) -> Any:
        def options(**given: Any) -> Any:
            def start() -> Handle:
                self.handles.append(Handle(self, kind(), given))
                return self.handles[-1]

            return SimpleNamespace(remote=start)

        return SimpleNamespace(options=options)

    def put(self, value: Any) -> Reference:
        self.puts += 1
        copy = _copy(value)
        return Reference(None, lambda: copy, copy, is_over=True)

    def wait(self, references: Any, num_returns: int, timeout: float) -> Any:
        self._place()
        for reference in references:
            self._advance(reference)
        done = [each for each in references if each.is_over][:num_returns]
        return done, [each for each in references if each not in done]

    def get(self, reference: Reference) -> Any:
        self._advance(reference)
        if reference.error is not None:
            raise reference.error
        return reference.value

    def kill(self, handle: Handle) -> None:
        handle.is_dead, handle.node = True, None

    def _place(self) -> None:
        for handle in self.handles:
            if handle.node is None and not handle.is_dead:
                handle.node = next(filter(self._fits(handle), self.node_list), None)

    def _fits(self, handle: Handle) -> Callable[[Node], bool]:
        selector = (handle.options.get("label_selector") or {}).values()
        refused, wanted = [], []
        for text in selector:
            names = text.removeprefix("!in(").removesuffix(")").split(",")
            (refused if text.startswith("!") else wanted).extend(names)
        takes_room = handle.options["num_cpus"] > 0

        def fits(node: Node) -> bool:
            if not node.alive or node.name in refused:
                return False
            if wanted and node.name not in wanted:
                return False
            used = node.busy + sum(other.node is node for other in self.handles)
            return used < node.room or not takes_room

        return fits

    def _advance(self, reference: Reference) -> None:
        handle = reference.handle
        if reference.is_over or handle is None:
            return
        if handle.node is None and not handle.is_dead:
            return
        reference.is_over = True
        is_ready = handle.actor._app is not None
        if not handle.is_dead and (self.lose(handle) if is_ready else self.stillborn):
            self.kill(handle)
        if handle.is_dead or not (handle.node and handle.node.alive):
            reference.error = RayError("The actor died\nunexpectedly.")
            return
        reference.value = reference.compute()


def _copy(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))  # noqa: S301  # ours
