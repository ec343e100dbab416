"""What every part of the contract stands on: traits, fixtures, a copy in another thread."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest

from statelift.backends.closeables import CloseableRegistry
from statelift.backends.errors import CopyFailed, TransferError
from statelift.backends.options import Configuration
from statelift.backends.paths_copying import PathsCopyingFileSystem
from statelift.backends.report import CopyReport
from statelift.backends.request import CopyRequest
from statelift.transfer.demo.s3_server import S3Server

from ..servers.proxy import SlowProxy
from .places import BucketPlace, LocalPlace, Pair, Place

#: Seconds within which a copy must have ended after its registry was closed: the duty is 1.
ENDS_WITHIN = 3.0

_KINDS = {
    "pair": ("download", "upload", "remote", "local"),
    "s3_pair": ("download", "upload", "remote"),
    "landing_pair": ("download", "local"),
    "checked_pair": ("download", "upload", "local"),
}
#: Threads of the tests' own servers, and pools of packages that live as long as the process.
_INFRASTRUCTURE = ("slow-proxy", "fault", "fsspecIO", "pytest", "Thread-")


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What a backend says of itself; the suite holds it to that.

    Args:
        pairs: of ``download``, ``upload``, ``remote`` (S3 to S3) and ``local``.
        methods: names that ``CopiedFile.method`` may have.
        ranges: pairs of which it copies byte ranges; any other range must be refused, not copied whole.
        newline: whether names with a newline are copied; else they must be refused.
        forks: whether a child may use it after a fork of a process that has used it.
    """

    pairs: frozenset[str]
    methods: frozenset[str]
    ranges: frozenset[str] = frozenset({"download", "upload", "local"})
    newline: bool = True
    forks: bool = True


@dataclass
class Running:
    """A copy in a thread of its own, and how it ended."""

    registry: CloseableRegistry = field(default_factory=CloseableRegistry)
    report: CopyReport | None = None
    error: BaseException | None = None
    thread: threading.Thread | None = None
    moved: threading.Event = field(default_factory=threading.Event)
    held: threading.Condition = field(default_factory=threading.Condition)

    def start(self, file_system: PathsCopyingFileSystem, requests: Sequence[CopyRequest], **how: Any) -> Running:
        def run() -> None:
            try:
                self.report = file_system.copy_files(requests, self.registry, **how)
            except BaseException as error:
                self.error = error

        self.thread = threading.Thread(target=run, name="contract-copy")
        self.thread.start()
        return self

    def close(self, reason: str = "closed by the test") -> None:
        self.registry.close(reason)
        with self.held:
            self.held.notify_all()

    def join(self, seconds: float) -> float:
        """Wait for the end, at most ``seconds``; returns how long it took."""
        started = time.monotonic()
        assert self.thread is not None
        self.thread.join(seconds)
        assert not self.thread.is_alive(), f"the copy still runs after {seconds} s"
        return time.monotonic() - started


def children() -> set[int]:
    """Living children of this process at any depth, without zombies."""
    found = set()
    for child in psutil.Process().children(recursive=True):
        try:
            if child.status() != psutil.STATUS_ZOMBIE:
                found.add(child.pid)
        except psutil.NoSuchProcess:
            continue
    return found


def threads() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if not each.name.startswith(_INFRASTRUCTURE)}


def wait_until(condition: Callable[[], object], *, seconds: float = ENDS_WITHIN) -> bool:
    """Whether the condition came true in time."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


class Suite:
    """A backend's test class says ``traits`` and ``make``; ``options`` are added to every configuration."""

    traits: ClassVar[Traits]
    options: ClassVar[dict[str, object]] = {}

    def make(self, configuration: Configuration) -> PathsCopyingFileSystem:
        raise NotImplementedError

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        for name, kinds in _KINDS.items():
            if name in metafunc.fixturenames:
                metafunc.parametrize(name, [kind for kind in kinds if kind in self.traits.pairs], indirect=True)

    @contextmanager
    def opened(self, configuration: Configuration, **options: object) -> Iterator[PathsCopyingFileSystem]:
        """A new instance; it is closed with the block."""
        given = {**self.options, **{key.replace("__", "."): value for key, value in options.items()}}
        file_system = self.make(configuration.with_arguments(given))
        try:
            yield file_system
        finally:
            file_system.close()

    @pytest.fixture
    def nothing_left(self, s3: S3Server, here: LocalPlace) -> Iterator[None]:
        """After every test: no thread, no child, nothing staged."""
        threads_before, children_before = threads(), children()
        yield
        assert wait_until(lambda: threads() <= threads_before), threads() - threads_before
        assert wait_until(lambda: children() <= children_before), children() - children_before
        assert here.staged() == []

    @pytest.fixture
    def file_system(self, configuration: Configuration, nothing_left: None) -> Iterator[PathsCopyingFileSystem]:
        with self.opened(configuration) as file_system:
            yield file_system

    @pytest.fixture
    def slow(self, s3: S3Server) -> Iterator[SlowProxy]:
        """A way to the S3 server that lets 1 MiB through per second."""
        with SlowProxy(s3.endpoint, rate=1 << 20) as proxy:
            yield proxy

    @pytest.fixture
    def slow_file_system(
        self, slow: SlowProxy, configuration: Configuration, nothing_left: None
    ) -> Iterator[PathsCopyingFileSystem]:
        with self.opened(configuration.with_arguments({"s3.endpoint": slow.endpoint})) as file_system:
            yield file_system

    @pytest.fixture
    def here(self, tmp_path: Path) -> LocalPlace:
        """A local directory, where nothing may be left staged."""
        (tmp_path / "here").mkdir()
        return LocalPlace(tmp_path / "here")

    @pytest.fixture
    def there(self, s3_root: Path, bucket: str) -> BucketPlace:
        """A fresh bucket of the S3 server."""
        return BucketPlace(s3_root / bucket)

    @pytest.fixture
    def pair(self, request: pytest.FixtureRequest, here: LocalPlace, there: BucketPlace) -> Pair:
        return self.paired(request.param, here, there)

    s3_pair = landing_pair = checked_pair = pair

    def paired(self, kind: str, here: LocalPlace, there: Place) -> Pair:
        """The pair of this kind between a local directory and a bucket."""
        if kind == "download":
            return Pair(kind, there, here)
        if kind == "upload":
            return Pair(kind, here, there)
        if kind == "remote":
            return Pair(kind, there, _Below(there, "copies/"))
        return Pair(kind, here, LocalPlace(here.directory / "copies"))

    def copy(self, file_system: PathsCopyingFileSystem, requests: Sequence[CopyRequest], **how: Any) -> CopyReport:
        return file_system.copy_files(requests, CloseableRegistry(), **how)

    def copy_fails(
        self,
        file_system: PathsCopyingFileSystem,
        requests: Sequence[CopyRequest],
        kind: type[TransferError],
        **how: Any,
    ) -> CopyFailed:
        """The failure of a copy of which the first error must be of this kind and name its request."""
        with pytest.raises(CopyFailed) as caught:
            self.copy(file_system, requests, **how)
        failure = caught.value
        assert isinstance(failure.errors[0], kind), repr(failure.errors[0])
        for error in failure.errors:
            assert error.request in requests, f"{error!r} does not name its request: {error.request!r}"
            assert error.backend == file_system.name
        ended = [error.request for error in failure.errors] + [file.request for file in failure.done]
        assert set(ended) <= set(requests)
        assert len(set(ended)) == len(ended), "a request ended twice"
        return failure


@dataclass(frozen=True)
class _Below:
    """A place under a prefix of another one."""

    place: Place
    prefix: str

    def uri(self, name: str) -> str:
        return self.place.uri(self.prefix + name)

    def put(self, name: str, data: bytes) -> str:
        return self.place.put(self.prefix + name, data)

    def get(self, name: str) -> bytes | None:
        return self.place.get(self.prefix + name)

    def names(self) -> set[str]:
        found = self.place.names()
        return {name.removeprefix(self.prefix) for name in found if name.startswith(self.prefix)}


def descriptors() -> list[str]:
    """What this process's descriptors point to."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            continue
    return found
