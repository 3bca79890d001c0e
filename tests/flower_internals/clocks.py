import pytest

# Flower's own first two waits for parts are 1 and 2 s; each is 20 % more or less.
SHORTER_WAITS = [pytest.approx(0.03, rel=0.21), pytest.approx(0.06, rel=0.21)]


class Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
