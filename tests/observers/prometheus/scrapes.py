"""What Prometheus would read from a port, as numbers."""

from collections.abc import Mapping
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

__all__ = ["Scrape"]


class Scrape:
    """Everything that a port serves now."""

    def __init__(self, port: int, address: str = "127.0.0.1") -> None:
        with urlopen(f"http://{address}:{port}/metrics", timeout=10) as answer:
            self.text = answer.read().decode()
        families = list(text_string_to_metric_families(self.text))
        self.types = {family.name: family.type for family in families}
        self.samples = [sample for family in families for sample in family.samples]

    @property
    def names(self) -> set[str]:
        """The names of all time series, and those of all metrics without any."""
        return {sample.name for sample in self.samples} | self.types.keys()

    def __getitem__(self, name: str) -> float:
        """Return the value of the only series of that name."""
        (value,) = self.by(name).values()
        return value

    def by(self, name: str, label: str = "") -> Mapping[str, float]:
        """Return the values of all series of a name, by one label."""
        found = [sample for sample in self.samples if sample.name == name]
        values = {sample.labels.get(label, ""): sample.value for sample in found}
        assert len(values) == len(found), f"{label!r} does not tell them apart"
        return values
