"""The dashboard's queries, answered by Prometheus itself where it is installed."""

import json
import shutil
import socket
import subprocess
import time
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from tests.observers.prometheus.dashboards import (
    ALERTS,
    PROMETHEUS,
    alerts,
    expressions,
)
from tests.observers.prometheus.played import PlayedRun

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        not (shutil.which("prometheus") and shutil.which("promtool")),
        reason="Prometheus is not installed",
    ),
]

SCRAPE_EVERY = 0.2
PATIENCE = 60.0


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def ask(port, query):
    url = f"http://127.0.0.1:{port}/api/v1/query?{urlencode({'query': query})}"
    with urlopen(url, timeout=10) as answer:
        return json.load(answer)["data"]["result"]


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    """Play a run under the eyes of Prometheus; return its port and the server's."""
    folder = tmp_path_factory.mktemp("prometheus")
    with PlayedRun() as run:
        server = f"127.0.0.1:{run.metrics.port}"
        text = PROMETHEUS.read_text(encoding="utf-8")
        text = text.replace("superlink:9464", server)
        text = text.replace("scrape_interval: 5s", f"scrape_interval: {SCRAPE_EVERY}s")
        text = text.replace("alerts.yml", str(PROMETHEUS.parent / "alerts.yml"))
        (folder / "prometheus.yml").write_text(text.replace("0.2s", "200ms"))
        port = free_port()
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_for_samples(run, port)
            yield port, server
        finally:
            process.terminate()
            process.wait(timeout=20)


def wait_for_samples(run, port):
    """Go on with the run until Prometheus has seen it for some seconds."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        run.go_on()
        time.sleep(SCRAPE_EVERY / 2)
        try:
            (found,) = ask(port, "count_over_time(asyncdrop_round[1m])") or [None]
        except URLError:
            continue
        if found is not None and int(found["value"][1]) > 10:
            return
    pytest.fail("Prometheus has seen nothing")


@pytest.mark.parametrize(
    ("title", "query"), [*expressions()], ids=[title for title, _ in expressions()]
)
def test_every_query_of_the_dashboard_has_an_answer(title, query, prometheus):
    port, server = prometheus
    query = query.replace("$instance", server).replace("$__rate_interval", "1m")
    answer = ask(port, query)
    assert answer, title
    assert all(series["value"][1] != "NaN" for series in answer)


def test_the_variable_for_the_server_finds_it(prometheus):
    port, server = prometheus
    (info,) = ask(port, "asyncdrop_run_info")
    assert info["metric"]["instance"] == server


# What a metric is from minute to minute, and which alerts fire in which minute.
UPDATES = 'asyncdrop_updates_total{instance="a",tier="%d"}'
TASKS = 'asyncdrop_tasks_total{instance="a",tier="%d"}'
OUTLIERS = 'asyncdrop_failures_total{instance="a",reason="outlier"}'
PLAYED = {
    "a run that has just begun": (
        {UPDATES % 0: "0x14", TASKS % 0: "1x14"},
        {14: set()},
    ),
    "a run that hangs": (
        {UPDATES % 0: "1+1x20 21x30", TASKS % 0: "1+1x50"},
        {20: set(), 34: set(), 38: {"NoUpdates"}},
    ),
    "a silent tier": (
        {
            UPDATES % 0: "0+1x90",
            TASKS % 0: "1+1x90",
            UPDATES % 7: "0x90",
            TASKS % 7: "1x90",
        },
        {50: set(), 62: {"TierIsSilent"}},
    ),
    "a tier without devices": (
        {
            UPDATES % 0: "0+1x90",
            TASKS % 0: "1+1x90",
            UPDATES % 7: "0x90",
            TASKS % 7: "0x90",
        },
        {62: set(), 90: set()},
    ),
    "the first outlier": (
        {OUTLIERS: "0x9 1x30"},
        {9: set(), 12: {"OutliersAreRefused"}, 29: set()},
    ),
}


@pytest.mark.parametrize("case", PLAYED)
def test_alerts_fire_when_they_say_and_not_before(case, tmp_path):
    series, fires = PLAYED[case]
    asked = [
        {
            "eval_time": f"{minute}m",
            "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
            "exp_samples": [
                {"labels": f'{{alertname="{name}"}}', "value": 1}
                for name in sorted(names)
            ],
        }
        for minute, names in fires.items()
    ]
    played = {
        "interval": "1m",
        "input_series": [{"series": n, "values": v} for n, v in series.items()],
        "promql_expr_test": asked,
    }
    file = tmp_path / "played.yml"
    file.write_text(json.dumps({"rule_files": [str(ALERTS)], "tests": [played]}))
    checked = subprocess.run(
        ["promtool", "test", "rules", file], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_configuration_and_the_alerts_are_valid():
    checked = subprocess.run(
        ["promtool", "check", "config", PROMETHEUS], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stderr
    assert f"{len(list(alerts()))} rules found" in checked.stdout
