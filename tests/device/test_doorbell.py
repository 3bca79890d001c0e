import os
import shutil
import stat
import threading
import time

import pytest

from flwr_asyncdrop.device.doorbell import Doorbell


@pytest.fixture
def path(tmp_path):
    return tmp_path / "bell"


def test_a_ring_before_the_wait_is_remembered_once(path):
    waits, rings = Doorbell(path), Doorbell(path)
    assert not waits.wait(0.0)
    for _ in range(3):
        rings.ring()
    assert waits.wait(10.0)
    assert not waits.wait(0.0)


def test_a_ring_wakes_who_waits(path):
    waits = Doorbell(path)
    assert not waits.wait(0.0)
    threading.Timer(0.1, Doorbell(path).ring).start()
    started = time.monotonic()
    assert waits.wait(30.0)
    assert time.monotonic() - started < 10


def test_ringing_where_nobody_waits_does_nothing(path):
    bell = Doorbell(path)
    bell.ring()
    path.unlink()
    bell.ring()


def test_ringing_more_often_than_the_pipe_holds_does_not_block(path):
    waits, rings = Doorbell(path), Doorbell(path)
    assert not waits.wait(0.0)
    for _ in range(70_000):
        rings.ring()
    assert waits.wait(0.0)


def test_the_pipe_is_its_users_alone(path):
    Doorbell(path)
    mode = path.stat().st_mode
    assert stat.S_ISFIFO(mode)
    assert stat.S_IMODE(mode) == 0o600
    assert path.stat().st_uid == os.geteuid()


def test_where_its_folder_is_gone_nobody_rings(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    bell = Doorbell(folder / "bell")
    shutil.rmtree(folder)
    began = time.monotonic()
    assert not bell.wait(0.05)
    assert time.monotonic() - began >= 0.05
    bell.ring()
