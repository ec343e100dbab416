"""Limits: bytes per second, CPU, connections, descriptors; alone and shared by processes."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from statelift.backends.closeables import CloseableRegistry
from statelift.backends.errors import OptionError
from statelift.backends.options import Configuration
from statelift.backends.request import CopyRequest
from statelift.backends.wire import WireFileSystem
from statelift.backends.wire.limits import LocalClock, Pace, SharedClock, Slots
from statelift.backends.wire.options import MOST_PARTS, WireOptions

from .raw_server import Asked, RawServer, answer

MIB = 1 << 20


def test_a_pace_is_kept_over_any_number_of_takes() -> None:
    pace, waited, started = Pace(1000.0, LocalClock()), 0.0, time.monotonic()
    for _ in range(50):
        waited = max(waited, pace.take(100.0))
    assert 4.7 - (time.monotonic() - started) < waited < 4.95


def test_a_shared_clock_is_one_for_all_who_open_it(tmp_path: Path) -> None:
    one, other = SharedClock(tmp_path / "clock"), SharedClock(tmp_path / "clock")
    now = time.monotonic()
    assert one.advance(now, 2.0) == now + 2.0
    assert other.advance(now, 3.0) == now + 5.0
    one.close()
    other.close()


def test_a_clock_from_before_a_reboot_is_set_anew(tmp_path: Path) -> None:
    clock = SharedClock(tmp_path / "clock")
    clock.advance(1e9, 1.0)
    assert clock.advance(5.0, 1.0) == 6.0
    clock.close()


def test_slots_are_freed_by_their_process_s_death(tmp_path: Path) -> None:
    slots = Slots(tmp_path, 1)
    token = slots.acquire()
    assert token is not None
    take = (
        "import sys; from pathlib import Path; from statelift.backends.wire.limits import Slots;"
        "print(Slots(Path(sys.argv[1]), 1).acquire() is not None)"
    )

    def other() -> str:
        return subprocess.check_output([sys.executable, "-c", take, str(tmp_path)], text=True).strip()

    assert other() == "False"
    slots.release(token)
    assert other() == "True"
    assert slots.acquire() is not None


@pytest.mark.parametrize("shared", [False, True])
def test_a_copy_keeps_to_its_bandwidth(tmp_path: Path, *, shared: bool) -> None:
    with RawServer(lambda _: answer("200 OK", b"x" * (2 * MIB))) as server:
        options = {
            "s3.endpoint": server.endpoint,
            "s3.anonymous": True,
            "s3.region": "us-east-1",
            "wire.bandwidth.max": "4mb",
            "wire.host-limits": shared,
            "wire.state-directory": str(tmp_path / "state"),
            "wire.buffer-size": "64kb",
        }
        file_system = WireFileSystem(Configuration(options, environ={}))
        requests = [CopyRequest(f"s3://b/{n}", str(tmp_path / str(n)), size=2 * MIB) for n in range(4)]
        started = time.monotonic()
        file_system.copy_files(requests, CloseableRegistry())
        assert time.monotonic() - started > 1.6
        file_system.close()


def test_no_more_connections_than_allowed_also_by_several_threads(tmp_path: Path) -> None:
    open_now, most, lock = [0], [0], threading.Lock()

    def answering(_: Asked) -> bytes:
        with lock:
            open_now[0] += 1
            most[0] = max(most[0], open_now[0])
        time.sleep(0.02)
        with lock:
            open_now[0] -= 1
        return answer("200 OK", b"data")

    with RawServer(answering) as server:
        options = {
            "s3.endpoint": server.endpoint,
            "s3.anonymous": True,
            "s3.region": "us-east-1",
            "s3.connection.max": 3,
        }
        file_system = WireFileSystem(Configuration(options, environ={}))

        def copy(name: str) -> None:
            requests = [CopyRequest(f"s3://b/{n}", str(tmp_path / name / str(n)), size=4) for n in range(20)]
            file_system.copy_files(requests, CloseableRegistry())

        threads = [threading.Thread(target=copy, args=(name,)) for name in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        file_system.close()
    assert 1 < most[0] <= 3


def test_few_descriptors_make_few_connections(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with RawServer(lambda _: answer("200 OK", b"data")) as server:
        options = {"s3.endpoint": server.endpoint, "s3.anonymous": True, "s3.region": "us-east-1"}
        file_system = WireFileSystem(Configuration(options, environ={}))
        requests = [CopyRequest(f"s3://b/{n}", str(tmp_path / str(n)), size=4) for n in range(300)]
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/dev/fd")) + 90, hard))
            report = file_system.copy_files(requests, CloseableRegistry())
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            file_system.close()
    assert len(report.files) == 300


def test_the_memory_limit_limits_connections() -> None:
    options = WireOptions(connections=1000, memory=10 * MIB)
    assert options.connection_limit(tls=True) < 25 < options.connection_limit(tls=False)
    with pytest.raises(OptionError):
        WireOptions(memory=MIB)


def test_parts_are_few_enough() -> None:
    options = WireOptions()
    for size in (1, 100 * MIB, 5 << 40):
        assert -(-size // options.part_size_for(size)) <= MOST_PARTS
