"""The sdk backend: the contract for both managers, and the scars of s3transfer and the CRT."""

from __future__ import annotations

import importlib.util
import itertools
import os
import pickle
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statelift.backends import crt_client
from statelift.backends.checksums import crc64nvme, to_base64
from statelift.backends.closeables import CloseableRegistry
from statelift.backends.errors import (
    AccessDenied,
    BackendUnavailable,
    ConnectionFailed,
    CopyCancelled,
    CopyFailed,
    IntegrityError,
    OptionError,
    SourceChanged,
    StalledTransfer,
    Throttled,
    TransferError,
    UnsupportedCopy,
)
from statelift.backends.landing import StagingArea
from statelift.backends.options import Configuration
from statelift.backends.report import CopyReport
from statelift.backends.request import CopyRequest
from statelift.backends.s3_access import S3Access
from statelift.backends.s3_options import S3Options
from statelift.backends.sdk import SdkFileSystem
from statelift.backends.sdk_files import StagedFile
from statelift.backends.tcp_counters import bytes_moved
from statelift.transfer.demo.s3_server import S3Server

from .contract import BucketPlace, Contract, Traits, make_bytes
from .contract.copying import uploads
from .servers import fault_actions as actions
from .servers.fault import Exchange, FaultServer, Rule
from .servers.moto import MotoServer

MIB = 1 << 20
QUICK = {"transfer.stall-timeout": "1s", "transfer.connect-timeout": "2s", "transfer.retries": 2}
MANAGERS = ["classic", "crt"]


class TestSdk(Contract):
    traits = Traits(
        pairs=frozenset({"download", "upload", "remote"}),
        methods=frozenset({"sdk", "server-side"}),
        ranges=frozenset({"download"}),
    )

    def make(self, configuration: Configuration) -> SdkFileSystem:
        return SdkFileSystem(configuration)


class TestCrt(Contract):
    traits = Traits(pairs=frozenset({"download", "upload"}), methods=frozenset({"sdk"}), ranges=frozenset({"download"}))
    # rclone begins multipart uploads in a way that the CRT does not understand (see below).
    options: ClassVar[dict[str, object]] = {"sdk.client": "crt", "sdk.part-size": "32mb"}

    def make(self, configuration: Configuration) -> SdkFileSystem:
        return SdkFileSystem(configuration)


@pytest.fixture(scope="module")
def server(s3: S3Server) -> Iterator[FaultServer]:
    with FaultServer(s3.endpoint) as server:
        yield server


@pytest.fixture
def faulty(server: FaultServer, configuration: Configuration) -> Configuration:
    """Reaches the S3 server through the fault server; gives up quickly; small parts."""
    server.clear()
    return configuration.with_arguments({"s3.endpoint": server.endpoint, "sdk.part-size": "5mb", **QUICK})


def copy(configuration: Configuration, *requests: CopyRequest, **how: Any) -> CopyReport:
    file_system = SdkFileSystem(configuration)
    try:
        return file_system.copy_files(requests, CloseableRegistry(), **how)
    finally:
        file_system.close()


def failure_of(configuration: Configuration, request: CopyRequest, **how: Any) -> TransferError:
    with pytest.raises(CopyFailed) as caught:
        copy(configuration, request, **how)
    return caught.value.errors[0]


@pytest.fixture
def moto_client(moto_configuration: Configuration) -> Iterator[Any]:
    access = S3Access(moto_configuration.of(S3Options))
    yield access.client()
    access.close()


# What is asked of the store


@pytest.mark.parametrize("sized", [True, False])
def test_a_download_costs_no_head(
    faulty: Configuration, server: FaultServer, s3_root: Path, bucket: str, tmp_path: Path, *, sized: bool
) -> None:
    data = make_bytes(12 * MIB)
    for name, size in (("small", 1000), ("large", 12 * MIB)):
        (s3_root / bucket / name).write_bytes(data[:size])
        known = {"size": size} if sized else {}
        copy(faulty, CopyRequest(f"s3://{bucket}/{name}", f"{tmp_path}/{name}", **known))
        assert (tmp_path / name).read_bytes() == data[:size]
    assert {each.method for each in server.requests} == {"GET"}
    assert len(server.requests) == 1 + 3
    # All but the first part are of the version of the first.
    assert [each.header("if-match") is None for each in server.requests].count(True) == 2


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (actions.slow_down(), Throttled),
        (actions.reset(after=10), ConnectionFailed),
        (actions.stall(after=10), StalledTransfer),
        (actions.stall(after=0, of_head=True), StalledTransfer),
        (actions.refuse(), ConnectionFailed),
    ],
)
def test_attempts_do_not_multiply(
    faulty: Configuration, server: FaultServer, s3_root: Path, bucket: str, tmp_path: Path, fault: Any, kind: Any
) -> None:
    """s3transfer tries 5 times, botocore 5 times each: a stall lasted 300 s."""
    (s3_root / bucket / "key").write_bytes(make_bytes(100_000))
    server.add(Rule("GET *", fault, times=None))
    error = failure_of(faulty, CopyRequest(f"s3://{bucket}/key", f"{tmp_path}/to"))
    assert isinstance(error, kind), repr(error)
    assert len(server.requests) == 3


@pytest.mark.parametrize("manager", MANAGERS)
def test_configured_credentials_win_over_ambient_ones(
    faulty: Configuration,
    server: FaultServer,
    bucket: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    manager: str,
) -> None:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "ambient",
        "AWS_SECRET_ACCESS_KEY": "ambient",
        "AWS_SESSION_TOKEN": "ambient",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_DEFAULT_REGION": "ambient-1",
    }.items():
        monkeypatch.setenv(name, value)
    configuration = faulty.with_arguments({"sdk.client": manager, "s3.session-token": "a-token"})
    failure_of(configuration, CopyRequest(f"s3://{bucket}/none", f"{tmp_path}/to"))
    request = server.requests[0]
    assert request.header("x-amz-security-token") == "a-token"
    assert "Credential=statelift-demo/" in (request.header("authorization") or "")
    assert "/us-east-1/s3/" in (request.header("authorization") or "")


@pytest.mark.parametrize("manager", MANAGERS)
def test_ambient_credentials_are_used_where_none_are_configured(
    s3: S3Server, s3_root: Path, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, manager: str
) -> None:
    (s3_root / bucket / "key").write_bytes(b"bytes")
    (tmp_path / "credentials").write_text(
        f"[worker]\naws_access_key_id = {s3.access_key}\naws_secret_access_key = {s3.secret_key}\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    options = {"s3.endpoint": s3.endpoint, "s3.profile": "worker", "sdk.client": manager}
    copy(Configuration(options, environ={}), CopyRequest(f"s3://{bucket}/key", f"{tmp_path}/to"))
    assert (tmp_path / "to").read_bytes() == b"bytes"


@pytest.mark.parametrize("manager", MANAGERS)
def test_an_expired_token_is_told(
    faulty: Configuration, server: FaultServer, bucket: str, tmp_path: Path, manager: str
) -> None:
    server.add(Rule("*", actions.status(400, "ExpiredToken"), times=None))
    configuration = faulty.with_arguments({"sdk.client": manager})
    error = failure_of(configuration, CopyRequest(f"s3://{bucket}/key", f"{tmp_path}/to", size=10, crc64nvme=1))
    assert isinstance(error, AccessDenied)
    assert "expired" in str(error)


# Cancelling, which s3transfer cannot (its shutdown(cancel=True) passes its arguments one place off)


@pytest.mark.parametrize("manager", MANAGERS)
@pytest.mark.parametrize("direction", ["down", "up"])
def test_a_silent_server_does_not_hold_the_cancel(
    faulty: Configuration,
    server: FaultServer,
    s3_root: Path,
    bucket: str,
    tmp_path: Path,
    manager: str,
    direction: str,
) -> None:
    (s3_root / bucket / "key").write_bytes(make_bytes(12 * MIB))
    (tmp_path / "from").write_bytes(make_bytes(12 * MIB))
    began = threading.Event()
    registry = CloseableRegistry()

    def silent(exchange: Exchange) -> None:
        began.set()
        exchange.wait()

    server.add(Rule("*", silent, times=None))
    request = {
        "down": CopyRequest(f"s3://{bucket}/key", f"{tmp_path}/to"),
        "up": CopyRequest(f"{tmp_path}/from", f"s3://{bucket}/to"),
    }[direction]
    patient = {"sdk.client": manager, "transfer.stall-timeout": "60s"}
    file_system = SdkFileSystem(faulty.with_arguments(patient))
    caught: list[BaseException] = []

    def run() -> None:
        with pytest.raises(CopyCancelled) as error:
            file_system.copy_files([request], registry)
        caught.append(error.value)

    thread = threading.Thread(target=run)
    thread.start()
    assert began.wait(20)
    started = time.monotonic()
    registry.close("enough")
    thread.join(30)
    assert time.monotonic() - started < 3
    file_system.close()
    assert caught
    assert os.listdir(tmp_path) == ["from"]


@pytest.mark.parametrize("part", [1, 2, 3])
def test_a_failed_part_aborts_the_upload(
    faulty: Configuration, server: FaultServer, s3_root: Path, bucket: str, tmp_path: Path, part: int
) -> None:
    (tmp_path / "from").write_bytes(make_bytes(12 * MIB))
    server.add(Rule(f"PUT *partNumber={part}*", actions.status(403, "AccessDenied"), times=None))
    error = failure_of(faulty, CopyRequest(f"{tmp_path}/from", f"s3://{bucket}/to"))
    assert isinstance(error, AccessDenied)
    assert [each.method for each in server.requests][-1] == "DELETE"
    assert uploads(faulty, BucketPlace(s3_root / bucket)) == []


def test_a_cancelled_upload_is_aborted(
    faulty: Configuration, server: FaultServer, s3_root: Path, bucket: str, tmp_path: Path
) -> None:
    (tmp_path / "from").write_bytes(make_bytes(30 * MIB))
    registry = CloseableRegistry()
    server.add(Rule("PUT *partNumber=3*", actions.call(lambda: registry.close("enough"))))
    file_system = SdkFileSystem(faulty)
    with pytest.raises(CopyCancelled):
        file_system.copy_files([CopyRequest(f"{tmp_path}/from", f"s3://{bucket}/to")], registry)
    file_system.close()
    assert uploads(faulty, BucketPlace(s3_root / bucket)) == []
    assert not (s3_root / bucket / "to").exists()


# Versions


def test_parts_of_two_versions_are_noticed_where_the_store_ignores_if_match(
    faulty: Configuration, server: FaultServer, s3_root: Path, bucket: str, tmp_path: Path
) -> None:
    key = s3_root / bucket / "key"
    key.write_bytes(make_bytes(12 * MIB, 1))
    server.add(Rule("GET *", actions.call(lambda: key.write_bytes(make_bytes(12 * MIB, 2))), after=1))
    error = failure_of(faulty, CopyRequest(f"s3://{bucket}/key", f"{tmp_path}/to", size=12 * MIB))
    assert isinstance(error, SourceChanged)
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize("manager", MANAGERS)
@pytest.mark.parametrize("length", [None, 3])
def test_another_etag_is_another_version(
    moto_configuration: Configuration,
    moto_client: Any,
    moto_bucket: str,
    tmp_path: Path,
    manager: str,
    length: int | None,
) -> None:
    etag = moto_client.put_object(Bucket=moto_bucket, Key="key", Body=b"bytes")["ETag"]
    configuration = moto_configuration.with_arguments({"sdk.client": manager})
    source = f"s3://{moto_bucket}/key"
    copy(configuration, CopyRequest(source, f"{tmp_path}/to", length=length, etag=etag))
    error = failure_of(configuration, CopyRequest(source, f"{tmp_path}/no", length=length, etag='"another"'))
    assert isinstance(error, SourceChanged), repr(error)
    assert os.listdir(tmp_path) == ["to"]


def test_a_file_written_to_while_it_goes_up_is_noticed(
    configuration: Configuration, bucket: str, tmp_path: Path
) -> None:
    source = tmp_path / "from"
    source.write_bytes(make_bytes(MIB))
    request = CopyRequest(str(source), f"s3://{bucket}/to")
    error = failure_of(configuration, request, progress=lambda *_: os.utime(source))
    assert isinstance(error, SourceChanged)


# Across: the store copies


@pytest.fixture
def across(moto_configuration: Configuration, moto_s3: MotoServer) -> Iterator[tuple[Configuration, FaultServer]]:
    with FaultServer(moto_s3.endpoint) as server:
        small = {"s3.endpoint": server.endpoint, "sdk.copy-part-size": "5mb", **QUICK}
        yield moto_configuration.with_arguments(small), server


@pytest.mark.parametrize("size", [0, 1000, 12 * MIB])
def test_a_copy_within_the_store_moves_nothing(
    across: tuple[Configuration, FaultServer], moto_client: Any, moto_bucket: str, size: int
) -> None:
    configuration, server = across
    metadata = {"Metadata": {"written-by": "a test"}, "ContentType": "application/x-sst"}
    moto_client.put_object(Bucket=moto_bucket, Key="from #1?", Body=make_bytes(size), **metadata)
    report = copy(configuration, CopyRequest(f"s3://{moto_bucket}/from #1?", f"s3://{moto_bucket}/to", size=size))
    assert report.methods == {"server-side": 1}
    assert (report.bytes, report.bytes_moved) == (size, 0)
    answer = moto_client.get_object(Bucket=moto_bucket, Key="to")
    assert answer["Body"].read() == make_bytes(size)
    assert answer["Metadata"] == metadata["Metadata"]
    assert report.files[0].etag == answer["ETag"]
    parts = sum("partNumber" in each.query for each in server.requests)
    assert parts == (3 if size > 5 * MIB else 0)
    assert not any(each.body for each in server.requests if each.method == "PUT")


def test_a_source_replaced_between_two_copied_parts_is_noticed(
    across: tuple[Configuration, FaultServer], moto_client: Any, moto_bucket: str
) -> None:
    configuration, server = across
    moto_client.put_object(Bucket=moto_bucket, Key="from", Body=make_bytes(12 * MIB, 1))

    def replace() -> None:
        moto_client.put_object(Bucket=moto_bucket, Key="from", Body=make_bytes(12 * MIB, 2))

    server.add(Rule("PUT *partNumber=*", actions.call(replace)))
    error = failure_of(configuration, CopyRequest(f"s3://{moto_bucket}/from", f"s3://{moto_bucket}/to"))
    # moto knows no condition on the source of a part, so that the copy is made, and removed.
    assert isinstance(error, SourceChanged), repr(error)
    assert "to" not in {each["Key"] for each in moto_client.list_objects_v2(Bucket=moto_bucket)["Contents"]}
    assert "Uploads" not in moto_client.list_multipart_uploads(Bucket=moto_bucket)


def test_a_copy_within_the_store_is_verified_by_what_the_store_tells(
    across: tuple[Configuration, FaultServer], moto_client: Any, moto_bucket: str
) -> None:
    configuration, server = across
    moto_client.put_object(Bucket=moto_bucket, Key="silent", Body=b"bytes")
    right, wrong = crc64nvme(b"bytes"), crc64nvme(b"other")

    def request(to: str, crc: int) -> CopyRequest:
        return CopyRequest(f"s3://{moto_bucket}/silent", f"s3://{moto_bucket}/{to}", crc64nvme=crc)

    # A store that tells no checksum: somebody else must read the bytes.
    assert isinstance(failure_of(configuration, request("a", right)), UnsupportedCopy)
    server.add(Rule("HEAD *silent*", actions.set_headers({"x-amz-checksum-crc64nvme": to_base64(right)}), times=None))
    assert isinstance(failure_of(configuration, request("b", wrong)), IntegrityError)
    report = copy(configuration, request("c", right))
    assert (report.files[0].verified, report.files[0].crc64nvme) == ("crc64nvme", right)
    assert {each["Key"] for each in moto_client.list_objects_v2(Bucket=moto_bucket)["Contents"]} == {"silent", "c"}


# The CRT


def crt(configuration: Configuration, **options: object) -> Configuration:
    return configuration.with_arguments({"sdk.client": "crt", "sdk.part-size": "5mb", **options})


def test_the_crt_copies_nothing_within_the_store(configuration: Configuration) -> None:
    file_system = SdkFileSystem(crt(configuration))
    assert not file_system.can_copy_paths("s3://bucket/a", "s3://bucket/b")
    assert file_system.can_copy_paths("s3://bucket/a", "/b")


def test_a_missing_awscrt_is_told_with_the_line_that_installs_it(
    configuration: Configuration, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "awscrt" else real(name))
    with pytest.raises(BackendUnavailable, match=r"pip install 'statelift\[crt\]'"):
        SdkFileSystem(crt(configuration))
    SdkFileSystem(configuration)


def test_the_crt_client_is_made_with_the_first_copy_and_ends_when_closed(
    configuration: Configuration, s3_root: Path, bucket: str, tmp_path: Path
) -> None:
    (s3_root / bucket / "key").write_bytes(b"bytes")
    threads = psutil.Process().num_threads()
    file_system = pickle.loads(pickle.dumps(SdkFileSystem(crt(configuration))))
    file_system = SdkFileSystem(crt(configuration))
    assert psutil.Process().num_threads() == threads
    file_system.copy_files([CopyRequest(f"s3://{bucket}/key", f"{tmp_path}/to")], CloseableRegistry())
    assert psutil.Process().num_threads() > threads
    file_system.close()
    until = time.monotonic() + 10
    while psutil.Process().num_threads() > threads and time.monotonic() < until:
        time.sleep(0.02)
    assert psutil.Process().num_threads() == threads


def test_a_forked_child_leaves_its_parents_client_alone(
    configuration: Configuration, s3_root: Path, bucket: str, tmp_path: Path
) -> None:
    (s3_root / bucket / "key").write_bytes(b"bytes")
    file_system = SdkFileSystem(crt(configuration))
    file_system.copy_files([CopyRequest(f"s3://{bucket}/key", f"{tmp_path}/parent")], CloseableRegistry())
    pid = os.fork()
    if pid == 0:
        try:
            file_system.copy_files([CopyRequest(f"s3://{bucket}/key", f"{tmp_path}/child")], CloseableRegistry())
            file_system.close()
            os._exit(0 if len(crt_client._INHERITED) == 1 else 2)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    file_system.copy_files([CopyRequest(f"s3://{bucket}/key", f"{tmp_path}/parent")], CloseableRegistry())
    file_system.close()
    assert (tmp_path / "child").read_bytes() == b"bytes"


def test_the_crt_uploads_in_parts(
    moto_configuration: Configuration, moto_client: Any, moto_bucket: str, tmp_path: Path
) -> None:
    data = make_bytes(12 * MIB)
    (tmp_path / "from").write_bytes(data)
    report = copy(crt(moto_configuration), CopyRequest(f"{tmp_path}/from", f"s3://{moto_bucket}/to"))
    assert report.files[0].crc64nvme == crc64nvme(data)
    answer = moto_client.get_object(Bucket=moto_bucket, Key="to")
    assert answer["Body"].read() == data
    assert answer["ETag"].endswith('-3"')


def test_an_answer_that_the_crt_does_not_understand_is_unsupported_and_leaves_nothing(
    configuration: Configuration, s3_root: Path, bucket: str, tmp_path: Path
) -> None:
    """rclone calls it InitiateMultipartUpload, without Result."""
    (tmp_path / "from").write_bytes(make_bytes(12 * MIB))
    error = failure_of(crt(configuration), CopyRequest(f"{tmp_path}/from", f"s3://{bucket}/to"))
    assert isinstance(error, UnsupportedCopy)
    assert uploads(configuration, BucketPlace(s3_root / bucket)) == []


@pytest.mark.parametrize(
    ("fault", "kind", "requests"),
    [
        (actions.slow_down(), Throttled, 3),
        (actions.status(429, "TooManyRequests"), Throttled, 3),
        (actions.stall(after=10), StalledTransfer, 3),
        (actions.drip(1, every=0.2), StalledTransfer, 3),
    ],
    ids=["503", "429", "stall", "drip"],
)
def test_attempts_of_the_crt_do_not_multiply(
    faulty: Configuration,
    server: FaultServer,
    s3_root: Path,
    bucket: str,
    tmp_path: Path,
    fault: Any,
    kind: Any,
    requests: int,
) -> None:
    (s3_root / bucket / "key").write_bytes(make_bytes(100_000))
    server.add(Rule("GET *", fault, times=None))
    request = CopyRequest(f"s3://{bucket}/key", f"{tmp_path}/to", size=100_000, crc64nvme=1)
    error = failure_of(crt(faulty), request)
    assert isinstance(error, kind), repr(error)
    assert len(server.requests) == requests


def test_a_slow_link_is_not_taken_for_a_silent_server(
    faulty: Configuration, server: FaultServer, s3_root: Path, bucket: str, tmp_path: Path
) -> None:
    """The CRT tells of whole parts only, and these take longer than the stall timeout."""
    data = make_bytes(MIB)
    (s3_root / bucket / "key").write_bytes(data)
    server.add(Rule("GET *", actions.drip(MIB // 16, every=0.2, body_only=True), times=None))
    copy(crt(faulty), CopyRequest(f"s3://{bucket}/key", f"{tmp_path}/to", size=MIB, crc64nvme=crc64nvme(data)))
    assert (tmp_path / "to").read_bytes() == data


def test_options_that_make_no_sense_are_refused() -> None:
    for wrong in ({"sdk.client": "fast"}, {"sdk.part-size": "1mb"}, {"sdk.requests": 0}, {"sdk.crt.throughput": 0}):
        with pytest.raises(OptionError):
            SdkFileSystem(Configuration(wrong, environ={}))


# The parts


def test_an_access_makes_any_number_of_clients(configuration: Configuration) -> None:
    """boto3's session injects its methods anew with every client, and fails with the second."""
    access = S3Access(configuration.of(S3Options))
    clients: list[Any] = [access.client(connections=1), access.client(connections=2), access.new_client()]
    for client in clients:
        assert "state" in {each["Name"] for each in client.list_buckets()["Buckets"]}
        client.close()


def test_bytes_of_connections_are_counted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        before = bytes_moved(port)
        with socket.create_connection(("127.0.0.1", port)) as client, listener.accept()[0] as peer:
            client.sendall(b"x" * 1000)
            peer.recv(1000, socket.MSG_WAITALL)
            peer.sendall(b"x" * 500)
            client.recv(500, socket.MSG_WAITALL)
            descriptors = len(os.listdir("/proc/self/fd"))
            moved = bytes_moved(port)
            assert before == 0
            # The kernel counts the SYN too.
            assert moved is not None
            assert 1500 <= moved <= 1502
            assert len(os.listdir("/proc/self/fd")) == descriptors
    assert bytes_moved(port) == 0


@given(
    data=st.binary(max_size=300),
    cuts=st.lists(st.integers(1, 299), max_size=6),
    random=st.randoms(use_true_random=False),
    again=st.booleans(),
)
def test_parts_may_land_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, cuts: list[int], random: Any, *, again: bool
) -> None:
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    parts = [(start, data[start:end]) for start, end in itertools.pairwise(edges)]
    random.shuffle(parts)
    if again:
        # A part that is begun, lost and tried again.
        parts = [(start, part[: len(part) // 2]) for start, part in parts[:1]] + parts
    path = tmp_path_factory.getbasetemp() / "landed"
    with StagingArea() as staging:
        landing = staging.land(str(path))
        file = StagedFile(landing, CloseableRegistry(), verify=True)
        for start, part in parts:
            file.seek(start)
            middle = len(part) // 3
            file.write(part[:middle])
            file.write(part[middle:])
        assert file.crc64nvme(len(data)) == crc64nvme(data)
        landing.publish(len(data))
    assert path.read_bytes() == data
