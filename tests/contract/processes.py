"""The contract, part four: pickles, forks, and processes that are killed."""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable

import psutil
import pytest

from statelift.backends.options import Configuration
from statelift.backends.paths_copying import PathsCopyingFileSystem
from statelift.transfer.demo.s3_server import S3Server

from ..servers.proxy import SlowProxy
from .places import MIB, BucketPlace, LocalPlace, Pair, make_bytes
from .suite import Suite, wait_until

_COPY = """
import pickle, sys
from statelift.backends.closeables import CloseableRegistry
file_system, requests = pickle.load(sys.stdin.buffer)
file_system.copy_files(requests, CloseableRegistry())
file_system.close()
"""


class Processes(Suite):
    """Spark sends an instance to other processes, forks them and kills them."""

    def test_pickles_without_secrets(
        self,
        file_system: PathsCopyingFileSystem,
        configuration: Configuration,
        s3: S3Server,
        pair: Pair,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        requests = [pair.put("from", b"new", to="to")]
        self.copy(file_system, requests)
        pickled = pickle.dumps(file_system)
        assert s3.secret_key.encode() not in pickled
        assert s3.secret_key not in repr(file_system)
        for name, value in configuration.secrets().items():
            monkeypatch.setenv(name, value)
        copied = pickle.loads(pickled)
        pair.source.put("from", b"newer")
        self.copy(copied, requests)
        assert pair.destination.get("to") == b"newer"
        copied.close()

    def test_copies_in_another_process(
        self, file_system: PathsCopyingFileSystem, configuration: Configuration, pair: Pair
    ) -> None:
        requests = [pair.put("from", make_bytes(MIB), to="to")]
        with self.started(file_system, requests, configuration) as child:
            _, errors = child.communicate(timeout=60)
        assert child.returncode == 0, errors.decode()
        assert pair.destination.get("to") == make_bytes(MIB)

    def started(
        self, file_system: PathsCopyingFileSystem, requests: list[object], configuration: Configuration
    ) -> subprocess.Popen[bytes]:
        """A process that unpickles the instance and copies."""
        child = subprocess.Popen(
            [sys.executable, "-c", _COPY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **configuration.secrets()},
        )
        assert child.stdin is not None
        child.stdin.write(pickle.dumps((file_system, requests)))
        child.stdin.close()
        child.stdin = None
        return child

    def test_copies_in_a_forked_process(
        self, file_system: PathsCopyingFileSystem, pair: Pair, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if not self.traits.forks:
            pytest.skip("does not survive a fork by its own account")
        self.copy(file_system, [pair.put("from", make_bytes(MIB), to="to-1", size=MIB)])
        requests = [pair.request("from", to="to-2", size=MIB)]
        assert in_fork(lambda: self.copy(file_system, requests)) == ""
        self.copy(file_system, [pair.request("from", to="to-3", size=MIB)])
        assert [pair.destination.get(f"to-{n}") for n in (1, 2, 3)] == [make_bytes(MIB)] * 3

    def test_a_killed_process_leaves_nothing_that_looks_complete(
        self,
        slow_file_system: PathsCopyingFileSystem,
        slow: SlowProxy,
        configuration: Configuration,
        here: LocalPlace,
        there: BucketPlace,
    ) -> None:
        if "download" not in self.traits.pairs:
            pytest.skip("downloads nothing")
        size = 24 * MIB
        pair = self.paired("download", here, there)
        requests = [pair.put(f"from-{n}", make_bytes(size, n), to=f"to-{n}", size=size) for n in range(2)]
        here.put("old", b"old")
        child = self.started(slow_file_system, requests, configuration)
        slow.wait_until_moved(MIB, timeout=60)
        family = psutil.Process(child.pid).children(recursive=True)
        child.send_signal(signal.SIGKILL)
        child.communicate()
        assert wait_until(lambda: not [each for each in family if alive(each)]), family
        assert here.names() == {"old"}
        slow.rate = None
        self.copy(slow_file_system, requests[:1])
        assert here.staged() == []
        assert here.get("to-0") == make_bytes(size, 0)
        assert here.names() == {"old", "to-0"}


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def in_fork(work: Callable[[], object], *, seconds: float = 60) -> str:
    """Run ``work`` in a forked child; what went wrong there, as text, or nothing."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(reader)
            faulthandler.register(signal.SIGUSR1, file=writer)
            work()
            code = 0
        except BaseException:
            os.write(writer, traceback.format_exc().encode()[-4000:])
        finally:
            os._exit(code)
    os.close(writer)
    until = time.monotonic() + seconds
    status: int | None = None
    while status is None and time.monotonic() < until:
        ended, code = os.waitpid(pid, os.WNOHANG)
        status = code if ended else None
        time.sleep(0.01)
    if status is None:
        os.kill(pid, signal.SIGUSR1)
        time.sleep(1.0)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    with os.fdopen(reader, "rb") as said:
        text = said.read().decode()
    return text if status is not None else f"the forked process hung {text}"
