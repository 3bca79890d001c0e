from benchmarks.central import main


def test_accuracy_rises(capsys):
    """A small network has most digits right after a hundred steps."""
    options = "--dataset digits --model mlp --lr 0.05 --steps 120 --every 40"
    main(options.split())
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[:2] for line in lines] == [[n, "steps"] for n in ("40", "80", "120")]
    first, _, last = (float(line[2].removesuffix("%")) for line in lines)
    assert 10 < first <= last
    assert last > 80
