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

from tests.observers.prometheus.dashboards import PROMETHEUS, alerts, expressions
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


def test_the_configuration_and_the_alerts_are_valid():
    checked = subprocess.run(
        ["promtool", "check", "config", PROMETHEUS], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stderr
    assert f"{len(list(alerts()))} rules found" in checked.stdout
