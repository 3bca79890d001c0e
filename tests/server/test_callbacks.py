import pytest

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.server.callbacks import Callback, stateful_parts


class Plain(Callback):
    pass


class Saved(Callback):
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class Named(Saved):
    name = "special"


class Inherited(Named):
    pass


class Computed(Saved):
    @property
    def name(self):
        return "computed"


def test_a_callback_is_named_after_its_class_unless_it_says_otherwise():
    kinds = (Callback, Plain, Saved, Named, Inherited, Computed)
    assert [kind().name for kind in kinds] == [
        "Callback",
        "Plain",
        "Saved",
        "special",
        "Inherited",
        "computed",
    ]


def test_those_with_a_state_are_parts_by_name():
    plain, saved, named = Plain(), Saved(), Named()
    parts = stateful_parts([plain, saved, named])
    assert parts == {"callback:Saved": saved, "callback:special": named}


def test_two_of_one_name_need_another():
    says = "both named 'Saved': give one of them another `name`"
    with pytest.raises(ConfigError, match=says):
        stateful_parts([Saved(), Saved()])
    other = Saved()
    other.name = "other"
    assert len(stateful_parts([Saved(), other])) == 2
    assert len(stateful_parts([Plain(), Plain()])) == 0


def test_a_callback_counts_on_no_file_by_default():
    assert Plain().files == ()
