"""The SuperLink is killed while a task is on its way to it."""

import pytest

from benchmarks.chaos.faults import Fault
from benchmarks.chaos.fleet import FleetRun, run_fleet
from benchmarks.chaos.server import Settings
from tests.nightly import once_in_the_gate
from tests.processes import superlink_starts

pytestmark = superlink_starts

RUN = FleetRun(
    "killed-in-push",
    Settings("wall", rounds=2, in_flight=2, timeout=600.0, ballast=40),
    kills_in_push=(1,),
    nodes=2,
)


@once_in_the_gate
@pytest.mark.e2e
def test_a_superlink_that_dies_during_a_push_costs_nothing(tmp_path):
    audit = run_fleet(RUN, tmp_path / "run")
    assert audit.failure == ""
    assert audit.survived, audit
    assert audit.faults == {Fault.SUPERLINK_KILLED_IN_PUSH: 1}
    assert (audit.lost, audit.twice, audit.stuck, audit.non_finite) == (0, 0, 0, 0)
