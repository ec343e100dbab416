"""Landing: all bytes or nothing, out of sight until then, swept after a death."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from statelift.backends.errors import DestinationError, IntegrityError, NoSpace
from statelift.backends.landing import STAGING_PREFIX, StagingArea, attempt_directory, require_space, sweep
from statelift.backends.request import CopyRequest


def hidden(directory: Path) -> list[str]:
    return [name for name in os.listdir(directory) if name.startswith(STAGING_PREFIX)]


def test_a_file_appears_whole_and_replaces_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "er" / "a.sst"
    target.parent.mkdir(parents=True)
    target.write_bytes(b"old")
    with StagingArea() as staging:
        landing = staging.land(str(target))
        landing.preallocate(8 << 20)
        os.pwrite(landing.fd, b"world", 5)
        assert target.read_bytes() == b"old"
        os.pwrite(landing.fd, b"hello", 0)
        assert landing.publish(10) == 10
    assert target.read_bytes() == b"helloworld"
    assert hidden(target.parent) == []


def test_a_short_file_is_not_published_though_its_space_was_reserved(tmp_path: Path) -> None:
    with StagingArea() as staging:
        landing = staging.land(str(tmp_path / "a"))
        landing.preallocate(4 << 20)
        os.pwrite(landing.fd, b"x", 0)
        with pytest.raises(IntegrityError, match="would have 1 bytes instead of 4194304"):
            landing.publish(4 << 20)
    assert os.listdir(tmp_path) == []


def test_directories_that_stay_empty_go_again(tmp_path: Path) -> None:
    with pytest.raises(KeyError), StagingArea() as staging:
        os.write(staging.land(str(tmp_path / "new" / "deeper" / "a")).fd, b"half")
        raise KeyError
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["directory", "file/below", "file/"])
def test_destinations_that_cannot_be_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").touch()
    with StagingArea() as staging, pytest.raises(DestinationError):
        staging.land(f"{tmp_path}/{name}")
    assert sorted(os.listdir(tmp_path)) == ["directory", "file"]


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_a_device_pipe_or_socket_is_not_replaced(tmp_path: Path, kind: str) -> None:
    """Who copied to /dev/full as root had a file there instead of the device."""
    path = tmp_path / "special"
    os.mknod(path, 0o600 | (stat.S_IFIFO if kind == "pipe" else stat.S_IFSOCK))
    with StagingArea() as staging, pytest.raises(DestinationError, match="it is a device, pipe or socket"):
        staging.land(str(path))
    assert not path.is_file()
    assert os.listdir(tmp_path) == ["special"]


def test_a_symbolic_link_is_replaced_and_what_it_names_stays(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/dev/null")
    with StagingArea() as staging:
        landing = staging.land(f"{tmp_path}/link")
        os.write(landing.fd, b"new")
        landing.publish(3)
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "link").read_bytes() == b"new"


def test_many_threads_may_land_into_one_new_directory(tmp_path: Path) -> None:
    failures: list[BaseException] = []

    def land(staging: StagingArea, number: int) -> None:
        try:
            landing = staging.land(str(tmp_path / "new" / str(number % 5) / str(number)))
            os.write(landing.fd, str(number).encode())
            landing.publish(None)
        except BaseException as error:
            failures.append(error)

    with StagingArea() as staging:
        threads = [threading.Thread(target=land, args=(staging, number)) for number in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
    assert sorted(int(path.name) for path in tmp_path.rglob("*") if path.is_file()) == list(range(50))


HALF = """
import os, sys, time
from statelift.backends.landing import StagingArea
staging = StagingArea().__enter__()
os.write(staging.land(sys.argv[1]).fd, b"half")
print("ready", flush=True)
time.sleep(60)
"""


def test_a_killed_process_leaves_nothing_that_looks_complete_and_is_swept(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", HALF, str(tmp_path / "a.sst")], stdout=subprocess.PIPE)
    assert child.stdout is not None
    with child, child.stdout:
        assert child.stdout.readline() == b"ready\n"
        assert sweep(tmp_path) == 0, "the owner is alive"
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert len(hidden(tmp_path)) == 1
    assert not list(tmp_path.glob("*.sst"))
    with StagingArea() as staging:
        staging.land(str(tmp_path / "b"))
        assert len(hidden(tmp_path)) == 1, "the dead one's directory should be gone, ours be there"
    assert os.listdir(tmp_path) == []


def test_an_attempt_keeps_only_what_was_renamed_out_of_it(tmp_path: Path) -> None:
    with attempt_directory(tmp_path / "x") as directory:
        (Path(directory) / "kept").touch()
        (Path(directory) / "dropped").touch()
        os.rename(f"{directory}/kept", tmp_path / "x" / "kept")
    assert os.listdir(tmp_path / "x") == ["kept"]


def test_more_than_the_disk_has_is_refused_beforehand(tmp_path: Path) -> None:
    with pytest.raises(NoSpace, match="do not fit below"):
        require_space([CopyRequest("s3://b/k", str(tmp_path / "new" / "a"), size=1 << 60)])
    require_space([CopyRequest("s3://b/k", str(tmp_path / "a"), size=1), CopyRequest("/a", "s3://b/k", size=1 << 60)])
    assert os.listdir(tmp_path) == []
