"""What `FedAvg` has for its subclasses, for those that were some."""

import logging
from abc import abstractmethod
from collections.abc import Iterable
from typing import Generic, TypeVar

from flwr.app import Message, RecordDict

from flwr_asyncdrop import wire
from flwr_asyncdrop.exceptions import ReplyError

logger = logging.getLogger("flwr.asyncdrop")

_DETAILED = 3

Number = TypeVar("Number", int, float)


class OrFlowers(Generic[Number]):
    """An attribute that reads as Flower's default where it is None.

    The ``__dict__`` of the instance has what was given.
    """

    def __init__(self, default: Number) -> None:
        self._default: Number = default

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type | None = None) -> Number:
        given: Number | None = None
        if instance is not None:
            given = vars(instance).get(self._name)
        return self._default if given is None else given

    def __set__(self, instance: object, value: Number | None) -> None:
        vars(instance)[self._name] = value


class ForSubclasses:
    """The methods of `FedAvg` that hooks of its subclasses call."""

    max_examples: int

    @property
    @abstractmethod
    def _keys(self) -> wire.RecordKeys:
        """Where the project keeps its records."""

    def _check_and_log_replies(
        self, replies: Iterable[Message], is_train: bool, validate: bool = True
    ) -> tuple[list[Message], list[Message]]:
        """Part replies from those with an error, the first of which are logged.

        With `validate` an evaluation must say on how many examples it was, too. What
        is trained has been read before.
        """
        sound: list[Message] = []
        failed: list[Message] = []
        for reply in replies:
            try:
                if reply.has_error() or (validate and not is_train):
                    self._read_evaluation(reply)
                sound.append(reply)
            except ReplyError as error:
                failed.append(reply)
                if len(failed) <= _DETAILED:
                    logger.warning(
                        "no %s from node %d: %s",
                        "update" if is_train else "evaluation",
                        reply.metadata.src_node_id,
                        error,
                    )
        return sound, failed

    def _construct_messages(
        self, record: RecordDict, node_ids: Iterable[int], message_type: str
    ) -> list[Message]:
        """Return a message with the same content for each node."""
        return [Message(record, node_id, message_type) for node_id in node_ids]

    def _read_evaluation(self, reply: Message) -> RecordDict:
        return wire.read_evaluation(reply, self._keys, self.max_examples)
