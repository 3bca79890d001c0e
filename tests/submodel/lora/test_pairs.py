"""Which arrays are taken for factors of adapters, and which are refused."""

import pytest

from flwr_asyncdrop.exceptions import ConfigError, ShapeError
from flwr_asyncdrop.submodel import Adapter, find_adapters


class TestNames:
    @pytest.mark.parametrize(
        ("a", "b", "name"),
        [
            ("q.lora_A.weight", "q.lora_B.weight", "q"),
            ("q.lora_A.default.weight", "q.lora_B.default.weight", "q"),
            ("q.lora_A", "q.lora_B", "q"),
            ("lora_a.weight", "lora_b.weight", "lora"),
            ("e.lora_embedding_A", "e.lora_embedding_B", "e"),
            ("base_model.model.x.0.lora_A.weight",) * 2 + ("x.0",),
        ],
    )
    def test_factors_by_name(self, a, b, name):
        b = b.replace("lora_A", "lora_B")
        found = find_adapters({a: (4, 9), "head.weight": (2, 9), b: (7, 4)})
        assert found == (Adapter(name, a, b, 4),)

    def test_convolution(self):
        shapes = {"c.lora_A.weight": (4, 3, 5, 5), "c.lora_B.weight": (8, 4, 1, 1)}
        (adapter,) = find_adapters(shapes)
        assert (adapter.rank, adapter.a_dim, adapter.b_dim) == (4, 0, 1)

    def test_linear_layers_of_a_large_rank_need_no_help(self):
        shapes = {"q.lora_A.weight": (16, 8), "q.lora_B.weight": (8, 16)}
        assert find_adapters(shapes)[0].rank == 16

    def test_bias_of_b(self):
        shapes = {"q.lora_A.weight": (2, 3), "q.lora_B.weight": (3, 2)}
        (adapter,) = find_adapters({**shapes, "q.lora_B.bias": (3,)})
        assert adapter.bias == "q.lora_B.bias"

    def test_order_is_that_of_the_model(self):
        shapes = {}
        for module in ("z", "a"):
            shapes[f"{module}.lora_A.weight"] = (2, 3)
            shapes[f"{module}.lora_B.weight"] = (3, 2)
        assert [adapter.name for adapter in find_adapters(shapes)] == ["z", "a"]


class TestRefusals:
    @pytest.mark.parametrize(
        ("shapes", "message"),
        [
            ({"fc.weight": (3, 3)}, "no adapters are among these arrays"),
            ({"q.lora_A.weight": (2, 3)}, "is not a factor with the other one"),
            (
                {
                    "q.lora_A.weight": (2, 3),
                    "q.lora_A.bias": (2,),
                    "q.lora_B.weight": (3, 2),
                },
                "no bias of lora_A",
            ),
            ({"q.lora_magnitude_vector.weight": (3,)}, "a magnitude of DoRA"),
            ({"q.lora_E": (3, 1)}, "q.lora_E is neither factor of an adapter"),
        ],
    )
    def test_what_is_no_adapter(self, shapes, message):
        with pytest.raises(ConfigError, match=message):
            find_adapters(shapes)

    @pytest.mark.parametrize(
        "shapes",
        [
            {"c.lora_A.weight": (4, 3, 3), "c.lora_B.weight": (8, 2, 1)},  # 2 groups
            {"m.lora_A": (8, 9), "m.lora_B": (12, 4)},  # loralib's MergedLinear
            {"q.lora_A.weight": (0, 3), "q.lora_B.weight": (3, 0)},
        ],
    )
    def test_factors_that_do_not_fit(self, shapes):
        with pytest.raises(ShapeError, match="a component is a row of A"):
            find_adapters(shapes)

    @pytest.mark.parametrize(
        ("a", "b"),
        [((64, 8), (8, 64)), ((8, 8), (8, 8)), ((9, 4), (4, 7)), ((16, 8), (8, 16))],
    )
    def test_layouts_that_cannot_be_told(self, a, b):
        with pytest.raises(ShapeError, match="do not tell their rank"):
            find_adapters({"q.lora_A": a, "q.lora_B": b})


OWN_SHAPES = {"down": (9, 4), "up": (4, 7), "head": (7, 2)}


class TestPairs:
    def test_given_with_their_dims(self):
        found = find_adapters(OWN_SHAPES, [("down", "up", 1, 0)])
        assert found == (Adapter("down", "down", "up", 4, 1, 0),)

    @pytest.mark.parametrize(
        ("pairs", "error", "message"),
        [
            ([("down", "upp")], ConfigError, "'upp' is no array of the model"),
            ([("down", "down")], ConfigError, "'down' is in two"),
            ([], ConfigError, "no adapters"),
            ([("down", "up")], ShapeError, "has 9 components and up"),
            ([("down", "up", 2, 0)], ShapeError, "has no dim 2"),
            ([("down", "up", 1)], ConfigError, r"has \('down', 'up', 1\) where the na"),
            ([("down",)], ConfigError, "list tuples"),
            ([("down", "up", "1", "0")], ConfigError, "list tuples"),
            (("down", "up"), ConfigError, "has 'down' where the names"),
        ],
    )
    def test_given_wrongly(self, pairs, error, message):
        with pytest.raises(error, match=message):
            find_adapters(OWN_SHAPES, pairs)

    def test_several_of_one_module_have_names_of_their_own(self):
        shapes = {"m.q1": (2, 5), "m.q2": (5, 2), "m.k1": (2, 5), "m.k2": (5, 2)}
        found = find_adapters(shapes, [("m.q1", "m.q2"), ("m.k1", "m.k2")])
        assert [adapter.name for adapter in found] == ["m.q1", "m.k1"]
