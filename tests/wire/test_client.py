"""What the engine mends by itself, and what it refuses: redirects, credentials, connections, addresses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from statelift.backends.closeables import CloseableRegistry
from statelift.backends.errors import AccessDenied, BackendError, CopyFailed, TransferError
from statelift.backends.options import Configuration
from statelift.backends.report import CopyReport
from statelift.backends.request import CopyRequest
from statelift.backends.wire import WireFileSystem

from .raw_server import Asked, RawServer, answer

QUICK = {"transfer.stall-timeout": "1s", "transfer.retries": 1, "s3.region": "us-east-1"}
KEYS = {"s3.access-key": "a", "s3.secret-key": "b"}


def copy(endpoint: str, *requests: CopyRequest, **options: Any) -> CopyReport:
    file_system = WireFileSystem(Configuration({**QUICK, **KEYS, "s3.endpoint": endpoint, **options}, environ={}))
    try:
        return file_system.copy_files(requests, CloseableRegistry())
    finally:
        file_system.close()


def failure(endpoint: str, *requests: CopyRequest, **options: Any) -> TransferError:
    with pytest.raises(CopyFailed) as caught:
        copy(endpoint, *requests, **options)
    return caught.value.errors[0]


def error(status: str, code: str, more: str = "", **headers: str) -> bytes:
    return answer(status, f"<Error><Code>{code}</Code>{more}</Error>".encode(), **headers)


def test_a_region_redirect_is_followed_once(tmp_path: Path) -> None:
    def answering(asked: Asked) -> bytes:
        if "/eu-west-3/" in asked.headers["authorization"]:
            return answer("200 OK", b"data")
        return error("301 Moved Permanently", "PermanentRedirect", x_amz_bucket_region="eu-west-3")

    requests = [CopyRequest(f"s3://b/{n}", str(tmp_path / str(n)), size=4) for n in range(3)]
    with RawServer(answering) as server:
        copy(server.endpoint, *requests, **{"s3.connection.max": 1})
        assert len(server.asked) == 4
    assert (tmp_path / "2").read_bytes() == b"data"


def test_a_redirect_that_leads_round_in_circles_is_an_error(tmp_path: Path) -> None:
    def answering(asked: Asked) -> bytes:
        region = "eu-west-3" if "/us-east-1/" in asked.headers["authorization"] else "us-east-1"
        return error("400 Bad Request", "AuthorizationHeaderMalformed", f"<Region>{region}</Region>")

    with RawServer(answering) as server:
        found = failure(server.endpoint, CopyRequest("s3://b/k", str(tmp_path / "k"), size=4))
        assert isinstance(found, AccessDenied)
        assert "AuthorizationHeaderMalformed" in str(found)
        assert len(server.asked) == 2


def test_a_redirect_to_another_key_is_not_followed(tmp_path: Path) -> None:
    def answering(_: Asked) -> bytes:
        return answer("301 Moved Permanently", location="/b/k")

    with RawServer(answering) as server:
        found = failure(server.endpoint, CopyRequest("s3://b/x//../k", str(tmp_path / "k"), size=4))
        assert isinstance(found, BackendError)
        assert "redirected" in str(found)


def test_expired_credentials_are_refreshed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    credentials = tmp_path / "credentials"
    profile = "[default]\naws_access_key_id = {}\naws_secret_access_key = s\naws_session_token = t\n"
    credentials.write_text(profile.format("OLD"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))

    def answering(asked: Asked) -> bytes:
        if "Credential=NEW/" in asked.headers["authorization"]:
            return answer("200 OK", b"data")
        credentials.write_text(profile.format("NEW"))
        return error("400 Bad Request", "ExpiredToken")

    none = {"s3.access-key": None, "s3.secret-key": None}
    with RawServer(answering) as server:
        copy(server.endpoint, CopyRequest("s3://b/k", str(tmp_path / "k"), size=4), **none)
        assert len(server.asked) == 2

    def refusing(_: Asked) -> bytes:
        return error("400 Bad Request", "ExpiredToken")

    with RawServer(refusing) as server:
        found = failure(server.endpoint, CopyRequest("s3://b/k", str(tmp_path / "k"), size=4), **none)
        assert isinstance(found, AccessDenied)
        assert len(server.asked) == 1


def test_a_kept_connection_that_went_stale_costs_no_attempt(tmp_path: Path) -> None:
    served: set[int] = set()

    def answering(asked: Asked) -> bytes | None:
        if asked.connection in served:
            return None
        served.add(asked.connection)
        return answer("200 OK", b"data")

    with RawServer(answering) as server:
        requests = [CopyRequest(f"s3://b/{n}", str(tmp_path / str(n)), size=4) for n in range(5)]
        copy(server.endpoint, *requests, **{"s3.connection.max": 1, "transfer.retries": 0})


def test_bytes_that_nobody_asked_for_end_the_connection(tmp_path: Path) -> None:
    def answering(asked: Asked) -> bytes:
        return answer("200 OK", b"data") + (answer("200 OK", b"evil") if asked.connection == 1 else b"")

    with RawServer(answering) as server:
        requests = [CopyRequest(f"s3://b/{n}", str(tmp_path / str(n)), size=4) for n in range(3)]
        copy(server.endpoint, *requests, **{"s3.connection.max": 1})
    assert {(tmp_path / str(n)).read_bytes() for n in range(3)} == {b"data"}


def test_an_upload_that_is_refused_early_tells_why(tmp_path: Path) -> None:
    source = tmp_path / "large"
    source.write_bytes(bytes(32 << 20))
    with RawServer(lambda _: error("403 Forbidden", "AccessDenied"), reads_bodies=False) as server:
        found = failure(server.endpoint, CopyRequest(str(source), "s3://b/k"), **{"wire.part-size": "32mb"})
    assert isinstance(found, AccessDenied)
    assert server.asked[0].line.startswith("PUT")
    assert len(server.asked) == 1
    assert server.drained < 32 << 20, "all of the body was sent to a store that had refused it"


def test_a_success_before_the_body_has_come_is_not_believed(tmp_path: Path) -> None:
    source = tmp_path / "large"
    source.write_bytes(bytes(32 << 20))
    once = {"wire.part-size": "32mb", "transfer.retries": 0}
    with RawServer(lambda _: answer("200 OK", ETag='"x"'), reads_bodies=False) as server:
        found = failure(server.endpoint, CopyRequest(str(source), "s3://b/k"), **once)
    assert isinstance(found, BackendError)
    assert "before the body" in str(found)


def test_a_success_that_carries_an_error_is_one(tmp_path: Path) -> None:
    def answering(asked: Asked) -> bytes:
        if asked.line.startswith("HEAD"):
            return b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n"
        return answer("200 OK", b"<?xml version='1.0'?>\n  <Error><Code>AccessDenied</Code></Error>")

    with RawServer(answering) as server:
        assert isinstance(failure(server.endpoint, CopyRequest("s3://b/k", "s3://b/l")), AccessDenied)


def test_retry_after_holds_all_requests_of_the_bucket_back(tmp_path: Path) -> None:
    answers = iter([error("503 Slow Down", "SlowDown", Retry_After="1")])

    def answering(_: Asked) -> bytes:
        return next(answers, answer("200 OK", b"data"))

    with RawServer(answering) as server:
        requests = [CopyRequest(f"s3://b/{n}", str(tmp_path / str(n)), size=4) for n in range(3)]
        report = copy(server.endpoint, *requests, **{"s3.connection.max": 1})
        assert report.seconds > 0.9
        assert len(server.asked) == 4


def test_encryption_headers_go_with_uploads(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"data")
    with RawServer(lambda _: answer("200 OK", ETag='"x"')) as server:
        options = {"s3.sse.type": "aws:kms", "s3.sse.kms.key-id": "key/1"}
        copy(server.endpoint, CopyRequest(str(tmp_path / "f"), "s3://b/k"), **options)
        headers = server.asked[0].headers
    assert headers["x-amz-server-side-encryption"] == "aws:kms"
    assert headers["x-amz-server-side-encryption-aws-kms-key-id"] == "key/1"
    assert headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
    assert len(headers["x-amz-checksum-crc64nvme"]) == 12


def test_ipv6_and_virtual_hosts(tmp_path: Path) -> None:
    def answering(_: Asked) -> bytes:
        return answer("200 OK", b"data")

    try:
        server = RawServer(answering, host="::1")
    except OSError:
        pytest.skip("no IPv6 here")
    with server:
        copy(server.endpoint, CopyRequest("s3://b/k", str(tmp_path / "k"), size=4))
        assert server.asked[0].headers["host"].startswith("[::1]:")
    with RawServer(answering) as server:
        endpoint = server.endpoint.replace("127.0.0.1", "localhost")
        options = {"s3.path-style-access": False}
        found = failure(
            endpoint, CopyRequest("s3://no-such-host-for-a-bucket/k", str(tmp_path / "v"), size=4), **options
        )
        assert "no-such-host-for-a-bucket.localhost" in str(found) or server.asked[0].line.startswith("GET /k ")


def test_a_proxy_is_used_unless_excluded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = answer("407 Proxy Authentication Required")
    with RawServer(lambda _: refusing) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.endpoint.replace("//", "//user:p%40ss@"))
        found = failure("https://store.invalid", CopyRequest("s3://b/k", str(tmp_path / "k"), size=4))
        assert "proxy" in str(found)
        assert "p%40ss" not in str(found)
        assert proxy.asked[0].line == "CONNECT store.invalid:443 HTTP/1.1"
        assert proxy.asked[0].headers["proxy-authorization"].startswith("Basic ")
        monkeypatch.setenv("NO_PROXY", "store.invalid")
        count = len(proxy.asked)
        failure("https://store.invalid", CopyRequest("s3://b/k", str(tmp_path / "k"), size=4))
        assert len(proxy.asked) == count
