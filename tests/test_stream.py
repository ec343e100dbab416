"""The stream backend: the contract, and the scars of s3fs and fsspec that it keeps from its users."""

from __future__ import annotations

import asyncio
import io
import itertools
import os
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statelift.backends.checksums import crc32c, crc64nvme
from statelift.backends.closeables import CloseableRegistry
from statelift.backends.errors import (
    BackendError,
    BackendUnavailable,
    ConnectionFailed,
    CopyCancelled,
    CopyFailed,
    IntegrityError,
    OptionError,
    SourceChanged,
    StalledTransfer,
    TransferError,
    UnsupportedCopy,
)
from statelift.backends.options import Configuration
from statelift.backends.report import CopyReport
from statelift.backends.request import CopyRequest
from statelift.backends.s3_access import S3Access
from statelift.backends.s3_options import S3Options
from statelift.backends.stream import StreamFileSystem
from statelift.backends.stream_copy import Pumped, Tally, pump
from statelift.backends.stream_s3 import S3Sink
from statelift.transfer.demo.s3_server import S3Server

from .contract import BucketPlace, Contract, Traits, make_bytes
from .contract.copying import uploads
from .servers import fault_actions as actions
from .servers.fault import Exchange, FaultServer, Rule
from .servers.moto import MotoServer

MIB = 1 << 20
PAIRS = frozenset({"download", "upload", "remote", "local"})
QUICK = {"transfer.stall-timeout": "1s", "transfer.retries": 2}


class TestStream(Contract):
    traits = Traits(pairs=PAIRS, methods=frozenset({"stream"}), ranges=PAIRS)

    def make(self, configuration: Configuration) -> StreamFileSystem:
        return StreamFileSystem(configuration)


@pytest.fixture(scope="module")
def server(s3: S3Server) -> Iterator[FaultServer]:
    with FaultServer(s3.endpoint) as server:
        yield server


@pytest.fixture
def faulty(server: FaultServer, configuration: Configuration) -> Configuration:
    """Reaches the S3 server through the fault server; gives up quickly."""
    server.clear()
    return configuration.with_arguments({"s3.endpoint": server.endpoint, **QUICK})


def copy(configuration: Configuration, *requests: CopyRequest, **how: Any) -> CopyReport:
    file_system = StreamFileSystem(configuration)
    try:
        return file_system.copy_files(requests, CloseableRegistry(), **how)
    finally:
        file_system.close()


def failure_of(configuration: Configuration, request: CopyRequest, **how: Any) -> TransferError:
    with pytest.raises(CopyFailed) as caught:
        copy(configuration, request, **how)
    return caught.value.errors[0]


# What is asked of the store


def test_a_file_costs_one_request(
    faulty: Configuration, server: FaultServer, s3_root: Path, bucket: str, tmp_path: Path
) -> None:
    (s3_root / bucket / "key").write_bytes(make_bytes(20 * MIB))
    crc = crc64nvme(make_bytes(20 * MIB))
    report = copy(faulty, CopyRequest(f"s3://{bucket}/key", f"{tmp_path}/to", crc64nvme=crc))
    assert report.files[0].verified == "crc64nvme"
    assert report.files[0].crc64nvme == crc
    assert [(each.method, each.range) for each in server.requests] == [("GET", None)]


@pytest.mark.parametrize("fault", [actions.slow_down(), actions.reset(after=10), actions.stall(after=10)])
def test_attempts_do_not_multiply(
    faulty: Configuration, server: FaultServer, s3_root: Path, bucket: str, tmp_path: Path, fault: Any
) -> None:
    """s3fs tries 5 times, botocore 5 times each: 25 requests, or 15 s for each stall."""
    (s3_root / bucket / "key").write_bytes(make_bytes(100_000))
    server.add(Rule("GET *", fault, times=None))
    error = failure_of(faulty, CopyRequest(f"s3://{bucket}/key", f"{tmp_path}/to"))
    assert isinstance(error, (BackendError, ConnectionFailed, StalledTransfer))
    assert len(server.requests) == 3


def test_a_session_token_and_no_ambient_credentials_are_sent(
    faulty: Configuration, server: FaultServer, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ambient")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "ambient")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "ambient-1")
    configuration = faulty.with_arguments({"s3.session-token": "a-token"})
    failure_of(configuration, CopyRequest(f"s3://{bucket}/none", f"{tmp_path}/to"))
    request = server.requests[0]
    assert request.header("x-amz-security-token") == "a-token"
    assert "Credential=statelift-demo/" in (request.header("authorization") or "")
    assert "/us-east-1/s3/" in (request.header("authorization") or "")


def test_an_anonymous_request_is_not_signed(
    faulty: Configuration, server: FaultServer, bucket: str, tmp_path: Path
) -> None:
    configuration = faulty.with_arguments({"s3.access-key": "", "s3.secret-key": "", "s3.anonymous": True})
    failure_of(configuration, CopyRequest(f"s3://{bucket}/key", f"{tmp_path}/to"))
    assert server.requests[0].header("authorization") is None


def test_encryption_is_asked_for(faulty: Configuration, server: FaultServer, bucket: str, tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"bytes")
    (tmp_path / "large").write_bytes(bytes(9 * MIB))
    encrypted = faulty.with_arguments({"s3.sse.type": "aws:kms", "s3.sse.kms.key-id": "a-key"})
    requests = [CopyRequest(f"{tmp_path}/{name}", f"s3://{bucket}/{name}") for name in ("small", "large")]
    copy(encrypted, *requests)
    begun = [each for each in server.requests if each.method == "POST" and "uploads" in each.query]
    begun += [each for each in server.requests if each.method == "PUT" and not each.query]
    assert len(begun) == 2
    for each in begun:
        assert each.header("x-amz-server-side-encryption") == "aws:kms"
        assert each.header("x-amz-server-side-encryption-aws-kms-key-id") == "a-key"


# Versions


def test_another_etag_is_another_version(
    configuration: Configuration, s3_root: Path, bucket: str, tmp_path: Path
) -> None:
    (s3_root / bucket / "key").write_bytes(b"bytes")
    error = failure_of(configuration, CopyRequest(f"s3://{bucket}/key", f"{tmp_path}/to", etag='"another"'))
    assert isinstance(error, SourceChanged)
    assert not (tmp_path / "to").exists()


def test_if_match_is_sent(
    moto_configuration: Configuration, moto_s3: MotoServer, moto_bucket: str, tmp_path: Path
) -> None:
    access = S3Access(moto_configuration.of(S3Options))
    client: Any = access.client()
    etag = client.put_object(Bucket=moto_bucket, Key="key", Body=b"bytes")["ETag"]
    access.close()
    with FaultServer(moto_s3.endpoint) as server:
        configuration = moto_configuration.with_arguments({"s3.endpoint": server.endpoint})
        copy(configuration, CopyRequest(f"s3://{moto_bucket}/key", f"{tmp_path}/to", etag=etag.strip('"')))
        error = failure_of(configuration, CopyRequest(f"s3://{moto_bucket}/key", f"{tmp_path}/no", etag="another"))
        assert [each.header("if-match") for each in server.requests] == [etag, '"another"']
    assert isinstance(error, SourceChanged)


def test_an_object_replaced_while_it_is_read_is_noticed(
    configuration: Configuration, s3_root: Path, bucket: str, tmp_path: Path
) -> None:
    """Without a checksum in the request, and on a store that ignores If-Match."""
    key = s3_root / bucket / "key"
    key.write_bytes(make_bytes(6 * MIB, 1))

    def replace(request: CopyRequest, count: int) -> None:
        (tmp_path / "new").write_bytes(make_bytes(6 * MIB, 2))
        os.replace(tmp_path / "new", key)

    error = failure_of(configuration, CopyRequest(f"s3://{bucket}/key", f"{tmp_path}/to"), progress=replace)
    assert isinstance(error, SourceChanged)
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize("size", [3 * MIB, 20 * MIB])
def test_a_file_written_to_while_it_goes_up_is_noticed(
    configuration: Configuration, s3_root: Path, bucket: str, tmp_path: Path, size: int
) -> None:
    source = tmp_path / "from"
    source.write_bytes(make_bytes(size))

    def touch(request: CopyRequest, count: int) -> None:
        os.utime(source)

    error = failure_of(configuration, CopyRequest(str(source), f"s3://{bucket}/to"), progress=touch)
    assert isinstance(error, SourceChanged)
    assert not (s3_root / bucket / "to").exists()
    assert uploads(configuration, BucketPlace(s3_root / bucket)) == []


# Multipart uploads are never orphaned


@pytest.mark.parametrize("part", [1, 2, 3])
def test_a_failed_part_aborts_the_upload(
    faulty: Configuration, server: FaultServer, s3_root: Path, bucket: str, tmp_path: Path, part: int
) -> None:
    (tmp_path / "from").write_bytes(make_bytes(20 * MIB))
    server.add(Rule(f"PUT *partNumber={part}*", actions.status(403, "AccessDenied"), times=None))
    failure_of(faulty, CopyRequest(f"{tmp_path}/from", f"s3://{bucket}/to"))
    assert [each.method for each in server.requests][-1] == "DELETE"
    assert uploads(faulty, BucketPlace(s3_root / bucket)) == []


def test_an_upload_that_begins_after_the_cancel_is_aborted(
    faulty: Configuration, server: FaultServer, s3_root: Path, bucket: str, tmp_path: Path
) -> None:
    (tmp_path / "from").write_bytes(make_bytes(20 * MIB))
    registry = CloseableRegistry()

    def answer_late(exchange: Exchange) -> None:
        answer = exchange.forward()
        registry.close("enough")
        time.sleep(0.2)
        exchange.answer(answer)

    server.add(Rule("POST *uploads*", answer_late))
    file_system = StreamFileSystem(faulty)
    with pytest.raises(CopyCancelled):
        file_system.copy_files([CopyRequest(f"{tmp_path}/from", f"s3://{bucket}/to")], registry)
    file_system.close()
    assert [each.method for each in server.requests] == ["POST", "DELETE"]
    assert uploads(faulty, BucketPlace(s3_root / bucket)) == []


def test_a_silent_server_does_not_hold_the_cancel(
    faulty: Configuration, server: FaultServer, bucket: str, tmp_path: Path
) -> None:
    (tmp_path / "from").write_bytes(make_bytes(20 * MIB))
    registry = CloseableRegistry()
    silent = actions.stall(of_head=True)
    began = threading.Event()

    def part(exchange: Exchange) -> None:
        began.set()
        silent(exchange)

    server.add(Rule("PUT *", part, times=None), Rule("DELETE *", silent, times=None))
    file_system = StreamFileSystem(faulty.with_arguments({"transfer.stall-timeout": "60s"}))
    request = CopyRequest(f"{tmp_path}/from", f"s3://{bucket}/to")

    def run() -> None:
        with pytest.raises(CopyCancelled):
            file_system.copy_files([request], registry)

    thread = threading.Thread(target=run)
    thread.start()
    assert began.wait(20)
    started = time.monotonic()
    registry.close("enough")
    thread.join(20)
    assert time.monotonic() - started < 3
    file_system.close()


@given(st.integers(0, 5 << 40), st.integers(5 * MIB, 100 * MIB))
def test_no_upload_has_more_parts_than_s3_takes(size: int, part_size: int) -> None:
    def parts(known: int | None) -> int:
        request = CopyRequest("/from", "s3://bucket/to", size=known)
        sink = S3Sink(None, request, arguments={}, part_size=part_size, beat=int, grace=float, sever=int)
        left, count = size, 0
        while left > 0 and count <= 10_000:
            # Of parts of one size as many as there are, at most a hundred at once.
            sink._parts = [{}] * count
            some = min(100 - count % 100, -(-left // sink._next_part))
            left -= some * sink._next_part
            count += some
        return count

    assert parts(size) <= 10_000
    assert parts(None) <= 10_000


# fsspec's other file systems


@pytest.fixture
def memory() -> Iterator[Any]:
    from fsspec.implementations.memory import MemoryFileSystem

    store = MemoryFileSystem()
    store.store.clear()
    store.pseudo_dirs[:] = [""]
    yield store
    store.store.clear()


@pytest.mark.parametrize("name", ["plain", "a b", "*", "[x]", "a?b", "{1,2}", "%20", "é"])
def test_copies_to_and_from_any_file_system(
    memory: Any, configuration: Configuration, s3_root: Path, bucket: str, tmp_path: Path, name: str
) -> None:
    data = make_bytes(MIB + 1)
    (tmp_path / "from").write_bytes(data)
    memory.pipe("/below/xx", b"canary")
    crc = crc64nvme(data)
    for source, destination in (
        (f"{tmp_path}/from", f"memory://below/{name}"),
        (f"memory://below/{name}", f"s3://{bucket}/{name}"),
        (f"s3://{bucket}/{name}", f"memory://other/{name}"),
        (f"memory://other/{name}", f"{tmp_path}/to/{name}"),
    ):
        report = copy(configuration, CopyRequest(source, destination, size=len(data), crc64nvme=crc))
        assert report.files[0].verified == "crc64nvme"
    assert (tmp_path / "to" / name).read_bytes() == data
    assert (s3_root / bucket / name).read_bytes() == data
    assert {path for path in memory.store if path != "/below/xx"} == {f"/below/{name}", f"/other/{name}"}
    assert memory.cat("/below/xx") == b"canary"


def test_nothing_is_visible_in_any_file_system_before_it_is_whole(memory: Any, tmp_path: Path) -> None:
    (tmp_path / "from").write_bytes(make_bytes(3 * MIB))
    memory.pipe("/old", b"old")
    seen: list[set[str]] = []
    request = CopyRequest(f"{tmp_path}/from", "memory://new", crc64nvme=1)
    error = failure_of(Configuration(environ={}), request, progress=lambda *_: seen.append(set(memory.store)))
    assert isinstance(error, IntegrityError)
    assert seen
    assert all("/new" not in names for names in seen)
    assert set(memory.store) == {"/old"}
    copy(Configuration(environ={}), CopyRequest(f"{tmp_path}/from", "memory://old"))
    assert set(memory.store) == {"/old"}
    assert memory.cat("/old") == make_bytes(3 * MIB)


def test_a_range_of_any_file_system(memory: Any, tmp_path: Path) -> None:
    memory.pipe("/from", bytes(range(100)))
    copy(Configuration(environ={}), CopyRequest("memory://from", f"{tmp_path}/to", offset=10, length=5))
    assert (tmp_path / "to").read_bytes() == bytes(range(10, 15))
    error = failure_of(Configuration(environ={}), CopyRequest("memory://from", f"{tmp_path}/no", offset=98, length=5))
    assert isinstance(error, IntegrityError)


def test_a_change_in_any_file_system_is_noticed(memory: Any, tmp_path: Path) -> None:
    memory.pipe("/from", make_bytes(20 * MIB))
    request = CopyRequest("memory://from", f"{tmp_path}/to")
    error = failure_of(Configuration(environ={}), request, progress=lambda *_: memory.pipe("/from", b"other"))
    assert isinstance(error, SourceChanged)
    assert not (tmp_path / "to").exists()


def test_a_missing_package_is_told_with_the_line_that_installs_it(
    configuration: Configuration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    error = failure_of(configuration, CopyRequest("s3://bucket/key", f"{tmp_path}/to"))
    assert isinstance(error, BackendUnavailable)
    assert "pip install 'statelift[s3fs]'" in str(error)
    (tmp_path / "from").write_bytes(b"bytes")
    copy(configuration, CopyRequest(f"{tmp_path}/from", f"{tmp_path}/to"))


def test_an_http_server_that_refuses_is_not_a_missing_file(tmp_path: Path) -> None:
    """fsspec raises FileNotFoundError for both."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        source = f"http://127.0.0.1:{bound.getsockname()[1]}/file"
        configuration = Configuration({"transfer.retries": 0}, environ={})
        error = failure_of(configuration, CopyRequest(source, f"{tmp_path}/to"))
    assert isinstance(error, ConnectionFailed)
    assert "Cannot connect" in str(error)


def test_a_file_system_that_cannot_write_says_so(tmp_path: Path) -> None:
    (tmp_path / "from").write_bytes(b"bytes")
    error = failure_of(Configuration(environ={}), CopyRequest(f"{tmp_path}/from", "http://127.0.0.1:1/to"))
    assert isinstance(error, UnsupportedCopy)
    assert "http://127.0.0.1:1/to: not supported" in str(error)


def test_a_long_reason_is_told_by_its_first_line(memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def info(*_: object, **__: object) -> None:
        raise OSError("no library\nnot here\nnor there")

    monkeypatch.setattr(type(memory), "info", info)
    error = failure_of(Configuration(environ={}), CopyRequest("memory://from", f"{tmp_path}/to"))
    assert str(error) == "memory://from: OSError: no library"


# The process it runs in


def test_it_leaves_fsspec_alone(configuration: Configuration, s3_root: Path, bucket: str, tmp_path: Path) -> None:
    """No global loop, no cached instance that a forked child would inherit."""
    import fsspec.asyn
    from s3fs import S3FileSystem

    (s3_root / bucket / "key").write_bytes(b"bytes")
    loop = fsspec.asyn.loop[0]
    cached = dict(S3FileSystem._cache)
    copy(configuration, CopyRequest(f"s3://{bucket}/key", f"{tmp_path}/to"))
    assert fsspec.asyn.loop[0] is loop
    assert dict(S3FileSystem._cache) == cached


def test_it_copies_where_a_loop_is_running(
    configuration: Configuration, s3_root: Path, bucket: str, tmp_path: Path
) -> None:
    """As in a notebook."""
    (s3_root / bucket / "key").write_bytes(b"bytes")

    async def main() -> None:
        copy(configuration, CopyRequest(f"s3://{bucket}/key", f"{tmp_path}/to"))

    asyncio.run(main())
    assert (tmp_path / "to").read_bytes() == b"bytes"


@pytest.mark.parametrize(("options", "most"), [({"stream.parallel": 1}, 1), ({"transfer.threads": 2}, 2)])
def test_so_many_files_are_in_flight_at_once(
    configuration: Configuration, s3_root: Path, bucket: str, tmp_path: Path, options: dict[str, object], most: int
) -> None:
    threads: set[int] = set()
    requests = []
    for number in range(6):
        (s3_root / bucket / f"{number}").write_bytes(make_bytes(1000))
        requests.append(CopyRequest(f"s3://{bucket}/{number}", f"{tmp_path}/{number}"))

    def note(request: CopyRequest, count: int) -> None:
        threads.add(threading.get_ident())
        time.sleep(0.05)

    copy(configuration.with_arguments(options), *requests, progress=note)
    assert len(threads) == most


def test_a_retried_file_is_counted_once(
    faulty: Configuration, server: FaultServer, s3_root: Path, bucket: str, tmp_path: Path
) -> None:
    (s3_root / bucket / "key").write_bytes(make_bytes(3 * MIB))
    server.add(Rule("GET *", actions.reset(after=2 * MIB)))
    counts: list[int] = []
    request = CopyRequest(f"s3://{bucket}/key", f"{tmp_path}/to")
    copy(faulty, request, progress=lambda _, count: counts.append(count))
    assert sum(counts) == 3 * MIB


def test_options_that_make_no_sense_are_refused() -> None:
    for wrong in ({"stream.parallel": 0}, {"stream.part-size": "1mb"}):
        with pytest.raises(OptionError):
            StreamFileSystem(Configuration(wrong, environ={}))


# The tally


class _Bytes:
    """A source and a sink in memory."""

    def __init__(self, data: bytes, cuts: list[int]) -> None:
        self.size: int | None = len(data)
        self.crc64nvme: int | None = None
        self.crc32c: int | None = None
        edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
        self._chunks = [data[start:end] for start, end in itertools.pairwise(edges)]
        self.written = io.BytesIO()
        self.published: int | None = None

    async def chunks(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk

    async def check_unchanged(self, *, proven: bool) -> None: ...

    async def close(self) -> None: ...

    async def write(self, chunk: bytes) -> None:
        self.written.write(chunk)

    async def publish(self, size: int) -> None:
        self.published = size

    async def discard(self) -> None: ...


def pumped(both: _Bytes, request: CopyRequest) -> Pumped:
    return asyncio.run(pump(Tally(request, both, verify=True), both, both, lambda _: None))


@given(st.binary(max_size=200), st.lists(st.integers(0, 1000), max_size=5))
def test_checksums_do_not_depend_on_the_chunks(data: bytes, cuts: list[int]) -> None:
    request = CopyRequest("/from", "/to", size=len(data), crc64nvme=crc64nvme(data), crc32c=crc32c(data))
    both = _Bytes(data, cuts)
    result = pumped(both, request)
    assert (result.verified, result.bytes, result.crc64nvme) == ("crc64nvme", len(data), crc64nvme(data))
    assert both.written.getvalue() == data
    assert both.published == len(data)


@given(
    st.binary(min_size=1, max_size=200),
    st.sampled_from(["size", "crc64nvme", "crc32c", "store", "short", "long"]),
    st.lists(st.integers(0, 1000), max_size=5),
)
def test_nothing_wrong_is_published(data: bytes, what: str, cuts: list[int]) -> None:
    both = _Bytes(data, cuts)
    known: dict[str, Any] = {}
    match what:
        case "size":
            known["size"] = len(data) + 1
        case "crc64nvme" | "crc32c":
            known[what] = {"crc64nvme": crc64nvme, "crc32c": crc32c}[what](data) ^ 1
        case "store":
            both.crc64nvme = crc64nvme(data) ^ 1
        case _:
            both.size = len(data) + (1 if what == "short" else -1)
    with pytest.raises((IntegrityError, ConnectionFailed)):
        pumped(both, CopyRequest("/from", "/to", **known))
    assert both.published is None
