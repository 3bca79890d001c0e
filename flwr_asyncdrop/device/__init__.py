"""A device between tasks: Flower's SuperNode with a shorter way from task to reply.

Flower starts a Python process for every task and looks for tasks every few seconds.
Here its own programs run unchanged, but for three things: a *trainer* that has imported
Flower and PyTorch is forked for each task, the SuperNode's pauses follow what it waits
for, and the SuperExec wakes when there is a task. Whatever is missing or fails leaves
Flower's plain way.

The modules of this room start without the rest of the package (see `thin`): a SuperNode
needs no PyTorch. They import the standard library, each other and `flower_internals`.
"""
