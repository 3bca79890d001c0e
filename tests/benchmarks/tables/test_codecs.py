"""A table of codecs, by hand."""

from benchmarks.tables.codecs import codec_table
from tests.report.histories import series


def test_a_row_is_beside_its_algorithm_and_its_bytes_beside_the_baseline():
    # A test every 10 s; 1 MB a second, or less with a codec
    runs = [
        series(
            "asyncdrop-plus,codec=q4",
            {0: [0.5, 0.8], 1: [0.6, 0.7]},
            megabytes_per_second=0.1,
        ),
        series("asyncdrop-plus,codec=none", {0: [0.6, 0.8], 1: [0.6, 0.8]}),
        series("fedbuff,codec=none", {0: [0.1, 0.5, 0.7], 1: [0.1, 0.5, 0.6]}),
        series("fedbuff,codec=q8", {0: [0.6], 1: [0.6]}, megabytes_per_second=0.3),
    ]
    head, _, *rows = codec_table(runs, 0.6)
    assert head == (
        "| algorithm | codec | final accuracy | beside `none` | ends at, s "
        "| MB in all | fewer bytes | s to 60.00% | MB to 60.00% |"
    )
    assert rows == [
        "| `asyncdrop-plus` | `none` | 80.0 ± 0.0 | – | 20 | 20 | 1.5x "
        "| **10.0** | 10.0 |",
        "| `asyncdrop-plus` | `q4` | 75.0 ± 7.1 | -5.0 ± 7.1 | 20 | 2 | 15.0x "
        "| 15.0 | **1.5** |",
        "| `fedbuff` | `none` | 65.0 ± 7.1 | – | 30 | 30 | 1.0x | 30.0 | 30.0 |",
        "| `fedbuff` | `q8` | 60.0 ± 0.0 | -5.0 ± 7.1 | 10 | 3 | 10.0x "
        "| **10.0** | 3.0 |",
    ]


def test_one_seed_has_no_spread():
    runs = [
        series("fedbuff,codec=none", {0: [0.5, 0.7]}),
        series("fedbuff,codec=q2", {0: [0.8]}, megabytes_per_second=0.1),
    ]
    *_, row = codec_table(runs, 0.75)
    assert row == (
        "| `fedbuff` | `q2` | 80.0 | +10.0 | 10 | 1 | 20.0x | **10.0** | **1.0** |"
    )
