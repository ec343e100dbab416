"""What each request costs beside the bytes of its body: signing, reading the answer, summing.

One call is `REQUESTS` requests, so that milliseconds of a call are microseconds of a request. Ours
stands beside botocore's signer, and h11 and httptools where they are installed; the project needs
neither of the two.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from statelift.backends.checksums import crc64nvme
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
# The same head for an empty body, so that a parser has nothing else to do.
EMPTY = HEAD.replace(b"Content-Length: 65536", b"X-Length: 65536\r\nContent-Length: 0")


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


def test_read_a_head(benchmark: Any) -> None:
    data = memoryview(EMPTY)

    def read() -> int:
        length = 0
        for _ in range(REQUESTS):
            reader = ResponseReader()
            reader.feed(data)
            assert reader.head is not None
            length += int(reader.head.headers["x-length"])
        return length

    assert benchmark(read) == REQUESTS * len(BODY)


def test_read_a_head_by_h11(benchmark: Any) -> None:
    h11 = pytest.importorskip("h11")
    request = h11.Request(method="GET", target="/", headers=[("host", "h")])

    def read() -> int:
        length = 0
        for _ in range(REQUESTS):
            connection = h11.Connection(h11.CLIENT)
            connection.send(request)
            connection.send(h11.EndOfMessage())
            connection.receive_data(EMPTY)
            headers = dict(connection.next_event().headers)
            length += int(headers[b"x-length"])
        return length

    assert benchmark(read) == REQUESTS * len(BODY)


class _Headers:
    """What httptools calls back, gathered as our reader gives it."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")


def test_read_a_head_by_httptools(benchmark: Any) -> None:
    httptools = pytest.importorskip("httptools")

    def read() -> int:
        length = 0
        for _ in range(REQUESTS):
            found = _Headers()
            parser = httptools.HttpResponseParser(found)
            parser.feed_data(EMPTY)
            assert parser.get_status_code() == 206
            length += int(found.headers["x-length"])
        return length

    assert benchmark(read) == REQUESTS * len(BODY)


@pytest.mark.parametrize("implementation", ["awscrt", "anycrc"])
def test_crc64nvme_of_a_mebibyte(benchmark: Any, implementation: str) -> None:
    data = random.Random(1).randbytes(1 << 20)
    if implementation == "awscrt":
        function = pytest.importorskip("awscrt.checksums").crc64nvme
    else:
        function = pytest.importorskip("anycrc").Model("CRC64-NVME").calc
    assert benchmark(function, data, 0) == crc64nvme(data)


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
