"""Masks without a server."""

from flwr_asyncdrop.masks import MaskContext


def choose(
    policy, groups, scores=None, rank=0, num_ranks=1, generator=None, server_round=1
):
    """Return the units that a policy keeps."""
    compute = None if scores is None else lambda: scores
    context = MaskContext(
        groups, rank, num_ranks, generator, round=server_round, compute_scores=compute
    )
    return policy.choose(context)
