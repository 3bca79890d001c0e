"""Labels that fit: folded after their commas, and placed beside each other."""

from collections.abc import Callable, Sequence


def folded(label: str, room: int, measure: Callable[[str], int] = len) -> str:
    """Return a label on lines of `room` characters or fewer, cut after its commas.

    Only a part that is longer by itself is cut elsewhere. `measure` counts characters.
    """
    lines = [""]
    *before, last = label.split(",")
    for part in [*(f"{each}," for each in before), last]:
        if lines[-1] and measure(lines[-1] + part) > room:
            lines.append("")
        lines[-1] += part
        while measure(lines[-1]) > room and len(lines[-1]) > 1:
            cut = _fitting(lines[-1], room, measure)
            lines[-1:] = [lines[-1][:cut], lines[-1][cut:]]
    return "\n".join(lines)


def _fitting(line: str, room: int, measure: Callable[[str], int]) -> int:
    """Return how many characters fit: at least one, and fewer than all."""
    count = 1
    while count < len(line) - 1 and measure(line[: count + 1]) <= room:
        count += 1
    return count


def spread_out(
    wanted: Sequence[float], gap: float, low: float, high: float
) -> list[float]:
    """Return heights that are `gap` apart or more, as near as can be to those wanted.

    The squares of the distances are least (isotonic regression of what is wanted less
    the gaps below it), then all is moved into the bounds; what does not fit goes past
    the upper one.
    """
    order = sorted(range(len(wanted)), key=lambda place: wanted[place])
    pools: list[tuple[float, int]] = []  # means without the gaps, and their sizes
    for number, place in enumerate(order):
        mean, size = wanted[place] - number * gap, 1
        while pools and pools[-1][0] > mean:
            before, many = pools.pop()
            mean = (before * many + mean * size) / (many + size)
            size += many
        pools.append((mean, size))
    flat = [mean for mean, size in pools for _ in range(size)]
    top = max(low, high - (len(wanted) - 1) * gap)
    heights = [0.0] * len(wanted)
    for number, (place, height) in enumerate(zip(order, flat, strict=True)):
        heights[place] = min(max(height, low), top) + number * gap
    return heights
