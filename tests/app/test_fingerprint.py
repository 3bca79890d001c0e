import torch

from flwr_asyncdrop.app.data import Dataset
from flwr_asyncdrop.app.fingerprint import fingerprint, hash_of
from flwr_asyncdrop.app.learning import Classification

SMALL = {"model": "mlp", "width": 0.25}


def own_data(folder):
    """Return four samples, the last of which a file of the folder says."""
    last = float((folder / "last.txt").read_text())
    x, y = torch.tensor([[0.0], [1.0], [2.0], [last]]), torch.tensor([0, 1, 0, 1])
    return Dataset(x, y, x, y, Classification(2))


def test_it_names_data_and_model_and_is_the_same_each_time():
    found = fingerprint(SMALL)
    assert list(found) == ["data set digits", "model mlp"]
    assert all(len(value) == 16 for value in found.values())
    assert fingerprint(SMALL) == found


def test_another_seed_is_another_model_of_the_same_data():
    one, other = (fingerprint({**SMALL, "seed": seed}) for seed in (0, 1))
    assert one["data set digits"] == other["data set digits"]
    assert one["model mlp"] != other["model mlp"]


def test_one_number_in_one_sample_makes_a_difference(tmp_path):
    hashes = []
    for number, last in enumerate((3.0, 3.0, 3.0000002)):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "last.txt").write_text(str(last))
        settings = {
            **SMALL,
            "dataset": f"{__name__}:own_data",
            "data-dir": str(folder),
        }
        hashes.append(fingerprint(settings)[f"data set {__name__}:own_data"])
    assert hashes[0] == hashes[1] != hashes[2]


def test_names_types_and_shapes_count():
    zeros = torch.zeros(2, 3)
    same = {"a": zeros.clone().T.contiguous().T}
    others = [
        {"b": zeros},
        {"a": zeros.T},
        {"a": zeros.to(torch.float16)},
        {"a": zeros - 0.0, "b": zeros},
        {"a": -zeros},
    ]
    assert hash_of(same) == hash_of({"a": zeros})
    assert len({hash_of(each) for each in [same, *others]}) == 6
    for scalar in (torch.tensor(1), torch.tensor(True), torch.ones(0)):
        assert hash_of({"a": scalar}) != hash_of({"a": torch.tensor(2)})


def test_a_column_of_a_table_and_one_number_for_all_are_as_their_copies():
    table = torch.arange(6.0).reshape(3, 2)
    for tensor in (table[:, 1], torch.tensor(2.0).expand(3)):
        assert hash_of({"y": tensor}) == hash_of({"y": tensor.clone().contiguous()})
