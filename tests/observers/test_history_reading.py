import json

import pytest

from flwr_asyncdrop.exceptions import DataError
from flwr_asyncdrop.observers.history_reading import read_history


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"event": "run"}\n{"event": "upd\n', "line 2 of .* is not JSON"),
        ("[1, 2]\n", "line 1 of .* is not a history record"),
        (json.dumps({"time": 1}) + "\n", "line 1 of .* is not a history record"),
    ],
)
def test_a_damaged_file_is_refused_by_line(tmp_path, text, says):
    path = tmp_path / "history.jsonl"
    path.write_text(text)
    with pytest.raises(DataError, match=says):
        list(read_history(path))


def test_half_a_last_line_of_a_killed_run_is_left_out(tmp_path):
    path = tmp_path / "history.jsonl"
    path.write_text('{"event": "run"}\n{"event": "upd')
    assert list(read_history(path)) == [{"event": "run"}]


@pytest.mark.parametrize("name", ["none.jsonl", "x" * 300, "file/none.jsonl"])
def test_a_file_that_is_not_there_or_cannot_be_is_refused(tmp_path, name):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot read the history"):
        list(read_history(tmp_path / name))
