from benchmarks.edge.volume import volume_figures
from tests.nightly import by_night


@by_night
def test_a_submodel_of_a_quarter_less_is_little_more_than_half_of_the_bytes():
    value = {figure.name: figure.value for figure in volume_figures()}
    for suffix in ("", "_resnet34"):
        full = value[f"update_bytes_full{suffix}"]
        sliced = value[f"update_bytes_sliced{suffix}"]
        assert 0.5 < sliced / full < 0.62
        assert value[f"update_bytes_q4{suffix}"] < sliced / 6
    # 21,282,122 parameters and 17,060 statistics, 4 bytes each, there and back
    assert 170_000_000 < value["update_bytes_full_resnet34"] < 172_000_000
