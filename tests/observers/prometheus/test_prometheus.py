"""A run on Prometheus' side of the port says what the run's own books say."""

import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import version
from urllib.error import URLError

import psutil
import pytest
from flwr.app import MetricRecord, RecordDict

from flwr_asyncdrop.aggregation import Buffered
from flwr_asyncdrop.exceptions import ConfigError, Interrupted, MissingExtraError
from flwr_asyncdrop.fleet.capacity import Capacity
from flwr_asyncdrop.fleet.faults import FaultPolicy
from flwr_asyncdrop.fleet.fleet import Fleet
from flwr_asyncdrop.fleet.profiles import DeviceProfile
from flwr_asyncdrop.observers.prometheus import PrometheusMetrics
from flwr_asyncdrop.server.callbacks import Callback, Evaluation, Merged
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.versions import version_of
from flwr_asyncdrop.wire import Reply
from tests.grids import HandlerGrid
from tests.observers.prometheus.scrapes import Scrape
from tests.observers.test_progress import ORDER
from tests.runs import Run, failing, plus_one


class Looks(Callback):
    """Scrapes the port at every update, as it is when the update has been counted."""

    def __init__(self, metrics):
        self.metrics = metrics
        self.scrapes = []

    def on_update(self, state, merged):
        self.scrapes.append(Scrape(self.metrics.port))


def watched(grid, metrics=None, **settings):
    """Run on a grid; return the run and what Prometheus saw after every update."""
    metrics = metrics or PrometheusMetrics(0)
    looks = Looks(metrics)
    run = Run(grid, callbacks=(metrics, looks), **settings).go()
    return run, looks.scrapes


class Started:
    """Metrics of a run that the test plays by hand."""

    def __init__(self, num_ranks=4, devices=0, **options):
        self.metrics = PrometheusMetrics(0, **options)
        self.state = RunState.start_from({}, seed=0)
        self.fleet = Fleet(num_ranks)
        self.fleet.refresh(range(devices))
        self.metrics.on_fleet(self.fleet)

    def __enter__(self):
        self.metrics.on_start(self.state)
        return self

    def __exit__(self, *_):
        self.metrics.on_end(self.state)

    def evaluate(self, source, number, values):
        record = None if values is None else MetricRecord(values)
        evaluation = Evaluation(source, number, 0, 0.0, record)
        self.metrics.on_evaluation(self.state, evaluation)

    def scrape(self):
        return Scrape(self.metrics.port)


def test_a_run_of_two_devices_worked_out_by_hand():
    """Device 0 takes 2 s and device 1 takes 3 s; both are ranks of their own.

    Merged: device 0 at 2 s, 1 at 3 s, 0 at 4 s, and, both at 6 s, 1 and 0. The model
    is two float32 numbers.
    """
    run, scrapes = watched(
        HandlerGrid(plus_one, node_ids=[1, 2]), seconds=(2.0, 3.0), rounds=2
    )
    assert run.recorder.times == [2.0, 3.0, 4.0, 6.0]
    first, last = scrapes[0], scrapes[-1]
    assert first.by("asyncdrop_updates_total", "tier") == {"0": 1, "1": 0}
    assert first.by("asyncdrop_in_flight_tasks", "tier") == {"0": 0, "1": 1}
    assert first["asyncdrop_clock_seconds"] == 2.0
    assert last.by("asyncdrop_in_flight_tasks", "tier") == {"0": 0, "1": 0}
    updates = last.by("asyncdrop_updates_total", "tier")
    assert updates == last.by("asyncdrop_tasks_total", "tier")
    assert sum(updates.values()) == 4
    size = run.recorder.merged[0].reply.num_bytes
    expected = {tier: size * count for tier, count in updates.items()}
    assert last.by("asyncdrop_sent_bytes_total", "tier") == expected
    assert last.by("asyncdrop_received_bytes_total", "tier") == expected
    seconds = last.by("asyncdrop_task_duration_seconds_sum", "tier")
    assert seconds == {"0": 2.0 * updates["0"], "1": 3.0 * updates["1"]}
    staleness = last.by("asyncdrop_staleness_versions_sum", "tier")
    assert sum(staleness.values()) == sum(m.staleness for m in run.recorder.merged)
    assert last["asyncdrop_model_version"] == 4
    assert last["asyncdrop_round"] == 1  # the second is over after this look
    assert last.by("asyncdrop_device_full_task_seconds", "device") == {
        "0": 2.0,
        "1": 3.0,
    }


def unreliable(message):
    """Answer, or fail now and then: the first task of node 2, all of node 3."""
    node = message.metadata.dst_node_id
    if node == 3:
        return failing(message)
    return plus_one(message)


@pytest.mark.parametrize("late", ["merge", "drop"])
def test_at_every_update_the_metrics_are_the_books(late):
    profiles = tuple(DeviceProfile(s, jitter=1.0) for s in (1.0, 1.0, 2.0, 4.0, 4.0))
    grid = HandlerGrid(unreliable, node_ids=range(1, 6))
    faults = FaultPolicy(deadline=1.0, late=late, quarantine_after=2)
    books = []

    class Books(Callback):
        def on_update(self, state, merged):
            books.append(
                {
                    "asyncdrop_tasks_total": state.dispatched,
                    "asyncdrop_updates_total": state.updates,
                    "asyncdrop_failures_total": sum(state.failures.values()),
                    "asyncdrop_sent_bytes_total": state.bytes_down,
                    "asyncdrop_received_bytes_total": state.bytes_up,
                    "asyncdrop_in_flight_tasks": len(state.in_flight),
                    "asyncdrop_late_tasks": len(state.late),
                    "asyncdrop_waiting_tasks": len(state.waiting),
                    "asyncdrop_model_version": state.version,
                    "asyncdrop_clock_seconds": state.time,
                    "asyncdrop_known_devices": 5,
                    "asyncdrop_connected_devices": 5,
                }
            )

    metrics = PrometheusMetrics(0)
    looks = Looks(metrics)
    run = Run(
        grid,
        profiles=profiles,
        in_flight=3,
        rounds=8,
        faults=faults,
        callbacks=(metrics, looks, Books()),
    ).go()
    seen = [
        {
            name: sum(s.value for s in scrape.samples if s.name == name)
            for name in books[0]
        }
        for scrape in looks.scrapes
    ]
    assert seen == books
    last = looks.scrapes[-1]
    lost = last.by("asyncdrop_failures_total", "reason")
    assert {reason: n for reason, n in lost.items() if n} == run.state.failures
    assert "client-error" in run.state.failures
    assert any(scrape["asyncdrop_quarantined_devices"] for scrape in looks.scrapes)
    merged_late = sum(merged.late for merged in run.recorder.merged)
    counted = last.by("asyncdrop_late_updates_total", "tier")
    assert sum(counted.values()) == merged_late
    assert (merged_late > 0) == (late == "merge")


def test_devices_that_wait_for_a_step_are_shown():
    _, scrapes = watched(
        HandlerGrid(plus_one),
        seconds=(1.0, 2.0, 3.0),
        in_flight=3,
        build_aggregator=lambda _: Buffered(3, waits=True),
    )
    waiting = [s.by("asyncdrop_waiting_tasks", "tier") for s in scrapes[:3]]
    assert waiting == [
        {"0": 1, "1": 0, "2": 0},
        {"0": 1, "1": 1, "2": 0},
        {"0": 0, "1": 0, "2": 0},
    ]


def test_names_follow_prometheus_conventions():
    _, scrapes = watched(HandlerGrid(plus_one), seconds=(1.0, 2.0, 3.0))
    own = {n: t for n, t in scrapes[-1].types.items() if n.startswith("asyncdrop_")}
    assert len(own) >= 20
    for name, kind in own.items():
        made_by_the_library = name.endswith("_created")
        assert kind in ("counter", "gauge", "histogram") or made_by_the_library
        assert name == name.lower()
        # The parser takes the suffix off those that are named as they should be.
        assert not name.endswith("_total")
    counters = {name for name, kind in own.items() if kind == "counter"}
    assert counters >= {"asyncdrop_updates", "asyncdrop_failures"}
    assert "process_resident_memory_bytes" in scrapes[-1].names


def test_the_run_says_what_it_is():
    metrics = PrometheusMetrics(0, run={"algorithm": "fedbuff", "seed": "7"})
    _, scrapes = watched(HandlerGrid(plus_one), metrics, seconds=(1.0, 2.0, 3.0))
    (info,) = (s for s in scrapes[0].samples if s.name == "asyncdrop_run_info")
    assert info.labels == {
        "algorithm": "fedbuff",
        "seed": "7",
        "flwr": version("flwr"),
        "flwr_asyncdrop": version_of("flwr-asyncdrop"),
        "torch": version("torch"),
    }


def test_counters_are_there_before_what_they_count():
    """Prometheus sees no rise to a first value: its alert would miss that."""
    with Started(devices=3) as run:
        scrape = run.scrape()
    lost = scrape.by("asyncdrop_failures_total", "reason")
    assert lost.keys() >= {"outlier", "shape", "client-error", "no-reply", "dropout"}
    assert set(lost.values()) == {0}
    merged = scrape.by("asyncdrop_device_updates_total", "device")
    assert merged == {"0": 0, "1": 0, "2": 0}


class TestCardinality:
    def test_many_ranks_share_sixteen_tiers(self):
        with Started(num_ranks=1000) as run:
            for rank in range(1000):
                order = replace(ORDER, rank=rank, num_ranks=1000)
                run.metrics.on_dispatch(run.state, order)
                run.state.in_flight[str(rank)] = order
            scrape = run.scrape()
        tiers = scrape.by("asyncdrop_tasks_total", "tier")
        assert tiers == scrape.by("asyncdrop_in_flight_tasks", "tier")
        assert list(tiers) == [str(tier) for tier in range(16)]
        assert sum(tiers.values()) == 1000
        assert len(scrape.samples) < 1000

    @pytest.mark.parametrize(
        ("devices", "options", "shown"),
        [
            (100, {}, 100),
            (101, {}, 0),
            (5, {"devices_up_to": 0}, 0),
            (300, {"devices_up_to": 300}, 300),
        ],
    )
    def test_each_device_is_shown_in_small_fleets_only(self, devices, options, shown):
        with Started(devices=devices, **options) as run:
            run.fleet.devices.seconds = [2.0] * devices
            scrape = run.scrape()
        seconds = scrape.by("asyncdrop_device_full_task_seconds", "device")
        assert seconds == dict.fromkeys(map(str, range(shown)), 2.0)
        assert scrape["asyncdrop_known_devices"] == devices

    def test_of_a_device_only_what_is_known_is_said(self):
        with Started(devices=3) as run:
            run.fleet.devices.seconds[1] = 4.0
            run.fleet.readiness.failures_in_a_row = {0: 5}
            run.fleet.devices.capacities = {
                1: Capacity(train_seconds=2.5, memory=3e9),
                2: Capacity(bandwidth=1e6),
            }
            scrape = run.scrape()
        found = {
            name: scrape.by(f"asyncdrop_device_{name}", "device")
            for name in (
                "full_task_seconds",
                "train_seconds",
                "memory_bytes",
                "down_bytes_per_second",
                "up_bytes_per_second",
                "failures_in_a_row",
            )
        }
        assert found == {
            "full_task_seconds": {"1": 4.0},
            "train_seconds": {"1": 2.5},
            "memory_bytes": {"1": 3e9},
            "down_bytes_per_second": {"2": 1e6},
            "up_bytes_per_second": {"2": 1e6},
            "failures_in_a_row": {"0": 5, "1": 0, "2": 0},
        }

    def test_clients_cannot_make_series_without_end(self):
        with Started() as run:
            run.evaluate("clients", 1, {f"invented-{i}": i for i in range(1000)})
            scrape = run.scrape()
        assert len(scrape.by("asyncdrop_evaluation", "metric")) == 32

    def test_nor_by_another_name_every_time(self):
        seen = set()
        with Started() as run:
            for number in range(100):
                run.evaluate("clients", number, {f"invented-{number}": 1.0})
                seen.update(run.scrape().by("asyncdrop_evaluation", "metric"))
        assert len(seen) == 32


def test_staleness_of_queueing_ahead_is_counted_apart():
    with Started() as run:
        for staleness, queued in ((5, 2), (3, 0), (4, 1)):
            reply = Reply({}, 1, RecordDict(), 0)
            merged = Merged(ORDER, reply, staleness, 1, queued=queued)
            run.metrics.on_update(run.state, merged)
        scrape = run.scrape()
    queued = scrape.by("asyncdrop_queued_staleness_versions_total", "tier")
    staleness = scrape.by("asyncdrop_staleness_versions_sum", "tier")
    assert (sum(queued.values()), sum(staleness.values())) == (3, 12)


class TestEvaluations:
    def test_the_last_one_of_each_source_counts(self):
        with Started() as run:
            run.evaluate("server", 1, {"loss": 2.0, "accuracy": 0.25})
            run.evaluate("server", 2, {"loss": 1.0, "accuracy": 0.5})
            run.evaluate("clients", 1, {"accuracy": 0.125})
            scrape = run.scrape()
        found = {
            (s.labels["source"], s.labels["metric"]): s.value
            for s in scrape.samples
            if s.name == "asyncdrop_evaluation"
        }
        assert found == {
            ("server", "loss"): 1.0,
            ("server", "accuracy"): 0.5,
            ("clients", "accuracy"): 0.125,
        }
        rounds = scrape.by("asyncdrop_evaluation_round", "source")
        assert rounds == {"server": 2, "clients": 1}

    def test_what_the_last_one_does_not_have_is_not_shown(self):
        with Started() as run:
            run.evaluate("server", 1, {"loss": 2.0, "accuracy": 0.25})
            run.evaluate("clients", 1, {"loss": 3.0})
            run.evaluate("server", 2, {"accuracy": 0.5, "loss-by-class": [1.0]})
            found = run.scrape().by("asyncdrop_evaluation", "metric")
            assert found == {"accuracy": 0.5, "loss": 3.0}
            run.evaluate("server", 3, {"loss": 1.0})
            run.evaluate("clients", 2, {"accuracy": 0.75})
            found = run.scrape().by("asyncdrop_evaluation", "metric")
            assert found == {"loss": 1.0, "accuracy": 0.75}

    def test_what_is_no_number_is_left_out(self):
        with Started() as run:
            run.evaluate("server", 1, None)
            run.evaluate("server", 2, {"by-class": [0.5, 0.25], "accuracy": 0.5})
            scrape = run.scrape()
        assert scrape.by("asyncdrop_evaluation", "metric") == {"accuracy": 0.5}


class TestThePort:
    def test_it_is_closed_at_the_end(self):
        metrics = PrometheusMetrics(0)
        watched(HandlerGrid(plus_one), metrics, seconds=(1.0, 2.0, 3.0))
        assert_closed(metrics.port)

    def test_an_error_closes_it(self):
        class Breaks(Callback):
            def on_update(self, state, merged):
                raise RuntimeError

        metrics = PrometheusMetrics(0)
        run = Run(HandlerGrid(plus_one), callbacks=(metrics, Breaks()))
        with pytest.raises(RuntimeError):
            run.go()
        assert_closed(metrics.port)

    def test_a_signal_closes_it(self):
        class Stops(Callback):
            def on_pause(self, state):
                raise Interrupted(2)

        metrics = PrometheusMetrics(0)
        run = Run(HandlerGrid(plus_one), callbacks=(metrics, Stops()))
        with pytest.raises(Interrupted):
            run.go()
        assert_closed(metrics.port)

    def test_only_this_machine_can_connect_unless_told(self):
        with Started() as run:
            assert listens_on(run.metrics.port) == "127.0.0.1"
        with Started(address="0.0.0.0") as run:  # noqa: S104  # what is tested
            assert listens_on(run.metrics.port) == "0.0.0.0"  # noqa: S104

    def test_an_address_that_is_none_is_refused_in_one_line(self):
        run = Run(HandlerGrid(plus_one), callbacks=(PrometheusMetrics(0, "a..b"),))
        with pytest.raises(ConfigError, match=r"on 'a\.\.b' cannot be opened \("):
            run.go()

    def test_one_that_is_taken_is_refused_with_the_mend(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            run = Run(HandlerGrid(plus_one), callbacks=(PrometheusMetrics(port),))
            says = rf"metrics-port={port} on '127.0.0.1' cannot be opened \(Addr"
            with pytest.raises(ConfigError, match=says):
                run.go()

    def test_an_address_that_is_not_here_is_refused(self):
        metrics = PrometheusMetrics(0, "192.0.2.1")
        run = Run(HandlerGrid(plus_one), callbacks=(metrics,))
        with pytest.raises(ConfigError, match=r"on '192\.0\.2\.1' cannot be"):
            run.go()

    def test_any_port_that_is_free_is_another_one_for_the_next_run(self):
        metrics = PrometheusMetrics(0)
        watched(HandlerGrid(plus_one), metrics, seconds=(1.0, 2.0, 3.0))
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(("127.0.0.1", metrics.port))
            taken.listen()
            watched(HandlerGrid(plus_one), metrics, seconds=(1.0, 2.0, 3.0))
            assert metrics.port != taken.getsockname()[1]

    def test_two_runs_at_a_time_have_ports_and_numbers_of_their_own(self):
        with Started() as one, Started() as other:
            one.metrics.on_dispatch(one.state, ORDER)
            counts = [
                sum(run.scrape().by("asyncdrop_tasks_total", "tier").values())
                for run in (one, other)
            ]
        assert counts == [1, 0]

    def test_the_same_metrics_serve_one_run_after_the_other(self):
        metrics = PrometheusMetrics(0)
        for _ in range(2):
            grid = HandlerGrid(plus_one)
            _, scrapes = watched(grid, metrics, seconds=(1.0, 2.0, 3.0))
        # Counters are those of the process.
        assert sum(scrapes[-1].by("asyncdrop_updates_total", "tier").values()) == 12

    def test_nothing_listens_before_the_run(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        PrometheusMetrics(port)
        assert_closed(port)


def test_a_run_that_goes_on_counts_from_there():
    """What was sent before belongs to the process that sent it."""
    run = Started()
    run.state.bytes_down, run.state.bytes_up = 1000, 500
    run.metrics.on_resume(run.state)
    run.state.bytes_down += 24
    run.metrics.on_dispatch(run.state, ORDER)
    scrape = run.scrape()
    run.metrics.on_end(run.state)
    assert sum(scrape.by("asyncdrop_sent_bytes_total", "tier").values()) == 24


def test_a_run_that_goes_on_has_no_round_until_an_update_says_which():
    """The next round may end hours later: 0 would be a round that is long over."""
    run = Started()
    run.metrics.on_resume(run.state)
    before = run.scrape()
    merged = Merged(ORDER, Reply({}, 1, RecordDict(), 0), 0, round=58)
    rounds = []
    for step in (run.metrics.on_update, run.metrics.on_round, run.metrics.on_update):
        step(run.state, 58 if step == run.metrics.on_round else merged)
        rounds.append(run.scrape()["asyncdrop_round"])
    run.metrics.on_end(run.state)
    assert "asyncdrop_round" not in before.names
    assert "asyncdrop_learning_rate_factor" not in before.names
    assert rounds == [57, 58, 58]


def test_the_next_run_begins_in_no_round():
    run = Started()
    with run:
        run.metrics.on_round(run.state, 5)
        assert run.scrape()["asyncdrop_round"] == 5
    run.metrics.port = 0
    with run:
        assert run.scrape()["asyncdrop_round"] == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"port": -1}, r"port=-1 must be in \[0, 65535\]"),
        ({"port": 65536}, r"port=65536 must be in \[0, 65535\]"),
        ({"port": 0, "devices_up_to": -1}, "devices_up_to=-1 must be at least 0"),
    ],
)
def test_values_out_of_range_are_refused(arguments, says):
    with pytest.raises(ConfigError, match=says):
        PrometheusMetrics(**arguments)


def test_without_the_extra_the_error_says_what_to_install(monkeypatch):
    for name in list(sys.modules):
        if name.startswith(
            ("prometheus_client", "flwr_asyncdrop.observers.prometheus.")
        ):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    says = r"pip install 'flwr-asyncdrop\[monitoring\]'"
    with pytest.raises(MissingExtraError, match=says):
        PrometheusMetrics(9464)


def test_it_can_be_read_at_any_moment():
    """Orders come and go while Prometheus reads: it never sees half of a change."""
    with Started(num_ranks=8, devices=50) as run, ThreadPoolExecutor(2) as pool:
        reads = [pool.submit(run.scrape) for _ in range(30)]
        number = 0
        while not all(read.done() for read in reads):
            number += 1
            run.state.in_flight[f"m{number}"] = replace(ORDER, rank=number % 8)
            run.fleet.readiness.quarantined_until[number % 50] = 1e9
            run.fleet.readiness.failures_in_a_row[number % 50] = 1
            if number % 3:
                run.state.in_flight.pop(next(iter(run.state.in_flight)))
                run.fleet.readiness.quarantined_until.pop((number * 7) % 50, None)
                run.fleet.readiness.failures_in_a_row.pop((number * 7) % 50, None)
        assert all(read.result().samples for read in reads)


def assert_closed(port):
    with pytest.raises((URLError, ConnectionError)):
        Scrape(port)


def listens_on(port):
    (address,) = {
        connection.laddr.ip
        for connection in psutil.Process().net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
    }
    return address


def test_what_the_aggregator_says_of_its_last_step():
    with Started() as run:
        for step in ({"a": 1.0, "b": 2.0}, {"a": 3.0, "b": float("nan")}):
            run.metrics.on_step(run.state, step)
        assert run.scrape().by("asyncdrop_aggregator", "metric") == {"a": 3.0}
        run.metrics.on_step(run.state, {f"more-{i}": i for i in range(1000)})
        # What is not said again is not shown, and neither is NaN: both take a place.
        seen = run.scrape().by("asyncdrop_aggregator", "metric")
        assert seen == {f"more-{i}": i for i in range(30)}


@pytest.mark.parametrize("resumed", [False, True])
def test_a_second_run_shows_nothing_that_the_first_one_found(resumed):
    played = Started()
    with played:
        played.evaluate("server", 3, {"accuracy": 0.5})
        played.metrics.on_step(played.state, {"correlation": 0.5})
        assert "accuracy" in played.scrape().text
        assert "correlation" in played.scrape().text
    begin = played.metrics.on_resume if resumed else played.metrics.on_start
    begin(played.state)
    try:
        seen = played.scrape()
        assert "accuracy" not in seen.text
        assert "correlation" not in seen.text
        assert "learning_rate_factor" not in seen.text
    finally:
        played.metrics.on_end(played.state)
