"""What each request costs before any byte of its body: signing, beside botocore's, and reading the answer."""

from __future__ import annotations

from typing import Any

import pytest

from statelift.backends.s3_access import Credentials
from statelift.backends.wire.response import ResponseReader
from statelift.backends.wire.signing import Signer, encode_path

REQUESTS = 1000
HEAD = (
    b"HTTP/1.1 206 Partial Content\r\nx-amz-id-2: abcdefghijklmnopqrstuvwxyz0123456789=\r\n"
    b"x-amz-request-id: 0123456789ABCDEF\r\nDate: Sat, 21 Nov 2026 01:00:00 GMT\r\n"
    b'Last-Modified: Fri, 20 Nov 2026 01:00:00 GMT\r\nETag: "0123456789abcdef0123456789abcdef"\r\n'
    b"x-amz-checksum-crc64nvme: AAAAAAAAAAA=\r\nAccept-Ranges: bytes\r\n"
    b"Content-Range: bytes 0-65535/1000000\r\nContent-Type: binary/octet-stream\r\nContent-Length: 65536\r\n\r\n"
)
BODY = bytes(65536)


def test_sign(benchmark: Any) -> None:
    signer = Signer(Credentials("key", "secret"), "us-east-1")
    paths = [encode_path(f"/bucket/shared/{number:032x}") for number in range(REQUESTS)]

    def sign() -> set[str]:
        found = set()
        for path in paths:
            headers = {"host": "127.0.0.1:9000", "range": "bytes=0-65535"}
            signer.sign("GET", path, "", headers)
            found.add(headers["authorization"])
        return found

    assert len(benchmark(sign)) == REQUESTS


def test_sign_by_botocore(benchmark: Any) -> None:
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials as BotocoreCredentials

    auth = S3SigV4Auth(BotocoreCredentials("key", "secret"), "s3", "us-east-1")

    def sign() -> set[str]:
        found = set()
        for number in range(REQUESTS):
            request = AWSRequest("GET", f"http://127.0.0.1:9000/bucket/shared/{number:032x}")
            request.headers["range"] = "bytes=0-65535"
            auth.add_auth(request)
            found.add(request.headers["Authorization"])
        return found

    assert len(benchmark(sign)) == REQUESTS


@pytest.mark.parametrize("piece", [64 << 10, 1 << 20], ids=["64 KiB", "1 MiB"])
def test_read_answers(benchmark: Any, piece: int) -> None:
    data = memoryview(HEAD + BODY)

    def read() -> int:
        total = 0
        for _ in range(REQUESTS):
            reader = ResponseReader()
            for start in range(0, len(data), piece):
                total += sum(map(len, reader.feed(data[start : start + piece])))
            assert reader.done
        return total

    assert benchmark(read) == REQUESTS * len(BODY)
