"""The one rule by which all models are made wider or narrower."""


def scaled(units: int, width: float) -> int:
    """Return a number of hidden units times the width factor, at least one."""
    return max(1, round(units * width))
