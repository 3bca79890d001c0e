"""What a user's function returns as metrics."""

import pytest
from flwr.app import MetricRecord

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.wire import metric_record


@pytest.mark.parametrize("kind", [dict, MetricRecord])
@pytest.mark.parametrize("bits", [64, 20_000])
@pytest.mark.parametrize("sign", [1, -1])
def test_an_integer_that_no_message_can_hold_is_refused(kind, bits, sign):
    """It ended the run in an OverflowError: of a line of progress, or of a tracker."""
    number = sign * 2 ** (bits - 1)
    says = r"^evaluate_fn: the metric 'n' is .*: return integers of 64 bits, or a float"
    for value in (number, [1, number]):
        with pytest.raises(ConfigError, match=says):
            metric_record(kind({"loss": 0.5, "n": value}), "evaluate_fn")


def test_one_of_64_bits_is_taken():
    found = metric_record({"n": 2**63 - 1, "all": [-(2**63) + 1]}, "evaluate_fn")
    assert dict(found) == {"n": 2**63 - 1, "all": [-(2**63) + 1]}
