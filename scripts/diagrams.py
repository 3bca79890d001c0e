"""The diagrams of the documentation, as SVG: ``python -m scripts.diagrams``."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

_DOCS: Final = Path(__file__).parents[1] / "docs"
_BLUE, _SKY, _ORANGE, _GREY, _LINE = (
    "#0072b2",
    "#8ecbf0",
    "#e69f00",
    "#9aa0a6",
    "#80868b",
)
_STYLE = (
    "text{font:15px system-ui,sans-serif;fill:#3c4043}"
    ".h{font-weight:600}.s{font-size:13px}.w{fill:#fff}"
    "@media(prefers-color-scheme:dark){text{fill:#dadce0}.w{fill:#fff}}"
)
_SPEEDS: Final = (1.0, 1.6, 2.5, 5.0)  # relative durations of a task
_WIDTH, _LANE, _LEFT = 860, 34, 120


def _svg(width: int, height: int, title: str, parts: Iterator[str]) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="{title}">\n<title>{title}</title>\n'
        f"<style>{_STYLE}</style>\n{body}\n</svg>\n"
    )


def _box(x: float, y: float, width: float, height: float, colour: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'rx="3" fill="{colour}"/>'
    )


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}"'
    return f"<text {place}>{text}</text>"


def _tick(x: float, top: float, bottom: float) -> str:
    return (
        f'<path d="M{x:.1f} {top:.1f}V{bottom:.1f}" stroke="{_ORANGE}" '
        'stroke-width="2" stroke-dasharray="3 3"/>'
    )


def _arrow(path: str) -> str:
    return (
        f'<path d="{path}" fill="none" stroke="{_LINE}" stroke-width="2" '
        'marker-end="url(#head)"/>'
    )


_HEAD = (
    '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
    f'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="{_LINE}"/>'
    "</marker></defs>"
)


def timeline() -> str:
    """Draw four devices that wait for each other, and the same ones that do not."""

    def lanes(top: float, *, waits: bool) -> Iterator[str]:
        scale, end = 58.0, 10.0
        for lane, seconds in enumerate(_SPEEDS):
            y = top + lane * _LANE
            name = ("fast", "", "", "slow")[lane]
            yield _text(
                _LEFT - 12, y + 18, f"{name} device" if name else "", "s", "end"
            )
            period = max(_SPEEDS) if waits else seconds
            for start in range(round(end / period)):
                begin = _LEFT + start * period * scale
                yield _box(begin + 1, y, seconds * scale - 2, _LANE - 10, _BLUE)
                if waits and seconds < period:
                    yield _box(
                        begin + seconds * scale,
                        y + 10,
                        (period - seconds) * scale - 2,
                        4,
                        _GREY,
                    )
                if not waits:
                    yield _tick(begin + seconds * scale, y - 4, y + _LANE - 6)
        if waits:
            for step in (1, 2):
                x = _LEFT + step * max(_SPEEDS) * scale
                yield _tick(x, top - 6, top + len(_SPEEDS) * _LANE)

    def parts() -> Iterator[str]:
        yield _text(10, 24, "Synchronous: all wait for the slowest", "h")
        yield from lanes(44, waits=True)
        yield _text(10, 224, "Asynchronous: each result is merged when it arrives", "h")
        yield from lanes(244, waits=False)
        yield _box(_LEFT, 404, 18, 14, _BLUE)
        yield _text(_LEFT + 26, 416, "trains", "s")
        yield _box(_LEFT + 100, 409, 18, 4, _GREY)
        yield _text(_LEFT + 126, 416, "waits", "s")
        yield _tick(_LEFT + 205, 402, 420)
        yield _text(_LEFT + 215, 416, "the global model changes", "s")

    title = "Four devices with and without waiting for the slowest"
    return _svg(_WIDTH, 430, title, parts())


def submodel() -> str:
    """Draw how units leave a model, and come back into it."""
    full, kept, size = 8, (0, 1, 3, 4, 6, 7), 22

    def matrix(
        x: float, y: float, rows: tuple[int, ...], columns: int, colour: str
    ) -> Iterator[str]:
        for place, row in enumerate(rows):
            shade = colour if row in kept else _GREY
            for column in range(columns):
                yield _box(
                    x + column * size, y + place * size, size - 3, size - 3, shade
                )

    def parts() -> Iterator[str]:
        yield _HEAD
        everything = tuple(range(full))
        yield _text(20, 24, "The server's layer", "h")
        yield _text(20, 44, "8 units, a row each", "s")
        yield from matrix(20, 58, everything, 5, _BLUE)
        yield _arrow("M146 140H232")
        yield _text(189, 128, "mask", "s", "middle")
        yield _text(250, 24, "What a device gets", "h")
        yield _text(250, 44, "6 units: a smaller tensor", "s")
        yield from matrix(250, 80, kept, 5, _BLUE)
        yield _arrow("M376 140H462")
        yield _text(419, 128, "local steps", "s", "middle")
        yield _text(480, 24, "What it returns", "h")
        yield from matrix(480, 80, kept, 5, _SKY)
        yield _arrow("M606 140H692")
        yield _text(649, 128, "merge", "s", "middle")
        yield _text(710, 24, "The server's layer", "h")
        yield _text(710, 44, "other rows stay", "s")
        yield from matrix(710, 58, everything, 5, _SKY)

    title = "Units are left out, trained on a device, and merged back"
    return _svg(_WIDTH + 20, 250, title, parts())


def loop() -> str:
    """Draw the event loop, from a version of the model to the next one."""
    boxes = (
        (20, 30, "global model", "version t"),
        (240, 30, "mask and extract", "units for this device"),
        (460, 30, "device trains", "local steps"),
        (680, 30, "arrival", "by the clock"),
        (680, 150, "check", "names, shapes, size"),
        (460, 150, "merge", "kept coordinates"),
        (240, 150, "version t + 1", "callbacks, tests"),
    )

    def parts() -> Iterator[str]:
        yield _HEAD
        for x, y, title, what in boxes:
            yield _box(x, y, 160, 62, _BLUE)
            yield _text(x + 80, y + 27, title, "h w", "middle")
            yield _text(x + 80, y + 48, what, "s w", "middle")
        for x in (180, 400, 620):
            yield _arrow(f"M{x} 61H{x + 56}")
        yield _arrow("M760 92V146")
        yield _arrow("M680 181H624")
        yield _arrow("M460 181H404")
        yield _arrow("M240 181H100V96")
        yield _text(108, 170, "the slot is free", "s")

    return _svg(_WIDTH, 225, "The event loop of the server", parts())


def main() -> None:
    """Write all diagrams."""
    for draw in (timeline, submodel, loop):
        path = _DOCS / f"diagram-{draw.__name__}.svg"
        path.write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
