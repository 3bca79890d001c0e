"""The data sets: their shapes, and where their files come from."""

from dataclasses import dataclass
from functools import partial

from flwr_asyncdrop.app.data import cifar, diamonds, idx, imdb
from flwr_asyncdrop.app.data.files import Source


@dataclass(frozen=True)
class Entry:
    """A data set: `sources` says where it may come from, best first.

    Images, of shape (C, H, W), have a mean and a deviation a channel, as fractions of
    255; texts, of shape (T,), have a number of token ids. With `next_word`, a text's
    words are its targets, and its label is its group. `samples` are how many there are
    for training and testing where the files do not tell that some are missing.
    """

    input_shape: tuple[int, ...]
    num_classes: int
    sources: tuple[Source, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    vocabulary: int | None = None
    next_word: bool = False
    samples: tuple[int, int] | None = None


def _cifar(name: str, folder: str, files: tuple[str, ...]) -> tuple[Source, Source]:
    """Return the original, and the compact archive."""
    short = name.lower()
    read = partial(cifar.read_cifar, name=name)
    archive = f"{short}_jpeg90.npz"
    decode = partial(cifar.read_compact, name=archive)
    return (
        Source(f"{short}-2", folder, files, read, torchvision=name),
        Source("compact-cifar-2", short, (archive,), decode),
    )


_FASHION_MNIST = Source(
    "fashion-mnist-2",
    "FashionMNIST/raw",
    idx.FASHION_MNIST,
    idx.read_fashion_mnist,
    "FashionMNIST",
)
_IMDB = (
    Source("imdb-folders-3", "aclImdb", imdb.FOLDERS, imdb.read_folders),
    Source("imdb-lines-2", "imdb", imdb.LINES, imdb.read_lines),
)

_DIAMONDS = Source("diamonds-1", "diamonds", diamonds.FILES, diamonds.read_diamonds)

CATALOGUE: dict[str, Entry] = {
    "digits": Entry((1, 8, 8), 10, mean=(0.3055,), std=(0.3759,)),
    "fashion-mnist": Entry(
        (1, 28, 28), 10, (_FASHION_MNIST,), mean=(0.2860,), std=(0.3530,)
    ),
    "cifar10": Entry(
        (3, 32, 32),
        10,
        _cifar("CIFAR10", "cifar-10-batches-py", cifar.CIFAR10),
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
    ),
    "cifar100": Entry(
        (3, 32, 32),
        100,
        _cifar("CIFAR100", "cifar-100-python", cifar.CIFAR100),
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
    ),
    "imdb": Entry(
        (imdb.LENGTH,), 2, _IMDB, vocabulary=imdb.VOCABULARY, samples=imdb.SAMPLES
    ),
    "imdb-words": Entry(
        (imdb.LENGTH,),
        2,
        _IMDB,
        vocabulary=imdb.VOCABULARY,
        next_word=True,
        samples=imdb.SAMPLES,
    ),
    "diamonds": Entry(
        (diamonds.FEATURES,),
        len(diamonds.CUTS),
        (_DIAMONDS,),
        samples=diamonds.SAMPLES,
    ),
}
