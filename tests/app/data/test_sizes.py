import pytest
import torch

from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.data import Dataset, Sizes, load_dataset
from flwr_asyncdrop.app.data.datasets import _load
from flwr_asyncdrop.app.data.imdb import encode, most_frequent, words
from flwr_asyncdrop.app.data.sizes import averaged
from flwr_asyncdrop.app.experiment import load_data
from flwr_asyncdrop.app.fingerprint import fingerprint
from flwr_asyncdrop.app.learning import Regression
from flwr_asyncdrop.exceptions import ConfigError
from tests.reviews import REVIEWS, write_json_lines

WIDE = f"{__name__}:wide"


def wide(path):
    """Return images that are no squares."""
    x, y = torch.zeros(4, 1, 4, 8), torch.zeros(4)
    return Dataset(x, y, x, y, Regression())


def test_pixels_are_averaged_by_hand():
    images = torch.tensor(
        [[[[0, 1, 255, 255], [0, 1, 255, 255], [1, 1, 9, 8], [1, 0, 7, 6]]]],
        dtype=torch.uint8,
    )
    small = averaged(images, 2)
    # 2 / 4 and 30 / 4 are halves, 3 / 4 is not.
    assert small.tolist() == [[[[1, 255], [1, 8]]]]
    assert small.dtype == torch.uint8
    assert averaged(images.float(), 2).tolist() == [[[[0.5, 255], [0.75, 7.5]]]]
    assert averaged(images, 4) is images


def test_more_images_than_are_averaged_at_once_as_one_by_one():
    images = torch.randint(
        0, 256, (4100, 1, 4, 4), dtype=torch.uint8, generator=torch.Generator()
    )
    one_by_one = torch.cat([averaged(image[None], 2) for image in images])
    assert torch.equal(averaged(images, 2), one_by_one)


def test_images_of_the_catalogue(fashion_root):
    whole = load_dataset("fashion-mnist", fashion_root)
    small = load_dataset("fashion-mnist", fashion_root, sizes=Sizes(image_size=14))
    assert small.input_shape == (1, 14, 14)
    exact = whole.train_x.view(20, 1, 14, 2, 14, 2).double().mean(dim=(3, 5))
    assert torch.equal(small.train_x, (exact + 0.5).floor().to(torch.uint8))
    assert torch.equal(small.train_y, whole.train_y)
    assert len(small.test_x) == 10


def test_without_sizes_nothing_changes(fashion_root):
    whole = load_dataset("fashion-mnist", fashion_root)
    assert load_dataset("fashion-mnist", fashion_root, sizes=Sizes()) is whole


def test_fewer_words_are_what_fewer_words_would_give(tmp_path):
    write_json_lines(tmp_path)
    data = load_dataset("imdb", tmp_path, sizes=Sizes(text_length=3, vocabulary_size=4))
    train = [words(text) for split, _, text in REVIEWS if split == "train"]
    tokens = most_frequent(train, 4)
    assert set(tokens) == {"bad", "a"}
    assert data.train_x.tolist() == encode(train, tokens, 3).tolist()
    assert (data.input_shape, data.vocabulary) == ((3,), 4)
    assert data.train_x.is_contiguous()


def test_test_samples_are_some_of_the_test_set_the_same_each_time():
    whole = load_dataset("digits")
    for _ in range(2):
        data = load_dataset("digits", sizes=Sizes(test_samples=40))
        rows = {tuple(x.flatten().tolist()): int(y) for x, y in pairs(whole)}
        assert len(data.test_y) == 40
        assert all(rows[tuple(x.flatten().tolist())] == y for x, y in pairs(data))
        assert len(data.test_y.unique()) == 10
        assert torch.equal(data.train_x, whole.train_x)
        _load.cache_clear()


def pairs(data):
    return zip(data.test_x, data.test_y, strict=True)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"image-size": 3}, "images of 8 pixels a side are no whole multiple"),
        ({"image-size": 16}, "images of 8 pixels a side are no whole multiple"),
        ({"test-samples": 360}, "test-samples=360 is more than the 359"),
        ({"dataset": WIDE, "image-size": 4}, "images of 4x8 pixels are no squares"),
        ({"dataset": "tests.app.own:plane", "image-size": 2}, "are no images"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(settings, says):
    config = RunConfig.parse({"partition": "iid", **settings})
    with pytest.raises(ConfigError, match=says) as caught:
        load_data(config)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"text-length": 50}, "dataset='digits' is none of the package's own texts"),
        ({"vocabulary-size": 99}, "which contradicts vocabulary-size=99: leave it out"),
        ({"dataset": "own:counting", "text-length": 4}, "is none of the package's own"),
        ({"dataset": "imdb", "model": "lstm", "image-size": 10}, "has no images"),
        ({"dataset": "diamonds", "model": "mlp", "image-size": 10}, "has no images"),
    ],
)
def test_sizes_of_other_data_are_refused_before_any_is_read(settings, says):
    with pytest.raises(ConfigError, match=says):
        RunConfig.parse(settings)


@pytest.mark.parametrize("size", [{"text_length": 50}, {"vocabulary_size": 99}])
def test_images_are_no_texts(size):
    with pytest.raises(ConfigError, match="shortens the package's own texts, and data"):
        load_dataset("digits", sizes=Sizes(**size))


def test_texts_are_no_images(tmp_path):
    write_json_lines(tmp_path)
    with pytest.raises(ConfigError, match="are no images"):
        load_dataset("imdb", tmp_path, sizes=Sizes(image_size=10))


@pytest.mark.parametrize(
    "settings", [{"text-length": 201}, {"text-length": 0}, {"vocabulary-size": 10_001}]
)
def test_more_words_than_there_are_are_refused(settings):
    (key,) = settings
    with pytest.raises(ConfigError, match=key):
        RunConfig.parse({"dataset": "imdb", "model": "lstm", **settings})


@pytest.mark.parametrize("key", [{"image-size": 4}, {"test-samples": 100}])
def test_they_are_part_of_the_datas_fingerprint(key):
    settings = {"model": "mlp", "width": 0.25}
    whole, small = fingerprint(settings), fingerprint({**settings, **key})
    assert whole["data set digits"] != small["data set digits"]
