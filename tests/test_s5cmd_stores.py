"""s5cmd against real stores: versions, checksums, credentials, encryption, and what a killed process leaves."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from statelift.backends.checksums import crc64nvme, to_base64
from statelift.backends.closeables import CloseableRegistry
from statelift.backends.errors import (
    AccessDenied,
    CopyCancelled,
    CopyFailed,
    IntegrityError,
    SourceChanged,
    UnsupportedCopy,
)
from statelift.backends.options import Configuration
from statelift.backends.report import CopyReport
from statelift.backends.request import CopyRequest
from statelift.backends.s3_access import S3Access
from statelift.backends.s3_options import S3Options
from statelift.s5cmd_integration import S5cmdFileSystem, tuning
from statelift.s5cmd_integration.store import _uploads
from statelift.transfer.demo.s3_server import S3Server
from statelift.transfer.file_systems import FileSystems

from .contract import BucketPlace
from .contract.copying import uploads
from .servers import fault_actions as actions
from .servers.fault import FaultServer, Request, Rule
from .servers.moto import MotoServer
from .servers.proxy import SlowProxy

MIB = 1 << 20
DATA = random.Random(5).randbytes(40 * MIB)


def copy(configuration: Configuration, *requests: CopyRequest, **how: Any) -> CopyReport:
    backend = S5cmdFileSystem(configuration)
    try:
        return backend.copy_files(requests, how.pop("closeables", CloseableRegistry()), **how)
    finally:
        backend.close()


def copy_fails(configuration: Configuration, *requests: CopyRequest, **how: Any) -> CopyFailed:
    with pytest.raises(CopyFailed) as caught:
        copy(configuration, *requests, **how)
    return caught.value


@pytest.fixture
def moto_fault(moto_s3: MotoServer) -> Iterator[FaultServer]:
    with FaultServer(moto_s3.endpoint) as server:
        yield server


@pytest.fixture
def through_moto(moto_configuration: Configuration, moto_fault: FaultServer) -> Configuration:
    return moto_configuration.with_arguments({"s3.endpoint": moto_fault.endpoint})


@pytest.fixture
def client(moto_configuration: Configuration) -> Iterator[Any]:
    access = S3Access(moto_configuration.of(S3Options))
    yield access.client()
    access.close()


@pytest.fixture
def fault(s3: S3Server) -> Iterator[FaultServer]:
    with FaultServer(s3.endpoint) as server:
        yield server


@pytest.fixture
def through(configuration: Configuration, fault: FaultServer) -> Configuration:
    return configuration.with_arguments({"s3.endpoint": fault.endpoint})


def of_ours(request: Request) -> bool:
    return request.header("user-agent") == "statelift"


# Versions.


def test_a_file_of_several_ranges_is_one_version_or_an_error(
    through_moto: Configuration, moto_fault: FaultServer, client: Any, moto_bucket: str, tmp_path: Path
) -> None:
    client.put_object(Bucket=moto_bucket, Key="key", Body=DATA)

    def overwrite() -> None:
        client.put_object(Bucket=moto_bucket, Key="key", Body=bytes(reversed(DATA)))

    moto_fault.add(Rule("GET *", actions.call(overwrite), after=1))
    failure = copy_fails(through_moto, CopyRequest(f"s3://{moto_bucket}/key", f"{tmp_path}/file", size=len(DATA)))
    assert isinstance(failure.errors[0], SourceChanged)
    assert sum(request.method == "GET" for request in moto_fault.requests) > 1, "it was cut into ranges"
    assert os.listdir(tmp_path) == []


def test_a_file_of_several_ranges_that_nobody_changed_is_copied(
    through_moto: Configuration, moto_fault: FaultServer, client: Any, moto_bucket: str, tmp_path: Path
) -> None:
    client.put_object(Bucket=moto_bucket, Key="key", Body=DATA)
    copy(through_moto, CopyRequest(f"s3://{moto_bucket}/key", f"{tmp_path}/file", size=len(DATA)))
    assert (tmp_path / "file").read_bytes() == DATA
    assert sum(of_ours(request) for request in moto_fault.requests) == 2


def test_a_checksum_in_the_request_saves_every_question(
    through: Configuration, fault: FaultServer, s3: S3Server, bucket: str, tmp_path: Path
) -> None:
    (s3.root / bucket / "key").write_bytes(DATA)
    etag = '"whatever"'
    request = CopyRequest(f"s3://{bucket}/key", f"{tmp_path}/file", len(DATA), crc64nvme=crc64nvme(DATA), etag=etag)
    report = copy(through, request)
    assert report.files[0].verified == "crc64nvme"
    assert not [request for request in fault.requests if of_ours(request)]
    assert sum(request.method == "GET" for request in fault.requests) > 1


@pytest.mark.parametrize("kind", ["download", "remote"])
def test_a_request_that_names_a_version_gets_that_one_or_none(
    through_moto: Configuration, client: Any, moto_bucket: str, tmp_path: Path, kind: str
) -> None:
    old = client.put_object(Bucket=moto_bucket, Key="key", Body=b"old")["ETag"]
    target = f"{tmp_path}/file" if kind == "download" else f"s3://{moto_bucket}/copy"
    request = CopyRequest(f"s3://{moto_bucket}/key", target, size=3, etag=old)
    assert copy(through_moto, request).bytes == 3
    client.put_object(Bucket=moto_bucket, Key="key", Body=b"new")
    failure = copy_fails(through_moto, request)
    assert isinstance(failure.errors[0], SourceChanged)
    checked = CopyRequest(f"s3://{moto_bucket}/key", f"{tmp_path}/other", size=3, etag=old, crc64nvme=crc64nvme(b"old"))
    assert isinstance(copy_fails(through_moto, checked).errors[0], SourceChanged)


def test_an_upload_whose_source_changes_meanwhile_is_an_error(
    through: Configuration, fault: FaultServer, bucket: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"old")

    def change() -> None:
        (tmp_path / "file").write_bytes(b"new")

    fault.add(Rule("PUT *", actions.call(change)))
    failure = copy_fails(through, CopyRequest(f"{tmp_path}/file", f"s3://{bucket}/key", size=3))
    assert isinstance(failure.errors[0], SourceChanged)


@pytest.mark.parametrize("stored", [True, False], ids=["the store's checksum", "its size"])
def test_what_arrived_at_the_store_is_checked(
    through: Configuration, fault: FaultServer, bucket: str, tmp_path: Path, *, stored: bool
) -> None:
    (tmp_path / "file").write_bytes(b"bytes")
    wrong = {"x-amz-checksum-crc64nvme": "AAAAAAAAAAA="} if stored else {"content-length": "4"}
    fault.add(
        Rule(lambda request: request.method == "HEAD" and of_ours(request), actions.set_headers(wrong), times=None)
    )
    failure = copy_fails(through, CopyRequest(f"{tmp_path}/file", f"s3://{bucket}/key"))
    assert isinstance(failure.errors[0], IntegrityError)


def test_an_upload_is_compared_with_the_stores_own_checksum(
    through: Configuration, fault: FaultServer, bucket: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"bytes")
    right = {"x-amz-checksum-crc64nvme": to_base64(crc64nvme(b"bytes"))}
    fault.add(Rule("HEAD *", actions.set_headers(right), times=None))
    copied = copy(through, CopyRequest(f"{tmp_path}/file", f"s3://{bucket}/key")).files[0]
    assert (copied.verified, copied.crc64nvme) == ("crc64nvme", crc64nvme(b"bytes"))
    assert copied.etag


def test_an_object_of_unknown_size_that_is_too_large_is_not_begun(
    through: Configuration, fault: FaultServer, s3: S3Server, bucket: str
) -> None:
    (s3.root / bucket / "key").write_bytes(b"bytes")
    large = actions.set_headers({"content-length": str((5 << 30) + 1)})
    fault.add(Rule(lambda request: request.method == "HEAD" and of_ours(request), large, times=None))
    failure = copy_fails(through, CopyRequest(f"s3://{bucket}/key", f"s3://{bucket}/copy"))
    assert isinstance(failure.errors[0], UnsupportedCopy)
    assert not [request for request in fault.requests if request.method == "PUT"]


def test_the_rest_of_a_batch_runs_beside_what_is_refused(
    configuration: Configuration, s3: S3Server, bucket: str, tmp_path: Path
) -> None:
    (s3.root / bucket / "key").write_bytes(b"bytes")
    good = [CopyRequest(f"s3://{bucket}/key", f"{tmp_path}/{number}", size=5) for number in range(3)]
    bad = [
        CopyRequest(f"s3://{bucket}/key", f"{tmp_path}/a\ncp x y", size=5),
        CopyRequest(f"s3://{bucket}/key", f"{tmp_path}/b", size=5, offset=1),
        CopyRequest(f"s3://{bucket}/directory/", f"{tmp_path}/c"),
    ]
    failure = copy_fails(configuration, *good, *bad)
    assert {file.request for file in failure.done} == set(good)
    assert {error.request for error in failure.errors} == set(bad)
    assert {type(error) for error in failure.errors} == {UnsupportedCopy}


@pytest.mark.parametrize("kind", ["upload", "download"])
def test_several_requests_for_one_destination_leave_one_whole(
    configuration: Configuration, s3: S3Server, bucket: str, tmp_path: Path, kind: str
) -> None:
    contents = [bytes([number]) * (MIB + number) for number in range(4)]
    requests = []
    for number, content in enumerate(contents):
        (s3.root / bucket / f"from-{number}").write_bytes(content)
        (tmp_path / f"from-{number}").write_bytes(content)
        pair = (f"s3://{bucket}/from-{number}", f"{tmp_path}/to")
        if kind == "upload":
            pair = (f"{tmp_path}/from-{number}", f"s3://{bucket}/to")
        requests.append(CopyRequest(*pair, size=len(content)))
    report = copy(configuration, *requests, *requests)
    assert len(report.files) == 8
    found = (tmp_path / "to") if kind == "download" else s3.root / bucket / "to"
    assert found.read_bytes() in contents


# Credentials and what goes with every request.


def test_configured_credentials_win_over_everything_ambient(
    configuration: Configuration, s3: S3Server, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (s3.root / bucket / "key").write_bytes(b"bytes")
    (tmp_path / "credentials").write_text("[default]\naws_access_key_id = x\naws_secret_access_key = y\n")
    (tmp_path / "config").write_text("[default]\nregion = nowhere-1\n[profile other]\nrole_arn = z\n")
    for name, value in {
        "AWS_ACCESS_KEY_ID": "ambient",
        "AWS_SECRET_ACCESS_KEY": "ambient",
        "AWS_SESSION_TOKEN": "ambient",
        "AWS_REGION": "nowhere-2",
        "AWS_PROFILE": "other",
        "AWS_SHARED_CREDENTIALS_FILE": f"{tmp_path}/credentials",
        "AWS_CONFIG_FILE": f"{tmp_path}/config",
        "AWS_CA_BUNDLE": "/nowhere",
        "S3_ENDPOINT_URL": "http://127.0.0.1:9",
    }.items():
        monkeypatch.setenv(name, value)
    assert copy(configuration, CopyRequest(f"s3://{bucket}/key", f"{tmp_path}/file")).bytes == 5


def test_a_session_token_is_sent(
    through: Configuration, fault: FaultServer, s3: S3Server, bucket: str, tmp_path: Path
) -> None:
    (s3.root / bucket / "key").write_bytes(b"bytes")
    # The server may know no tokens.
    with contextlib.suppress(CopyFailed):
        copy(
            through.with_arguments({"s3.session-token": "the-token"}),
            CopyRequest(f"s3://{bucket}/key", f"{tmp_path}/file"),
        )
    assert {request.header("x-amz-security-token") for request in fault.requests} == {"the-token"}


def test_anonymous_requests_are_not_signed(
    s3: S3Server, fault: FaultServer, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ambient")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "ambient")
    (s3.root / bucket / "key").write_bytes(b"bytes")
    options = {"s3.endpoint": fault.endpoint, "s3.region": "us-east-1", "s3.anonymous": True}
    copy_fails(Configuration(options, environ={}), CopyRequest(f"s3://{bucket}/key", f"{tmp_path}/file"))
    assert fault.requests
    assert not [request for request in fault.requests if request.header("authorization")]


def test_users_flags_may_name_their_own_credentials(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    (s3.root / bucket / "key").write_bytes(b"bytes")
    text = f"[mine]\naws_access_key_id = {s3.access_key}\naws_secret_access_key = {s3.secret_key}\n"
    (tmp_path / "my credentials").write_text(text)
    options = {
        "s3.endpoint": s3.endpoint,
        "s3.region": "us-east-1",
        "s3.s5cmd.args": f"--credentials-file '{tmp_path}/my credentials' --profile mine -r 1",
    }
    request = CopyRequest(f"s3://{bucket}/key", f"{tmp_path}/file", size=5, crc64nvme=crc64nvme(b"bytes"))
    assert copy(Configuration(options, environ={}), request).bytes == 5


@pytest.fixture
def renewable(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Credentials by a program that AWS's configuration names: what this file says."""
    found, config = tmp_path / "credentials.json", tmp_path / "config"
    config.write_text(f"[default]\ncredential_process = cat {found}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    write_credentials(found, "outdated", "outdated")
    return found


def write_credentials(path: Path, access_key: str, secret_key: str) -> None:
    new = path.with_suffix(f".{threading.get_ident()}")
    new.write_text(json.dumps({"Version": 1, "AccessKeyId": access_key, "SecretAccessKey": secret_key}))
    os.replace(new, path)


@pytest.mark.parametrize("renewed", [True, False])
def test_expired_credentials_are_asked_for_again_once(
    s3: S3Server, fault: FaultServer, bucket: str, tmp_path: Path, renewable: Path, *, renewed: bool
) -> None:
    def outdated(request: Request) -> bool:
        if "outdated" not in (request.header("authorization") or ""):
            return False
        if renewed:
            write_credentials(renewable, s3.access_key, s3.secret_key)
        return True

    fault.add(Rule(outdated, actions.status(400, "ExpiredToken"), times=None))
    for number in range(6):
        (s3.root / bucket / str(number)).write_bytes(b"bytes")
    requests = [
        CopyRequest(f"s3://{bucket}/{n}", f"{tmp_path}/{n}", 5, crc64nvme=crc64nvme(b"bytes")) for n in range(6)
    ]
    configuration = Configuration({"s3.endpoint": fault.endpoint, "s3.region": "us-east-1"})
    if renewed:
        assert len(copy(configuration, *requests).files) == 6
    else:
        failure = copy_fails(configuration, *requests)
        assert isinstance(failure.errors[0], AccessDenied)
        assert "expired" in str(failure)


def test_encryption_is_asked_for(through: Configuration, fault: FaultServer, bucket: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"bytes")
    encrypted = through.with_arguments({"s3.sse.type": "aws:kms", "s3.sse.kms.key-id": "a-key"})
    copy(encrypted, CopyRequest(f"{tmp_path}/file", f"s3://{bucket}/key"))
    sent = next(request for request in fault.requests if request.method == "PUT")
    assert sent.header("x-amz-server-side-encryption") == "aws:kms"
    assert sent.header("x-amz-server-side-encryption-aws-kms-key-id") == "a-key"


# What is left.


_FEW_DESCRIPTORS = """
import pickle, resource, sys
backend, requests = pickle.load(sys.stdin.buffer)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
from statelift.backends.closeables import CloseableRegistry
assert len(backend.copy_files(requests, CloseableRegistry()).files) == len(requests)
"""


def test_few_descriptors_are_enough(configuration: Configuration, s3: S3Server, bucket: str, tmp_path: Path) -> None:
    """With its own number of workers s5cmd gives up and leaves its temporary files."""
    for number in range(60):
        (s3.root / bucket / str(number)).write_bytes(b"bytes")
    backend = S5cmdFileSystem(configuration)
    requests = [
        CopyRequest(f"s3://{bucket}/{n}", f"{tmp_path}/{n}", 5, crc64nvme=crc64nvme(b"bytes")) for n in range(60)
    ]
    done = subprocess.run(
        [sys.executable, "-c", _FEW_DESCRIPTORS],
        input=pickle.dumps((backend, requests)),
        env={**os.environ, **configuration.secrets()},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert len(os.listdir(tmp_path)) == 60


def test_a_process_that_is_killed_is_replaced(
    configuration: Configuration, s3: S3Server, bucket: str, tmp_path: Path
) -> None:
    for number in range(3):
        (s3.root / bucket / str(number)).write_bytes(DATA[: 2 * MIB])
    with SlowProxy(s3.endpoint, rate=2 * MIB) as slow:
        killer = threading.Thread(target=kill_s5cmd, args=(slow,))
        killer.start()
        requests = [CopyRequest(f"s3://{bucket}/{n}", f"{tmp_path}/{n}", size=2 * MIB) for n in range(3)]
        moved: list[int] = []
        report = copy(
            configuration.with_arguments({"s3.endpoint": slow.endpoint}),
            *requests,
            progress=lambda _request, count: moved.append(count),
        )
        killer.join()
    assert report.bytes == sum(moved) == 6 * MIB
    assert min(moved) < 0, "what had arrived is copied again"
    assert sorted(os.listdir(tmp_path)) == ["0", "1", "2"]
    assert all((tmp_path / str(n)).read_bytes() == DATA[: 2 * MIB] for n in range(3))


def kill_s5cmd(slow: SlowProxy) -> None:
    slow.wait_until_moved(MIB)
    time.sleep(0.6)
    for each in psutil.Process().children():
        if each.name() == "s5cmd":
            each.kill()
    slow.rate = None


def test_interrupted_multipart_uploads_of_ours_are_ended_and_no_others(
    configuration: Configuration, s3: S3Server, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "SINGLE_UPLOAD", 5 * MIB)
    there = BucketPlace(s3.root / bucket)
    access = S3Access(configuration.of(S3Options))
    access.client().create_multipart_upload(Bucket=bucket, Key="other")
    access.client().create_multipart_upload(Bucket=bucket, Key="key")
    access.close()
    time.sleep(2.1)
    (tmp_path / "file").write_bytes(DATA)
    registry = CloseableRegistry()
    with SlowProxy(s3.endpoint, rate=4 * MIB) as slow:
        slowly = configuration.with_arguments({"s3.endpoint": slow.endpoint})

        def close() -> None:
            slow.wait_until_moved(6 * MIB)
            begun.extend(uploads(configuration, there))
            slow.rate = None
            registry.close("enough")

        begun: list[str] = []
        closer = threading.Thread(target=close)
        closer.start()
        with pytest.raises(CopyCancelled):
            copy(slowly, CopyRequest(f"{tmp_path}/file", f"s3://{bucket}/key"), closeables=registry)
        closer.join()
    assert sorted(begun) == ["key", "key", "other"]
    assert sorted(uploads(configuration, there)) == ["key", "other"]


def test_uploads_of_a_listing_are_read() -> None:
    body = b"""<?xml version="1.0"?><ListMultipartUploadsResult><Bucket>b</Bucket><Upload><Key>a&amp;b</Key>
        <UploadId>1</UploadId><Owner><ID>o</ID></Owner><Initiated>2010-11-10T20:48:33.000Z</Initiated></Upload>
        <Upload><Key>c</Key><UploadId>2</UploadId><Initiated>nonsense</Initiated></Upload>
        </ListMultipartUploadsResult>"""
    (upload,) = _uploads(body)
    assert (upload.key, upload.upload_id, upload.began.year) == ("a&b", "1", 2010)
    assert upload.began.tzinfo is not None


def test_a_large_upload_of_several_parts_is_whole(
    configuration: Configuration, s3: S3Server, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "SINGLE_UPLOAD", 5 * MIB)
    (tmp_path / "file").write_bytes(DATA)
    request = CopyRequest(f"{tmp_path}/file", f"s3://{bucket}/key", len(DATA), crc64nvme=crc64nvme(DATA))
    assert copy(configuration, request).files[0].verified == "crc64nvme"
    assert (s3.root / bucket / "key").read_bytes() == DATA


@pytest.mark.parametrize("right", [True, False])
def test_a_download_is_compared_with_the_stores_checksum(
    through: Configuration, fault: FaultServer, s3: S3Server, bucket: str, tmp_path: Path, *, right: bool
) -> None:
    (s3.root / bucket / "key").write_bytes(DATA[:MIB])
    stored = {"x-amz-checksum-crc64nvme": to_base64(crc64nvme(DATA[:MIB]) ^ (not right))}
    fault.add(Rule("HEAD *", actions.set_headers(stored), times=None))
    request = CopyRequest(f"s3://{bucket}/key", f"{tmp_path}/file")
    if right:
        assert copy(through, request).files[0].verified == "crc64nvme"
    else:
        assert isinstance(copy_fails(through, request).errors[0], IntegrityError)
    assert os.listdir(tmp_path) == (["file"] if right else [])


@pytest.mark.parametrize("name", [" lead", "trail "])
def test_a_source_that_is_there_but_not_for_s5cmd_goes_another_way(
    moto_configuration: Configuration, client: Any, moto_bucket: str, name: str
) -> None:
    """moto drops the blanks at the ends of the source's name as s5cmd writes it."""
    client.put_object(Bucket=moto_bucket, Key=f"from/{name}", Body=b"bytes")
    request = CopyRequest(f"s3://{moto_bucket}/from/{name}", f"s3://{moto_bucket}/to/{name}")
    error = copy_fails(moto_configuration, request).errors[0]
    assert isinstance(error, UnsupportedCopy)
    assert f"s5cmd does not find {request.source}, although it is there" in str(error)
    with FileSystems(moto_configuration, backend="s5cmd") as file_systems:
        assert file_systems.copy([request]).methods == {"stream": 1}
    assert client.get_object(Bucket=moto_bucket, Key=f"to/{name}")["Body"].read() == b"bytes"


@pytest.mark.parametrize("within_the_store", [False, True])
def test_what_s5cmd_says_it_has_copied_must_be_there(
    through: Configuration, fault: FaultServer, s3: S3Server, bucket: str, tmp_path: Path, within_the_store: bool
) -> None:
    source = s3.root / bucket / "from" if within_the_store else tmp_path / "from"
    source.write_bytes(b"bytes")
    uri = f"s3://{bucket}/from" if within_the_store else str(source)
    fault.add(Rule(lambda each: each.method == "HEAD" and each.target.endswith("/to"), actions.empty_status(404), None))
    error = copy_fails(through, CopyRequest(uri, f"s3://{bucket}/to")).errors[0]
    assert isinstance(error, IntegrityError)
    assert not error.shared, "streams may do better"
    assert str(error) == f"s5cmd says it has copied {uri}, but there is no s3://{bucket}/to"
