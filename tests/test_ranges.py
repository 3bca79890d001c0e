import math

import pytest

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.ranges import check_ranges


def test_what_is_in_its_range_passes():
    check_ranges(("seed", 0, True, "at least 0"), ("mode", "a", True, "'a' or 'b'"))


def test_the_first_that_is_not_is_named_with_its_value():
    with pytest.raises(ConfigError) as caught:
        check_ranges(
            ("seed", 0, True, "at least 0"),
            ("mode", "c", False, "'a' or 'b'"),
            ("share", math.nan, False, "in [0, 1]"),
        )
    assert str(caught.value) == "mode='c' must be 'a' or 'b'"
