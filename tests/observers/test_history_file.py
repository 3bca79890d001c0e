"""The file of a history is taken away only by who has made it."""

from flwr_asyncdrop.observers.history_file import HistoryFile


def test_a_file_that_was_there_stays_when_the_run_is_refused(tmp_path):
    """It was deleted if it was empty: ``/dev/null``, too, for root."""
    path = tmp_path / "history.jsonl"
    path.touch()
    file = HistoryFile(path)
    file.begin(overwrite=False)
    file.close()
    assert path.exists()


def test_a_file_that_was_made_for_a_run_that_is_refused_goes(tmp_path):
    file = HistoryFile(tmp_path / "history.jsonl")
    file.begin(overwrite=False)
    file.close()
    assert list(tmp_path.iterdir()) == []
