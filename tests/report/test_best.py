from flwr_asyncdrop.report.comparison import compare
from flwr_asyncdrop.report.tables import columns
from tests.report.histories import series


def best(runs, key, target=0.4):
    found = {column.key: column for column in columns(compare(runs, target))}
    return found[key].best


def test_the_highest_mean_is_best_with_few_seeds():
    runs = [series("fedbuff", {0: [0.5], 1: [0.6]}), series("fedavg", {0: [0.54]})]
    assert best(runs, "final") == (True, False)
    assert best(runs, "difference") == (False, False)


def test_of_a_loss_the_lowest_is_best():
    runs = [series("fedbuff", {0: [0.5]}, metric="loss")]
    runs.append(series("fedavg", {0: [0.4]}, metric="loss"))
    assert best(runs, "best") == (False, True)


def test_equals_are_both_best_and_one_alone_is_not():
    one = series("fedbuff", {0: [0.5]})
    assert best([one, series("fedavg", {0: [0.5]})], "final") == (True, True)
    assert best([one], "final") == (False,)


def test_who_is_not_told_apart_from_the_best_is_bold_from_five_seeds_on():
    values = [0.50, 0.52, 0.49, 0.53, 0.51]
    top = series("fedbuff", {seed: [each] for seed, each in enumerate(values)})
    near = {seed: [each + 0.01 * (-1) ** seed] for seed, each in enumerate(values)}
    near[0] = [0.45]
    below = {seed: [each - 0.02] for seed, each in enumerate(values)}
    runs = [top, series("asyncdrop", near), series("fedavg", below)]
    assert best(runs, "final") == (True, True, False)
    fewer = [
        series(one.label, {seed: [one.curves[seed].final.value] for seed in range(4)})
        for one in runs
    ]
    assert best(fewer, "final") == (True, False, False)


def test_a_mean_of_the_luckier_seeds_is_not_best():
    lucky = series("fedbuff", {0: [0.9, 0.9, 0.9], 1: [0.1, 0.1, 0.1]})
    slow = series("fedavg", {0: [0.1, 0.1, 0.9], 1: [0.1, 0.1, 0.9]})
    assert best([lucky, slow], "seconds") == (False, True)
    assert best([lucky, slow], "seconds", target=0.95) == (False, False)
