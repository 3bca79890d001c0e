"""The cluster that Ray would join, where nobody answers."""

import socket

import pytest

from flwr_asyncdrop.flower_internals.ray_address import missing_cluster, remedy


@pytest.fixture
def gone():
    """Return an address at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return f"127.0.0.1:{port}"


def kept_in(folder, address):
    """Return the file in which `ray start` keeps an address."""
    file = folder / "ray" / "ray_current_cluster"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{address}\n")
    return file


def test_an_address_at_which_nobody_answers(gone):
    assert missing_cluster({"RAY_ADDRESS": gone}) == (gone, "RAY_ADDRESS")
    assert remedy("RAY_ADDRESS") == "start the cluster, or unset RAY_ADDRESS"


@pytest.mark.parametrize("variable", ["RAY_TMPDIR", "TMPDIR"])
def test_a_file_that_a_cluster_has_left(variable, gone, tmp_path):
    file = kept_in(tmp_path, gone)
    environment = {"RAY_ADDRESS": "", variable: str(tmp_path)}
    assert missing_cluster(environment) == (gone, str(file))
    assert remedy(str(file)) == f"start the cluster, or delete {file}"


def test_rays_own_folder_and_its_variable_come_first(gone, tmp_path):
    kept_in(tmp_path / "other", "127.0.0.1:1")
    file = kept_in(tmp_path, gone)
    both = {"RAY_TMPDIR": str(tmp_path), "TMPDIR": str(tmp_path / "other")}
    assert missing_cluster(both) == (gone, str(file))
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = f"127.0.0.1:{server.getsockname()[1]}"
        assert missing_cluster({**both, "RAY_ADDRESS": there}) == ("", "")


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_a_cluster_that_answers(host):
    family = socket.AF_INET6 if host == "[::1]" else socket.AF_INET
    try:
        server = socket.create_server((host.strip("[]"), 0), family=family)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with server:
        address = f"{host}:{server.getsockname()[1]}"
        assert missing_cluster({"RAY_ADDRESS": address}) == ("", "")


@pytest.mark.parametrize("address", ["auto", "local", "ray://host:10001", "host", ":1"])
def test_what_is_no_address_of_a_head(address):
    assert missing_cluster({"RAY_ADDRESS": address}) == ("", "")


@pytest.mark.parametrize("address", ["127.0.0.1:99999", f"{'a' * 70}.org:1"])
def test_where_no_head_can_be(address):
    assert missing_cluster({"RAY_ADDRESS": address}) == (address, "RAY_ADDRESS")


@pytest.mark.parametrize("content", [b"", b"\xff:1"])
def test_a_file_that_says_nothing(content, tmp_path):
    kept_in(tmp_path, "").write_bytes(content)
    assert missing_cluster({"RAY_TMPDIR": str(tmp_path)}) == ("", "")


def test_no_file_at_all(tmp_path):
    assert missing_cluster({"RAY_TMPDIR": str(tmp_path)}) == ("", "")
