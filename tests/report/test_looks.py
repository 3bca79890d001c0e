from flwr_asyncdrop.algorithms import ALGORITHMS
from flwr_asyncdrop.report.looks import looks
from tests.report.histories import series


def labelled(*labels):
    return [series(label, {0: [0.5]}) for label in labels]


def test_every_algorithm_has_a_look_of_its_own():
    styles = looks(labelled(*ALGORITHMS))
    assert len({(look.color, look.dashes) for look in styles.values()}) == len(
        ALGORITHMS
    )


def test_an_algorithm_looks_the_same_in_any_company():
    alone = looks(labelled("fedbuff"))["fedbuff"]
    together = looks(labelled("fedavg", "fedbuff", "fedbuff,buffer-size=2", "own"))
    assert together["fedbuff"] == alone


def test_variants_of_an_algorithm_can_be_told_apart():
    labels = [f"asyncdrop,drop-rate=0.{rate}" for rate in range(1, 10)]
    styles = looks(labelled("asyncdrop", *labels)).values()
    assert len({(look.color, look.dashes) for look in styles}) == 10


def test_our_lines_are_thicker():
    styles = looks(labelled("fedbuff", "asyncdrop"))
    assert styles["asyncdrop"].width > styles["fedbuff"].width
