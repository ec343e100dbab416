"""The fault server itself: unmatched requests pass untouched, each fault is what its name says."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from statelift.backends.options import Configuration
from statelift.backends.s3_access import S3Access
from statelift.backends.s3_options import S3Options
from statelift.transfer.demo.s3_server import S3Server

from .servers import fault_actions as actions
from .servers import framing_actions as framing
from .servers import request_actions as requests
from .servers.fault import Action, FaultServer, Rule
from .servers.tls import Certificates

DATA = bytes(range(256)) * 400


@pytest.fixture
def server(s3: S3Server) -> Iterator[FaultServer]:
    with FaultServer(s3.endpoint) as server:
        yield server


@pytest.fixture
def client(server: FaultServer, s3: S3Server, bucket: str, s3_root: Path) -> Iterator[Any]:
    (s3_root / bucket / "key").write_bytes(DATA)
    yield from _client(server, s3)


def _client(server: FaultServer, s3: S3Server, **more: object) -> Iterator[Any]:
    options = {**s3.options, "s3.endpoint": server.endpoint, **more}
    access = S3Access(Configuration(options, environ={}).of(S3Options))
    yield access.client()
    access.close()


def signed(server: FaultServer, s3: S3Server, path: str) -> dict[str, str]:
    """Headers of a GET, signed by botocore."""
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    request = AWSRequest("GET", server.endpoint + path)
    S3SigV4Auth(Credentials(s3.access_key, s3.secret_key), "s3", "us-east-1").add_auth(request)
    return dict(request.headers.items())


@pytest.fixture
def get(server: FaultServer, s3: S3Server, s3_root: Path, bucket: str) -> Iterator[Any]:
    """One GET by the standard library on a connection that is kept: (status, headers, body)."""
    (s3_root / bucket / "key").write_bytes(DATA)
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(server.endpoint).port, timeout=10)
    headers = signed(server, s3, f"/{bucket}/key")

    def fetch(action: Action | None = None) -> tuple[int, http.client.HTTPMessage, bytes]:
        if action:
            server.add(Rule("GET *", action))
        connection.request("GET", f"/{bucket}/key", headers=headers)
        response = connection.getresponse()
        return response.status, response.headers, response.read()

    assert fetch()[2] == DATA
    yield fetch
    connection.close()


def test_passes_everything_a_client_signs(client: Any, bucket: str, server: FaultServer) -> None:
    client.put_object(Bucket=bucket, Key="a/ö +&=%20", Body=DATA)
    assert client.get_object(Bucket=bucket, Key="a/ö +&=%20", Range="bytes=5-9")["Body"].read() == DATA[5:10]
    assert client.head_object(Bucket=bucket, Key="key")["ContentLength"] == len(DATA)
    upload = client.create_multipart_upload(Bucket=bucket, Key="parts")["UploadId"]
    part = client.upload_part(Bucket=bucket, Key="parts", UploadId=upload, PartNumber=1, Body=DATA)
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    client.complete_multipart_upload(Bucket=bucket, Key="parts", UploadId=upload, MultipartUpload=parts)
    client.copy_object(Bucket=bucket, Key="copy", CopySource={"Bucket": bucket, "Key": "parts"})
    assert client.get_object(Bucket=bucket, Key="copy")["Body"].read() == DATA
    client.delete_object(Bucket=bucket, Key="copy")
    assert [each.range for each in server.requests if each.method == "GET"][:1] == ["bytes=5-9"]
    assert {each.connection for each in server.requests} == {0}


def test_speaks_tls(s3: S3Server, bucket: str, certificates: Certificates) -> None:
    with FaultServer(s3.endpoint, certificate=certificates.server) as server:
        for client in _client(server, s3, **{"s3.ca-bundle": certificates.authority}):
            client.put_object(Bucket=bucket, Key="key", Body=DATA)
            server.add(Rule("GET *", actions.flip(3)))
            assert client.get_object(Bucket=bucket, Key="key")["Body"].read() != DATA
            assert client.get_object(Bucket=bucket, Key="key")["Body"].read() == DATA


def test_a_rule_counts(get: Any, server: FaultServer) -> None:
    server.add(Rule("GET *key*", actions.slow_down(retry_after=1), times=2, after=1))
    assert [get()[0] for _ in range(5)] == [200, 503, 503, 200, 200]
    server.clear()
    server.add(Rule(lambda request: request.range is not None, actions.empty_status(500), times=None))
    assert get()[0] == 200


@pytest.mark.parametrize(
    ("action", "status", "code"),
    [
        (actions.slow_down(), 503, b"SlowDown"),
        (actions.status(400, "RequestTimeout"), 400, b"RequestTimeout"),
        (actions.status(403, "ExpiredToken"), 403, b"ExpiredToken"),
        (actions.redirect("eu-west-1"), 301, b"PermanentRedirect"),
        (actions.error_in_200(), 200, b"InternalError"),
    ],
)
def test_answers_errors(get: Any, action: Action, status: int, code: bytes) -> None:
    found = get(action)
    assert (found[0], f"<Code>{code.decode()}</Code>".encode() in found[2]) == (status, True)
    assert get()[2] == DATA


@pytest.mark.parametrize(
    "action",
    [
        framing.split(1),
        framing.split(7),
        framing.chunked(1000),
        framing.interim(100, times=3),
        framing.closing(),
        framing.without_length(),
        actions.drip(20_000, every=0.01),
        actions.delay(0.1),
        actions.throttle(1e6),
        actions.with_headers([("ETag", '"twice"'), ("X-Big", "x" * 30_000)]),
        actions.whole(DATA),
        framing.split_at(100),
        framing.http10(),
        framing.http10(keep=True),
    ],
)
def test_right_bytes_in_awkward_forms(get: Any, action: Action) -> None:
    assert get(action)[2] == DATA


@pytest.mark.parametrize(
    "action",
    [
        actions.reset(after=1000),
        actions.reset(after=10, of_head=True),
        actions.refuse(),
        actions.truncate(after=1000),
        actions.truncate(after=10, of_head=True),
        actions.overlong(10, declared=True),
        actions.raw(b"nonsense\r\n\r\n"),
        actions.short(1),
        actions.flip(len(DATA) - 1),
        framing.cut(5, "reset"),
        framing.cut(900, "end"),
        framing.compressed(),
    ],
)
def test_wrong_bytes_never_pass(get: Any, action: Action) -> None:
    try:
        body = get(action)[2]
    except (http.client.HTTPException, OSError):
        return
    assert body != DATA


@pytest.fixture
def quiet(server: FaultServer, s3: S3Server, s3_root: Path, bucket: str) -> Iterator[Any]:
    """All bytes that one GET brings before the server falls silent; the connection stays open."""
    (s3_root / bucket / "key").write_bytes(DATA)
    url = urlsplit(server.endpoint)
    headers = {"Host": url.netloc, **signed(server, s3, f"/{bucket}/key")}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    with socket.create_connection(("127.0.0.1", url.port or 0), timeout=0.3) as connection:

        def receive() -> bytes:
            connection.sendall(f"GET /{bucket}/key HTTP/1.1\r\n{lines}\r\n".encode())
            received = b""
            with contextlib.suppress(TimeoutError):
                while data := connection.recv(1 << 16):
                    received += data
            return received

        yield receive


def test_sends_bytes_behind_the_end(quiet: Any, server: FaultServer) -> None:
    server.add(Rule("GET *", actions.overlong(10, declared=False)))
    assert quiet().endswith(DATA + b"x" * 10)


def test_stalls_as_long_as_the_client_waits(quiet: Any, server: FaultServer) -> None:
    server.add(Rule("GET *", actions.stall(after=5000)))
    assert quiet().endswith(DATA[:5000])
    assert server.open_connections == 1


def test_notices_that_a_client_goes(server: FaultServer) -> None:
    server.add(Rule("*", actions.stall(after=0)))
    with socket.create_connection(("127.0.0.1", urlsplit(server.endpoint).port or 0)) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        connection.recv(1)
    deadline = time.monotonic() + 5
    while server.open_connections and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.open_connections == 0


def test_acts_while_a_request_comes_in(server: FaultServer, s3: S3Server) -> None:
    head = b"PUT /state/x HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n"
    server.add(Rule("PUT *", requests.answer_early(10, 403, "AccessDenied"), early=True))
    with socket.create_connection(("127.0.0.1", urlsplit(server.endpoint).port or 0), timeout=5) as connection:
        connection.sendall(head + b"x" * 10)
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 403")
    server.add(Rule("PUT *", requests.reset_request(7), early=True))
    with socket.create_connection(("127.0.0.1", urlsplit(server.endpoint).port or 0), timeout=5) as connection:
        connection.sendall(head + b"x" * 10)
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    assert [each.body for each in server.requests] == [b"", b""]


def test_overwrites_between_two_requests(get: Any, s3_root: Path, bucket: str) -> None:
    changed = DATA[::-1]
    assert get(actions.call(lambda: (s3_root / bucket / "key").write_bytes(changed)))[2] == changed


def test_leaves_nothing_behind(s3: S3Server) -> None:
    before = threading.active_count()
    with FaultServer(s3.endpoint) as server:
        server.add(Rule("*", actions.stall()))
        with socket.create_connection(("127.0.0.1", urlsplit(server.endpoint).port or 0)) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            while not server.requests:
                time.sleep(0.01)
    assert threading.active_count() == before
