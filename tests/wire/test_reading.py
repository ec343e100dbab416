"""One small object into memory: right bytes or one clear error, whatever the store does."""

from __future__ import annotations

import gc
import random
import warnings
from collections.abc import Iterator

import pytest

from statelift.backends.checksums import crc64nvme, to_base64
from statelift.backends.errors import (
    AccessDenied,
    ConnectionFailed,
    IntegrityError,
    SourceNotFound,
    StalledTransfer,
    TransferError,
)
from statelift.backends.options import Configuration
from statelift.backends.wire import WireFileSystem
from statelift.transfer.demo.s3_server import S3Server
from statelift.transfer.objects import Objects

from ..servers import fault_actions as actions
from ..servers.fault import FaultServer, Rule

DATA = random.Random(3).randbytes(300_000)
LIMITS = {"transfer.stall-timeout": "1s", "transfer.connect-timeout": "2s", "transfer.retries": 2}
pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def faults(s3: S3Server) -> Iterator[FaultServer]:
    with FaultServer(s3.endpoint) as server:
        yield server


@pytest.fixture
def wire(s3: S3Server, faults: FaultServer) -> Iterator[WireFileSystem]:
    made = WireFileSystem(Configuration({**s3.options, "s3.endpoint": faults.endpoint, **LIMITS}, environ={}))
    yield made
    made.close()


@pytest.fixture
def uri(bucket: str, configuration: Configuration) -> str:
    with Objects(configuration) as objects:
        objects.write(f"s3://{bucket}/a b/é", DATA)
    return f"s3://{bucket}/a b/é"


@pytest.mark.parametrize(
    "action",
    [
        actions.slow_down(),
        actions.status(500, "InternalError"),
        actions.reset(after=1000),
        actions.truncate(after=299_999),
        actions.stall(after=10_000),
        actions.raw(b"not HTTP at all\r\n\r\n"),
    ],
    ids=["slow down", "500", "reset", "truncated", "stalled", "garbage"],
)
def test_a_fault_that_passes_is_read_past(faults: FaultServer, wire: WireFileSystem, uri: str, action) -> None:
    faults.add(Rule("GET *", action, times=1))
    assert wire.read(uri) == DATA


@pytest.mark.parametrize(
    ("action", "kind"),
    [
        (actions.status(403, "AccessDenied"), AccessDenied),
        (actions.status(404, "NoSuchKey"), SourceNotFound),
        (actions.reset(), ConnectionFailed),
        (actions.stall(), StalledTransfer),
        (actions.with_headers([("x-amz-checksum-crc64nvme", to_base64(crc64nvme(b"other")))]), IntegrityError),
    ],
    ids=["denied", "missing", "reset", "stalled", "other bytes"],
)
def test_a_fault_that_stays_is_one_error_that_names_the_object(
    faults: FaultServer, wire: WireFileSystem, uri: str, action, kind: type[TransferError]
) -> None:
    faults.add(Rule("GET *", action, times=None))
    with pytest.raises(kind) as raised:
        wire.read(uri)
    assert uri in str(raised.value)


def test_a_longer_object_than_wanted_is_refused_before_it_is_read(
    faults: FaultServer, wire: WireFileSystem, uri: str
) -> None:
    assert wire.read(uri, at_most=len(DATA)) == DATA
    with pytest.raises(IntegrityError, match="300000 bytes, more than 299999"):
        wire.read(uri, at_most=len(DATA) - 1)
    faults.add(Rule("GET *", actions.with_headers(drop=["content-length"]), times=None))
    with pytest.raises(TransferError):
        wire.read(uri, at_most=10)


def test_reads_share_a_connection_and_leave_none(faults: FaultServer, wire: WireFileSystem, uri: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(5):
            wire.read(uri)
        assert (len(faults.requests), faults.connections) == (5, 1)
        wire.close()
        gc.collect()
    assert wire.read(uri) == DATA
