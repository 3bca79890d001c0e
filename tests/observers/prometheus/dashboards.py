"""The files in docker/ that Prometheus and Grafana read."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

__all__ = [
    "ALERTS",
    "COMPOSE",
    "DASHBOARD",
    "DOCKER",
    "METRIC",
    "PROMETHEUS",
    "alerts",
    "expressions",
]

DOCKER = Path(__file__).parents[3] / "docker"
DASHBOARD: dict[str, Any] = json.loads(
    (DOCKER / "grafana/dashboards/fleet.json").read_text(encoding="utf-8")
)
PROMETHEUS = DOCKER / "prometheus/prometheus.yml"
ALERTS = DOCKER / "prometheus/alerts.yml"
COMPOSE: dict[str, Any] = yaml.safe_load(
    (DOCKER / "compose.monitoring.yml").read_text(encoding="utf-8")
)
METRIC = re.compile(r"\b(?:asyncdrop|process)_\w+")


def expressions() -> Iterator[tuple[str, str]]:
    """Name and say every query of the dashboard."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield f"{panel['title']}-{target['refId']}", target["expr"]


def alerts() -> Iterator[tuple[str, str]]:
    """Name and say the condition of every alert."""
    for group in yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
