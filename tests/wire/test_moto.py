"""What only moto has: UploadPartCopy, If-Match, encryption that is told back."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from statelift.backends.errors import SourceChanged
from statelift.backends.options import Configuration
from statelift.backends.request import CopyRequest
from statelift.backends.s3_access import S3Access
from statelift.backends.s3_options import S3Options
from statelift.backends.wire import server_side

from ..servers.moto import MotoServer
from .kit import Kit, serving

PART = 64 << 10
DATA = random.Random(8).randbytes(5 * PART + 1)


@pytest.fixture
def client(moto_s3: MotoServer) -> Iterator[Any]:
    access = S3Access(Configuration(moto_s3.options, environ={}).of(S3Options))
    yield access.client()
    access.close()


@pytest.fixture
def kit(moto_s3: MotoServer, tmp_path: Path) -> Iterator[Kit]:
    with serving(moto_s3, tmp_path / "state") as kit:
        kit.part_size = PART
        yield kit


@pytest.mark.parametrize("range_of", [(0, None), (PART + 7, 3 * PART), (5, 1)], ids=["whole", "range", "a byte"])
@pytest.mark.parametrize("key", ["plain", "a b+c%20d/é&=?"])
def test_copies_in_parts_within_the_store(
    kit: Kit, client: Any, moto_bucket: str, monkeypatch: pytest.MonkeyPatch, range_of: Any, key: str
) -> None:
    monkeypatch.setattr(server_side, "_PART", PART)
    monkeypatch.setattr(server_side, "_SINGLE_MOST", PART)
    client.put_object(Bucket=moto_bucket, Key=key, Body=DATA)
    offset, length = range_of
    request = CopyRequest(f"s3://{moto_bucket}/{key}", f"s3://{moto_bucket}/to", offset=offset, length=length)
    outcome = kit.copy([request])
    assert outcome.report is not None
    assert outcome.report.bytes_moved == 0
    wanted = DATA[offset:] if length is None else DATA[offset : offset + length]
    assert client.get_object(Bucket=moto_bucket, Key="to")["Body"].read() == wanted
    parts = [each for each in kit.server.requests if "partNumber" in each.query]
    assert len(parts) == -(-len(wanted) // PART)
    assert all(each.header("x-amz-copy-source-range") for each in parts)
    assert not any(each.body for each in parts)


@pytest.mark.parametrize("data", [b"small", DATA], ids=["put", "parts"])
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"s3.sse.type": "AES256"}, ("AES256", None)),
        ({"s3.sse.type": "aws:kms", "s3.sse.kms.key-id": "key-1"}, ("aws:kms", "key-1")),
    ],
    ids=["s3", "kms"],
)
def test_objects_are_encrypted_as_configured(
    kit: Kit, client: Any, moto_bucket: str, tmp_path: Path, data: bytes, options: dict[str, str], told: Any
) -> None:
    kit.more.update(options)
    assert kit.upload(data, tmp_path / "file", f"s3://{moto_bucket}/key").errors == {}
    copy = CopyRequest(f"s3://{moto_bucket}/key", f"s3://{moto_bucket}/copy", size=len(data))
    assert kit.copy([copy]).errors == {}
    for key in ("key", "copy"):
        head = client.head_object(Bucket=moto_bucket, Key=key)
        assert (head["ServerSideEncryption"], head.get("SSEKMSKeyId")) == told
    assert kit.download({f"s3://{moto_bucket}/key": data}, tmp_path / "to").errors == {}


@pytest.mark.parametrize("data", [b"small", DATA], ids=["small", "parts"])
def test_the_version_that_was_asked_for_or_none(
    kit: Kit, client: Any, moto_bucket: str, tmp_path: Path, data: bytes
) -> None:
    etag = client.put_object(Bucket=moto_bucket, Key="key", Body=data)["ETag"]
    uri = f"s3://{moto_bucket}/key"
    assert kit.download({uri: data}, tmp_path / "right", etag=etag).errors == {}
    assert {each.header("if-match") for each in kit.server.requests if each.method == "GET"} == {etag}
    client.put_object(Bucket=moto_bucket, Key="key", Body=data[::-1])
    assert isinstance(kit.download({uri: data}, tmp_path / "changed", etag=etag).only_error, SourceChanged)


def test_ranges_of_one_object_ask_for_the_version_of_the_first(
    kit: Kit, client: Any, moto_bucket: str, tmp_path: Path
) -> None:
    etag = client.put_object(Bucket=moto_bucket, Key="key", Body=DATA)["ETag"]
    kit.more["s3.connection.max"] = 1
    assert kit.download({f"s3://{moto_bucket}/key": DATA}, tmp_path / "to").errors == {}
    asked = [each.header("if-match") for each in kit.server.requests]
    assert asked == [None] + [etag] * (len(asked) - 1)
    assert len(asked) > 1
