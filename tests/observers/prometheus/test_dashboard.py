"""What docker/ shows of a run is there to be shown."""

import re
from itertools import combinations

import pytest
import yaml

from tests.observers.prometheus.dashboards import (
    COMPOSE,
    DASHBOARD,
    DOCKER,
    METRIC,
    PROMETHEUS,
    alerts,
    expressions,
)
from tests.observers.prometheus.played import PlayedRun
from tests.observers.prometheus.scrapes import Scrape

QUERIES = [*expressions(), *alerts()]
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@pytest.fixture(scope="module")
def served():
    with PlayedRun() as run:
        run.go_on()
        run.go_on()
        return Scrape(run.metrics.port)


@pytest.mark.parametrize(("title", "query"), QUERIES, ids=[t for t, _ in QUERIES])
def test_every_metric_that_is_asked_for_is_served(title, query, served):
    asked = set(METRIC.findall(query))
    assert asked, title
    assert asked <= served.names


def test_every_label_that_is_asked_for_is_served(served):
    own = [s for s in served.samples if not s.name.startswith("process_")]
    labels = {label for sample in own for label in sample.labels} | {"instance"}
    for _, query in QUERIES:
        groups = re.findall(r"by \(([\w, ]+)\)", query)
        asked = {label.strip() for group in groups for label in group.split(",")}
        assert asked <= labels


def test_everything_that_is_served_is_shown_but_for_what_describes_the_run():
    """A metric without a panel is one that nobody looks at."""
    with PlayedRun() as run:
        run.go_on()
        run.go_on()
        types = Scrape(run.metrics.port).types
    shown = {m for _, query in expressions() for m in METRIC.findall(query)}
    unseen = {
        name
        for name, kind in types.items()
        if name.startswith("asyncdrop_")
        and kind != "unknown"
        and not name.endswith("_created")
        and not any(metric.startswith(name) for metric in shown)
    }
    assert unseen == {
        "asyncdrop_run_info",  # the variable `instance` is made of it
        "asyncdrop_clock_seconds",
        "asyncdrop_tasks",
        "asyncdrop_evaluation_round",
        "asyncdrop_device_memory_bytes",
    }


def test_panels_have_numbers_and_places_of_their_own():
    panels = DASHBOARD["panels"]
    ids = [panel["id"] for panel in panels]
    assert len(ids) == len(set(ids))
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)


def test_panels_read_the_data_source_and_the_server_that_were_chosen():
    variables = {v["name"]: v for v in DASHBOARD["templating"]["list"]}
    assert list(variables) == ["datasource", "instance"]
    assert variables["datasource"]["query"] == "prometheus"
    assert variables["instance"]["datasource"] == SOURCE
    for panel in DASHBOARD["panels"]:
        if panel["type"] == "row":
            continue
        assert panel["datasource"] == SOURCE
        refs = [target["refId"] for target in panel["targets"]]
        assert len(refs) == len(set(refs)) > 0
        for target in panel["targets"]:
            assert target["datasource"] == SOURCE
            metrics = METRIC.findall(target["expr"])
            assert target["expr"].count('instance="$instance"') == len(metrics)


def test_panels_say_what_they_are():
    titles = [panel["title"] for panel in DASHBOARD["panels"]]
    assert all(titles)
    # The same number may be shown as it is now, and over time.
    assert titles.count("Accuracy") == titles.count("Updates / s") == 2
    assert len(set(titles)) >= len(titles) - 3


def test_grafana_finds_prometheus_and_the_dashboard():
    provisioning = DOCKER / "grafana/provisioning"
    source = yaml.safe_load((provisioning / "datasources/prometheus.yml").read_text())
    (only,) = source["datasources"]
    assert only["url"] == "http://prometheus:9090"
    assert only["isDefault"] is True
    provider = yaml.safe_load((provisioning / "dashboards/fleet.yml").read_text())
    (folder,) = provider["providers"]
    volumes = dict(v.split(":")[:2] for v in COMPOSE["services"]["grafana"]["volumes"])
    assert volumes["./grafana/dashboards"] == folder["options"]["path"]
    home = COMPOSE["services"]["grafana"]["environment"]
    shown = home["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert shown == f"{folder['options']['path']}/fleet.json"
    for source in volumes:
        assert not source.startswith("./") or (DOCKER / source).is_dir()


def test_prometheus_reads_the_container_in_which_the_server_runs():
    settings = yaml.safe_load(PROMETHEUS.read_text())
    (job,) = settings["scrape_configs"]
    (group,) = job["static_configs"]
    assert group["targets"] == ["superlink:9464"]
    assert settings["rule_files"] == ["alerts.yml"]


@pytest.mark.parametrize("service", ["prometheus", "grafana"])
def test_containers_are_pinned_and_seen_by_this_machine_only(service):
    container = COMPOSE["services"][service]
    assert re.fullmatch(r"[\w/]+:v?\d+\.\d+\.\d+", container["image"])
    assert container["networks"] == ["operators"]
    assert all(port.startswith("127.0.0.1:") for port in container["ports"])
    assert container["cap_drop"] == ["ALL"]
