import torch
from hypothesis import given
from hypothesis import strategies as st

from flwr_asyncdrop.seeding import derive_seed, numpy_generator, torch_generator


@given(st.integers(0, 2**63), st.lists(st.integers(0, 2**40), max_size=3))
def test_a_seed_is_a_function_of_its_purpose_and_numbers(seed, numbers):
    derived = derive_seed(seed, "mask", *numbers)
    assert derived == derive_seed(seed, "mask", *numbers)
    assert 0 <= derived < 2**63
    assert derived != derive_seed(seed, "device", *numbers)
    assert derived != derive_seed(seed + 1, "mask", *numbers)


def test_numbers_in_another_order_are_another_use():
    assert derive_seed(0, "task", 1, 2) != derive_seed(0, "task", 2, 1)


def test_seeds_stay_what_they_are():
    # Histories of one release must be reproducible in the next.
    assert derive_seed(42, "task", 3, 7) == 5290249948573545942


def test_no_global_generator_is_touched():
    before = torch.get_rng_state()
    torch.rand(3, generator=torch_generator(1, "mask"))
    numpy_generator(1, "device").random(3)
    assert torch.equal(torch.get_rng_state(), before)


def test_generators_repeat():
    draws = [torch.rand(4, generator=torch_generator(5, "mask", 2)) for _ in range(2)]
    assert torch.equal(*draws)
    assert (
        numpy_generator(5, "device", 2).random()
        == numpy_generator(5, "device", 2).random()
    )
