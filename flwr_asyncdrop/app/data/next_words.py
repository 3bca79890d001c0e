"""Texts as a task for a language model: after each word, the next."""

import torch.nn.functional as F
from torch import Tensor

from flwr_asyncdrop.app.data.imdb import PADDING, UNKNOWN
from flwr_asyncdrop.app.learning import IGNORED


def next_words(tokens: Tensor, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Make inputs and targets of the last words of texts.

    A target counts if it is a known word that another word precedes: padding is not
    predicted, and unknown words neither, which are many and one and the same id.

    Parameters
    ----------
    tokens : Tensor
        Token ids of shape ``(N, T)``, padded in front.
    length : int
        Targets of a text, at most T.

    Returns
    -------
    inputs : Tensor
        ``(n, length)``, of the type of `tokens`.
    targets : Tensor
        int64 ``(n, length)``: the token after each input; -100 if it does not count.
    kept : Tensor
        int64 ``(n,)``: the texts that have a target at all, ascending.
    """
    window = F.pad(tokens, (1, 0), value=PADDING)[:, -length - 1 :]
    inputs, targets = window[:, :-1], window[:, 1:].long()
    counts = (targets > UNKNOWN) & (inputs != PADDING)
    kept = counts.any(dim=1).nonzero().flatten()
    return inputs[kept], targets.masked_fill(~counts, IGNORED)[kept], kept
