"""The line that the soak draws through the memory of a run."""

import pytest

from benchmarks import soak
from benchmarks.soak import Memory, figures_of, soak_figures


def memory_of(grows):
    memory = Memory()
    for updates in range(500, 20_500, 500):
        memory.updates.append(updates)
        memory.megabytes.append(grows(updates))
    return {figure.name: figure for figure in figures_of(memory)}


def test_a_flat_line_is_flat():
    figures = memory_of(lambda updates: 300.0)
    assert figures["rss_start_mb"].value == figures["rss_end_mb"].value == 300.0
    slope = figures["rss_mb_per_10k_updates"]
    assert slope.value == pytest.approx(0.0, abs=1e-9)
    assert slope.verdict == "met"


def test_a_line_that_is_flat_in_every_bit():
    """NumPy's polynomials lose a coefficient that is exactly zero."""
    memory = Memory()
    memory.updates, memory.megabytes = [120, 160, 200, 240], [300.0] * 4
    figures = {figure.name: figure for figure in figures_of(memory)}
    assert abs(figures["rss_mb_per_10k_updates"].value) < 1e-6


def test_a_leak_of_a_kilobyte_an_update_is_seen():
    figures = memory_of(lambda updates: 300.0 + updates * 1e-3)
    slope = figures["rss_mb_per_10k_updates"]
    assert slope.value == pytest.approx(10.0)
    assert slope.verdict == "missed"


def test_what_the_beginning_takes_does_not_count():
    figures = memory_of(lambda updates: 300.0 if updates > 2000 else 100.0)
    assert figures["rss_start_mb"].value == 300.0
    assert figures["rss_mb_per_10k_updates"].value == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("updates", [-40, 0, 400, 999])
def test_too_few_updates_for_a_line_are_refused(updates, monkeypatch, capsys):
    """Of 400 it ended in a traceback, and one point of 520 made a line, too."""
    monkeypatch.setattr("sys.argv", ["soak", f"--updates={updates}"])
    with pytest.raises(SystemExit, match="2"):
        soak.main()
    said = f"--updates {updates}: a line needs 1,000 or more"
    assert said in capsys.readouterr().err


def test_a_small_soak_looks_now_and_then(monkeypatch):
    monkeypatch.setattr(soak, "_LOOK_EVERY", 40)
    figures = {figure.name: figure.value for figure in soak_figures(updates=240)}
    assert figures["soak_updates"] == 240
    assert 50 < figures["rss_start_mb"] < 10_000
