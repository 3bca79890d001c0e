import shutil

from flwr_asyncdrop.device.superexec import main


def test_it_ends_at_once_if_its_supernode_is_gone(tmp_path):
    """A SuperNode that is refused starts a SuperExec, and ends with its folder."""
    assert main([str(tmp_path / "gone" / "task.pipe"), "--insecure"]) == 0


def test_its_supernode_may_end_while_it_starts(tmp_path, monkeypatch):
    """Loading the program takes a second or two."""
    folder = tmp_path / "folder"
    folder.mkdir()

    def load(_):
        shutil.rmtree(folder)
        return lambda: waits.pop()(0.01)

    waits = []
    monkeypatch.setattr("flwr_asyncdrop.device.superexec.load_program", load)
    monkeypatch.setattr(
        "flwr_asyncdrop.device.superexec.pace_superexec",
        lambda pace: waits.append(pace._wait),
    )
    monkeypatch.setattr("sys.argv", [])
    assert main([str(folder / "task.pipe"), "--insecure"]) is False
