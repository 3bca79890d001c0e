"""The vectorised union-find against sets."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flwr_asyncdrop.submodel.discovery.unionfind import UnionFind

IDS = st.lists(st.integers(0, 12), min_size=1, max_size=6)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("union"), IDS, IDS),
        st.tuples(st.just("freeze"), IDS, IDS),
        st.tuples(st.just("residual"), IDS, IDS),
    ),
    max_size=8,
)


class Sets:
    """The naive reference: a set of ids per class, with its marks."""

    def __init__(self, count):
        self.classes = [{k} for k in range(1, count)]
        self.reasons = {}
        self.residual = set()

    def of(self, unit):
        return next(members for members in self.classes if unit in members)

    def freeze(self, unit, reason):
        if unit:
            for member in self.of(unit):
                self.reasons.setdefault(member, reason)

    def union(self, left, right, reason):
        if not left or not right:
            return self.freeze(left or right, reason)
        one, other = self.of(left), self.of(right)
        if one is other:
            return None
        reasons = [self.reasons[k] for k in one | other if k in self.reasons]
        self.classes = [k for k in self.classes if k is not one and k is not other]
        self.classes.append(one | other)
        for member in one | other if reasons else ():
            self.reasons[member] = min(reasons)
        return None


@given(STEPS)
def test_equals_sets(steps):
    count = 13
    units, sets = UnionFind(), Sets(count)
    units.new(5)
    units.new(count - 6)
    every = np.arange(1, count)
    for number, (step, left, right) in enumerate(steps):
        reason = f"{number:03}"
        before, changes = units.droppable(every), units.changes
        pairs = min(len(left), len(right))
        if step == "union":
            # Joins with 0 take effect before the others of the same call.
            couples = sorted(
                zip(left[:pairs], right[:pairs], strict=True), key=lambda k: min(k) > 0
            )
            units.union(np.array(left[:pairs]), np.array(right[:pairs]), reason)
            for one, other in couples:
                sets.union(one, other, reason)
        elif step == "freeze":
            units.freeze(np.array(left), reason)
            for unit in left:
                sets.freeze(unit, reason)
        else:
            units.mark(np.array([unit for unit in left if unit] or [1]), "residual")
            sets.residual |= {unit for unit in left if unit} or {1}
        if not np.array_equal(units.droppable(every), before):
            assert units.changes > changes

    roots = units.roots(every)
    for unit in range(1, count):
        members = sets.of(unit)
        assert set(every[roots == roots[unit - 1]]) == members
        assert roots[unit - 1] == min(members)
        assert units.reason(unit) == sets.reasons.get(unit)
        assert units.droppable(np.array([unit]))[0] == (
            0 if unit in sets.reasons else min(members)
        )
        carried = bool(members & sets.residual)
        assert units.marked(np.array([unit]), "residual")[0] == carried


def test_broadcasts():
    units = UnionFind()
    ids = units.new(6).reshape(2, 3)

    units.union(ids, ids[:, :1], "")

    assert units.roots(ids).tolist() == [[1, 1, 1], [4, 4, 4]]
