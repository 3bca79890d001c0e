from flwr_asyncdrop.device.superexec import main


def test_it_ends_at_once_if_its_supernode_is_gone(tmp_path):
    """A SuperNode that is refused starts a SuperExec, and ends with its folder."""
    assert main([str(tmp_path / "gone" / "task.pipe"), "--insecure"]) == 0
