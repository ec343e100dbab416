"""Copies within a store that cannot do all that S3 can."""

from __future__ import annotations

import random
from contextlib import closing

import pytest

from statelift.backends.checksums import crc64nvme
from statelift.backends.closeables import CloseableRegistry
from statelift.backends.errors import CopyFailed
from statelift.backends.options import Configuration
from statelift.backends.request import CopyRequest
from statelift.backends.s3_access import S3Access
from statelift.backends.s3_options import S3Options
from statelift.backends.wire import WireFileSystem, server_side
from statelift.transfer.objects import Objects

PART = 64 << 10


def test_a_store_that_copies_no_ranges_copies_the_object_whole(
    bucket: str, configuration: Configuration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """rclone takes the copy of a part for an empty upload of it."""
    monkeypatch.setattr(server_side, "_PART", PART)
    monkeypatch.setattr(server_side, "_SINGLE_MOST", PART)
    data = random.Random(9).randbytes(5 * PART + 1)
    source, target = f"s3://{bucket}/source", f"s3://{bucket}/target"
    with Objects(configuration) as objects, closing(WireFileSystem(configuration)) as wire:
        objects.write(source, data)
        request = CopyRequest(source, target, crc64nvme=crc64nvme(data))
        assert wire.copy_files([request], CloseableRegistry()).methods == {"server-side": 1}
        assert objects.read(target) == data
        ranged = CopyRequest(source, target + "-range", offset=1, length=2 * PART)
        with pytest.raises(CopyFailed, match="cannot copy ranges by itself"):
            wire.copy_files([ranged], CloseableRegistry())
        assert not objects.exists(target + "-range")
    client = S3Access(configuration.of(S3Options)).client()
    assert "Uploads" not in client.list_multipart_uploads(Bucket=bucket)
