"""What the system, or a GPU, has too little of for a process to go on."""

from flwr_asyncdrop.readable import printable

_NO_THREAD = "can't start new thread"
# Of PyTorch, whose errors about the main memory are of no class of their own.
_NO_MEMORY = "can't allocate memory"
_NO_GPU_MEMORY = "OutOfMemoryError"


def shortage(error: BaseException) -> str:
    """Return in one line what an error says is used up, and what to do.

    "" if it is about something else.
    """
    text = printable(str(error))
    if isinstance(error, MemoryError) or _NO_MEMORY in text:
        wish = text.rpartition(f"{_NO_MEMORY}: ")[2]
        return (
            f"no memory is left for this process{wish and f' ({wish})'}: have a "
            "smaller model, batch or number of workers, and see its limits (`ulimit "
            "-v`, or its container's)"
        )
    if isinstance(error, RuntimeError) and text == _NO_THREAD:
        return (
            "no thread can be started: see the limits of this process (`ulimit -u`, "
            "`ulimit -v`, or its container's number of processes)"
        )
    if type(error).__name__ == _NO_GPU_MEMORY:
        return (
            f"no memory is left on the GPU ({text}): have a smaller model, batch or "
            "number of processes on it"
        )
    return ""
