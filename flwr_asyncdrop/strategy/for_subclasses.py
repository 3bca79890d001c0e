"""What `FedAvg` has for its subclasses, for those that were some."""

import logging
from collections.abc import Iterable

from flwr.app import Message, RecordDict

from flwr_asyncdrop import wire
from flwr_asyncdrop.exceptions import ReplyError
from flwr_asyncdrop.strategy.record_keys import record_keys

logger = logging.getLogger("flwr.asyncdrop")

_DETAILED = 3


class ForSubclasses:
    """The methods of `FedAvg` that hooks of its subclasses call."""

    weighted_by_key: str
    arrayrecord_key: str
    configrecord_key: str
    max_examples: int

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
        return wire.read_evaluation(reply, record_keys(self), self.max_examples)
