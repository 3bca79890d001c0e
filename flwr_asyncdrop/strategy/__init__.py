"""What Flower users see: `AsyncStrategy`, and the strategies named after algorithms.

It is in three layers: `Arguments` checks and keeps what a strategy is given,
`FlowerHooks` has the rounds that Flower's own loop drives, and `AsyncStrategy` the
asynchronous run. `runs` opens runs for both, and `resuming` says what the checkpoint
of one has to have.
"""
