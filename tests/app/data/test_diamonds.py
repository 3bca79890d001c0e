import numpy as np
import pytest

from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.data import load_dataset
from flwr_asyncdrop.app.data.diamonds import CLARITIES, COLOURS, CUTS, NUMBERS
from flwr_asyncdrop.app.experiment import initial_model
from flwr_asyncdrop.exceptions import ConfigError, DataError

NAMES = "carat,cut,color,clarity,depth,table,price,x,y,z"


def write(root, lines, names=NAMES):
    (root / "diamonds").mkdir(exist_ok=True)
    path = root / "diamonds" / "diamonds.csv"
    path.write_text("\n".join((names, *lines)))
    return path


def stones():
    """Return five rows of each cut; row k has k in every number but the depth."""
    cuts = [cut for cut in CUTS for _ in range(5)]
    return [
        f'{k},"{cut}",{COLOURS[k % 7]},{CLARITIES[k % 8]},60,{k},{k},{k},{k},{k}'
        for k, cut in enumerate(cuts)
    ]


def test_by_hand(tmp_path):
    write(tmp_path, stones())
    data = load_dataset("diamonds", tmp_path)
    assert data.input_shape == (22,)
    assert data.num_classes == 5
    assert data.train_y.tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4 + [4] * 4
    assert data.test_y.tolist() == [0, 1, 2, 3, 4]
    # The number of each row, found again by its colour and clarity.
    kinds = np.concatenate([data.train_x[:, 7:], data.test_x[:, 7:]])
    assert (kinds[:, :7].sum(1) == 1).all()
    assert (kinds[:, 7:].sum(1) == 1).all()
    code = {(k % 7, k % 8): k for k in range(25)}
    rows = [code[pair] for pair in zip(*parts(kinds), strict=True)]
    assert sorted(rows) == list(range(25))
    train = np.array(rows[:20])
    expected = (np.array(rows) - train.mean()) / train.std()
    carat = np.concatenate([data.train_x[:, 0], data.test_x[:, 0]])
    assert carat == pytest.approx(expected, abs=1e-6)
    depth = NUMBERS.index("depth")
    assert not data.train_x[:, depth].any()  # all the same


def parts(kinds):
    return kinds[:, :7].argmax(1).tolist(), kinds[:, 7:].argmax(1).tolist()


def test_further_columns_are_not_read(tmp_path):
    for folder in ("plain", "numbered"):
        (tmp_path / folder).mkdir()
    write(tmp_path / "plain", stones())
    numbered = [f"{number},{line}" for number, line in enumerate(stones(), 1)]
    write(tmp_path / "numbered", numbered, f'"",{NAMES}')
    one, other = (load_dataset("diamonds", tmp_path / f) for f in ("plain", "numbered"))
    assert one.train_x.equal(other.train_x)


def test_a_byte_order_mark_is_not_part_of_the_first_name(tmp_path):
    for folder, mark in (("plain", ""), ("marked", "\ufeff")):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder, stones(), mark + NAMES)
    one, other = (load_dataset("diamonds", tmp_path / f) for f in ("plain", "marked"))
    assert one.train_x.equal(other.train_x)


def test_a_perceptron_reads_it_and_no_other_model(tmp_path):
    write(tmp_path, stones())
    settings = {"dataset": "diamonds", "data-dir": str(tmp_path)}
    model = initial_model(RunConfig.parse({**settings, "model": "mlp"}))
    assert model.hidden1.in_features == 22
    with pytest.raises(ConfigError, match="is a table, which model='cnn' cannot read"):
        RunConfig.parse(settings)


@pytest.mark.parametrize(
    ("lines", "names"),
    [
        (["1,Ideal,E"], NAMES),
        (["one,Ideal,E,SI2,60,60,60,1,1,1"], NAMES),
        (["nan,Ideal,E,SI2,60,60,60,1,1,1"], NAMES),
        (["1,Ideal,Z,SI2,60,60,60,1,1,1"], NAMES),
        (["1,Ideal,E,SI9,60,60,60,1,1,1"], NAMES),
        (["1,Superb,E,SI2,60,60,60,1,1,1"], NAMES),
        (["1,Ideal,E,SI2,60,60,60,1,1,1"], NAMES.replace("cut", "quality")),
        ([], NAMES),
    ],
)
def test_a_damaged_file_is_named(tmp_path, lines, names):
    path = write(tmp_path, [*stones(), *lines] if lines else [], names)
    with pytest.raises(DataError, match="is damaged") as caught:
        load_dataset("diamonds", tmp_path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_absent(tmp_path):
    with pytest.raises(DataError, match=r"diamonds\.csv is missing; set data-dir to"):
        load_dataset("diamonds", tmp_path)
