"""One holder of a folder: whoever the second one is, and however the first one ends."""

import errno
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from flwr_asyncdrop.exceptions import FolderError, FolderInUseError
from flwr_asyncdrop.storage import lock
from flwr_asyncdrop.storage.lock import FolderLock

HOLDER = """
import os, sys, time
from pathlib import Path
from flwr_asyncdrop.storage.lock import FolderLock
with FolderLock(Path(sys.argv[1])):
    forks = sys.argv[2] == "forks"
    if forks and os.fork():
        time.sleep(60)
    if forks:  # said by the fork: once it runs Python, it has let go
        print(os.getpid(), flush=True)
    print("holds", flush=True)
    time.sleep(60)
"""


class Holder:
    """A process that holds a folder until it is killed."""

    def __init__(self, folder, how="alone", *flags):
        words = [sys.executable, "-c", HOLDER, str(folder), how, *flags]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        self.fork = int(self.process.stdout.readline()) if how == "forks" else None
        assert self.process.stdout.readline() == "holds\n"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        if self.fork is not None:
            os.kill(self.fork, signal.SIGKILL)
        self.process.stdout.close()


def held_by_others(folder):
    """Return whether another thread, which is as good as a process, can have it."""

    def take():
        with FolderLock(folder):
            return False

    with ThreadPoolExecutor(1) as thread:
        try:
            return thread.submit(take).result()
        except FolderError:
            return True


def open_files():
    return {path.name for path in Path("/dev/fd").iterdir()}


def test_the_second_process_is_told_who_the_first_one_is(tmp_path):
    with Holder(tmp_path) as holder:
        pid = holder.process.pid
        says = rf"{tmp_path} is in use by process {pid} on \S+ since 20\S+ \S+ \(-c "
        with pytest.raises(FolderError, match=says) as caught, FolderLock(tmp_path):
            pass
        assert "\n" not in str(caught.value)


def test_a_holder_with_a_long_command_is_named_and_known_to_be_killed(tmp_path):
    with Holder(tmp_path, "alone", *["--algos=asyncdrop"] * 300) as holder:
        with pytest.raises(FolderError, match=f"by process {holder.process.pid} on "):
            FolderLock(tmp_path).__enter__()
        assert not lock.was_killed(tmp_path)
        assert not lock.is_free(tmp_path)
        holder.process.kill()
        holder.process.wait()
        assert lock.was_killed(tmp_path)
        assert lock.is_free(tmp_path)
    assert (tmp_path / ".lock").stat().st_size < 4096


def test_a_lock_that_a_killed_process_has_left_is_written_anew(tmp_path):
    (tmp_path / ".lock").write_text(json.dumps({"pid": 7, "command": "x" * 2000}))
    with FolderLock(tmp_path):
        assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid()


def test_a_folder_is_free_when_it_was_given_back(tmp_path):
    assert lock.is_free(tmp_path)
    with FolderLock(tmp_path):
        assert not lock.is_free(tmp_path)
        assert lock.is_free(tmp_path, "another")
    assert lock.is_free(tmp_path)
    assert not lock.was_killed(tmp_path)


def test_of_the_lock_of_another_machine_nobody_knows_whether_it_was_killed(tmp_path):
    (tmp_path / ".lock").write_text(json.dumps({"pid": 7, "host": "there"}))
    assert not lock.was_killed(tmp_path)
    assert not lock.is_free(tmp_path)


@pytest.mark.parametrize("words", [["--token", "s3cret"], ["--token=s3cret"]])
def test_the_token_of_a_server_app_is_not_written_down(words, tmp_path, monkeypatch):
    command = ["flwr-serverapp", *words, "--insecure"]
    monkeypatch.setattr(sys, "argv", command)
    with FolderLock(tmp_path):
        said = json.loads((tmp_path / ".lock").read_text())["command"]
    hidden = " ".join(command).replace("s3cret", "...")
    assert said == hidden


@pytest.mark.parametrize("how", ["alone", "forks"])
def test_a_holder_that_is_killed_holds_nothing_even_if_it_has_forked(how, tmp_path):
    with Holder(tmp_path, how) as holder:
        assert held_by_others(tmp_path)
        holder.process.kill()
        holder.process.wait()
        assert not held_by_others(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_moved_stays_held_and_its_old_place_is_free(tmp_path):
    folder, moved = tmp_path / "a", tmp_path / "b"
    with FolderLock(folder) as held:
        held.check()
        folder.rename(moved)
        with pytest.raises(FileNotFoundError):
            held.check()
        assert held_by_others(moved)
        assert not held_by_others(folder)
        with pytest.raises(FileNotFoundError, match="replaced by another folder"):
            held.check()
        shutil.rmtree(folder)
    assert not held_by_others(moved)


def test_the_same_thread_may_take_it_again_and_another_one_may_not(tmp_path):
    with FolderLock(tmp_path), FolderLock(tmp_path):
        with FolderLock(tmp_path):
            assert held_by_others(tmp_path)
        assert held_by_others(tmp_path)
    assert not held_by_others(tmp_path)


def test_a_thread_that_has_ended_holds_nothing(tmp_path):
    left = FolderLock(tmp_path)
    thread = threading.Thread(target=left.__enter__)
    thread.start()
    thread.join()
    with FolderLock(tmp_path):
        assert held_by_others(tmp_path)
    assert not held_by_others(tmp_path)


FORKS = """
import os, sys
from pathlib import Path
from flwr_asyncdrop.exceptions import FolderError
from flwr_asyncdrop.storage.lock import FolderLock
with FolderLock(Path(sys.argv[1])) as held:
    if pid := os.fork():
        os.waitpid(pid, 0)
        os._exit(0 if (Path(sys.argv[1]) / ".lock").exists() else 3)
    held.release()
    try:
        held.__enter__()
    except FolderError as error:
        print(error)
"""


def test_a_fork_neither_holds_what_its_parent_does_nor_gives_it_back(tmp_path):
    words = [sys.executable, "-c", FORKS, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "is in use by process" in done.stdout
    assert done.stdout.count("\n") == 1


def test_of_many_who_try_at_once_one_has_it(tmp_path):
    """The file of the lock comes and goes meanwhile."""
    inside, most, taken = [], [], []

    def take(number):
        for _ in range(50):
            try:
                with FolderLock(tmp_path):
                    inside.append(number)
                    most.append(len(inside))
                    time.sleep(0.0002)
                    inside.remove(number)
                    taken.append(number)
            except FolderError:
                time.sleep(0.0001)

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(take, range(6)))
    assert set(most) == {1}
    assert len(taken) >= 6
    assert list(tmp_path.iterdir()) == []


def test_patience_waits_for_one_that_ends(tmp_path):
    with Holder(tmp_path) as holder:
        threading.Timer(0.3, holder.process.kill).start()
        with FolderLock(tmp_path, patience=30):
            pass


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.EACCES])
def test_a_folder_that_is_held_is_in_use_whatever_its_file_system_calls_that(
    code, tmp_path, monkeypatch
):
    """SMB says "Permission denied": one was told to delete the lock of a live run."""

    def is_held(_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(lock, "_lock_file", is_held)
    with pytest.raises(FolderInUseError, match="in use by another process"):
        FolderLock(tmp_path).__enter__()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_costs_a_warning(
    code, tmp_path, monkeypatch, caplog
):
    def no_locks(_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(lock, "_lock_file", no_locks)
    with FolderLock(tmp_path):
        assert held_by_others(tmp_path)  # in this process it holds all the same
    assert "has no locks" in caplog.text


@pytest.mark.parametrize(
    "code", [errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EDQUOT]
)
def test_a_folder_that_cannot_be_written_is_refused_in_one_line(
    code, tmp_path, monkeypatch
):
    def refuse(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(lock.os, "open", refuse)
    says = re.escape(f"cannot write {tmp_path}: {os.strerror(code)}")
    with pytest.raises(FolderError, match=says), FolderLock(tmp_path):
        pass


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "[" * 4000, '{"pid": 1}', "\udcff\x1b[2J" * 9]
)
def test_whatever_the_file_of_the_lock_says_the_line_is_one(text, tmp_path):
    with Holder(tmp_path):
        (tmp_path / ".lock").write_text(text, errors="surrogateescape")
        with pytest.raises(FolderError, match="is in use by ") as caught:
            ExitStack().enter_context(FolderLock(tmp_path))
        assert str(caught.value).isprintable()
        assert not lock.is_free(tmp_path)


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.ENOLCK, errno.EIO])
def test_no_file_stays_open_of_a_lock_that_was_not_had(code, tmp_path, monkeypatch):
    def refuse(_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(lock, "_lock_file", refuse)
    before = open_files()
    for _ in range(3):
        with suppress(FolderError), FolderLock(tmp_path):
            pass
    assert open_files() == before


@pytest.mark.parametrize("path", ["file", "file/below", "n\0l", "x" * 300])
def test_what_can_be_no_folder_is_refused_in_one_line(path, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FolderError) as caught, FolderLock(tmp_path / path):
        pass
    assert str(caught.value).isprintable()


def test_a_link_is_not_taken_for_the_lock(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("data")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".lock").symlink_to(precious)
    with pytest.raises(FolderError, match="cannot write"), FolderLock(folder):
        pass
    assert precious.read_text() == "data"


def test_the_lock_of_a_process_that_spawns_is_its_own(tmp_path):
    """As those of worker processes, which a fork server starts."""
    context = multiprocessing.get_context("spawn")
    with FolderLock(tmp_path):
        process = context.Process(target=time.sleep, args=(60,))
        process.start()
    try:
        assert not held_by_others(tmp_path)
    finally:
        process.kill()
        process.join()


@pytest.fixture
def left_behind():
    """Return a folder for all, with the lock that another user's run has left."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        (folder / ".lock").write_text(json.dumps({"pid": 7, "host": "there"}))
        with another_user():
            is_reached = os.access(folder, os.W_OK, effective_ids=True)
        if not is_reached:
            pytest.skip("another user cannot reach the folder for temporary files")
        yield folder


@contextmanager
def another_user():
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_lock_that_another_user_has_left_is_replaced(left_behind):
    with another_user(), FolderLock(left_behind):
        assert json.loads((left_behind / ".lock").read_text())["pid"] == os.getpid()
    assert not (left_behind / ".lock").exists()


def test_a_lock_that_another_user_holds_says_who_it_is(left_behind):
    with Holder(left_behind), another_user():
        with pytest.raises(FolderError, match=r"process [0-9]+ on "):
            FolderLock(left_behind).__enter__()
        assert (left_behind / ".lock").exists()


@pytest.mark.parametrize(("mode", "folder"), [(0o600, 0o777), (0o644, 0o1777)])
def test_a_lock_that_cannot_be_replaced_is_named_with_its_owner(
    mode, folder, left_behind
):
    (left_behind / ".lock").chmod(mode)
    left_behind.chmod(folder)
    told = rf"{left_behind}/\.lock is user 0's.*: delete it, if no run goes on there"
    before = open_files()
    with another_user(), pytest.raises(FolderError, match=told):
        FolderLock(left_behind).__enter__()
    assert open_files() == before
    assert (left_behind / ".lock").exists()


def test_a_folder_that_takes_no_file_is_not_blamed_on_a_lock(left_behind):
    (left_behind / ".lock").unlink()
    left_behind.chmod(0o755)
    told = f"cannot write {left_behind}: Permission denied"
    with another_user(), pytest.raises(FolderError, match=told):
        FolderLock(left_behind).__enter__()
