"""Every fault of the issue on a download: of small objects, ranges and many parts, over HTTP and HTTPS."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from statelift.backends.errors import (
    AccessDenied,
    BackendError,
    ConnectionFailed,
    IntegrityError,
    SourceChanged,
    SourceNotFound,
    StalledTransfer,
    Throttled,
    TransferError,
)
from statelift.transfer.demo.s3_server import S3Server

from ..servers import fault_actions as actions
from ..servers import framing_actions as framing
from ..servers.fault import Action, Rule
from .kit import Kit, spread

pytestmark = pytest.mark.timeout(60)
PART = 64 << 10
SMALL = random.Random(1).randbytes(50_000)
LARGE = random.Random(2).randbytes(10 * PART + 77)
FIRST, LENGTH = 1000, 3 * PART + 5


@dataclass(frozen=True)
class Shape:
    """What is downloaded: an object or a range of one, in one part or in several."""

    name: str
    data: bytes
    offset: int = 0
    length: int | None = None

    @property
    def wanted(self) -> bytes:
        return self.data[self.offset :][: self.length]

    def __str__(self) -> str:
        return self.name


SHAPES = [Shape("small", SMALL), Shape("range", LARGE, FIRST, LENGTH), Shape("parts", LARGE)]

#: Faults that pass: the right bytes must arrive. Each strikes the second answer where there are several.
PASSING: dict[str, Action] = {
    "429": actions.status(429, "TooManyRequests"),
    "500": actions.status(500, "InternalError"),
    "502 without a body": actions.empty_status(502),
    "503 SlowDown": actions.slow_down(),
    "503 without a body": actions.empty_status(503),
    "503 with Retry-After": actions.slow_down(retry_after=1),
    "504 without a body": actions.empty_status(504),
    "400 RequestTimeout": actions.status(400, "RequestTimeout"),
    "408 without a body": actions.empty_status(408),
    "reset before the answer": actions.refuse(),
    "reset in the status line": framing.cut(5, "reset"),
    "reset in the headers": framing.cut(150, "reset"),
    "reset in the body": actions.reset(after=20_011),
    "reset one byte before the end": actions.reset(after=49_999),
    "end in the headers": framing.cut(150, "end"),
    "end in the body": actions.truncate(after=20_011),
    "body truncated, honest length": actions.short(7),
    "overlong body, counted": actions.overlong(9, declared=True),
    "stall before the answer": framing.cut(0, "stall"),
    "stall in the headers": framing.cut(150, "stall"),
    "stall in the body": actions.stall(after=20_011),
    "flipped bit": actions.flip(12_345),
    "garbage": actions.raw(b"\x16\x03\x01 nonsense\r\n\r\n"),
    "garbage without an end": actions.raw(random.Random(3).randbytes(70_000)),
    "huge headers": actions.with_headers([("X-Big", "x" * 9_000)] * 10),
    "200 with an error body": actions.error_in_200(),
    "206 with another range": actions.set_headers({"Content-Range": f"bytes 7-{PART + 6}/{len(LARGE)}"}),
    "compressed body": framing.compressed(),
    "another ETag": actions.set_headers({"ETag": '"another"'}),
    "wrong checksum": actions.set_headers({"x-amz-checksum-crc64nvme": "AAAAAAAAAAA="}),
}

#: Awkward but right: the bytes must arrive without an attempt wasted.
AWKWARD: dict[str, Action] = {
    "headers split at every byte": framing.split(1),
    "headers split at every third byte": framing.split(3),
    "chunked": framing.chunked(7001),
    "chunked, with a trailer": framing.chunked(9000, trailer="x-amz-meta-a: b\r\n"),
    "chunked, tiny": framing.chunked(37),
    "100 Continue": framing.interim(100, times=2),
    "103 Early Hints": framing.interim(103),
    "Connection: close": framing.closing(),
    "closed without a word": framing.closing(announced=False),
    "HTTP/1.0": framing.http10(),
    "HTTP/1.0 with keep-alive": framing.http10(keep=True),
    "no length": framing.without_length(),
    "late": actions.delay(0.2),
    "slow body": actions.drip(30_000, every=0.02, body_only=True),
    "headers in many forms": actions.with_headers([("X-A", ";;=,\xe9"), ("Server", "a"), ("Server", ""), ("X", "\t")]),
    "answered twice": framing.twice(),
}

#: Faults that stay: one error, of one of these kinds.
LASTING: dict[str, tuple[Action, tuple[type[TransferError], ...]]] = {
    "401": (actions.status(401, "Unauthorized"), (AccessDenied,)),
    "403": (actions.status(403, "AccessDenied"), (AccessDenied,)),
    "403 without a body": (actions.empty_status(403), (AccessDenied,)),
    "404": (actions.status(404, "NoSuchKey"), (SourceNotFound,)),
    "405": (actions.status(405, "MethodNotAllowed"), (BackendError,)),
    "410": (actions.empty_status(410), (BackendError,)),
    "412": (actions.status(412, "PreconditionFailed"), (SourceChanged,)),
    "416": (actions.status(416, "InvalidRange"), (IntegrityError,)),
    "400 ExpiredToken": (actions.status(400, "ExpiredToken"), (AccessDenied,)),
    "301": (actions.redirect("eu-west-1"), (BackendError, AccessDenied)),
    "304": (actions.empty_status(304), (BackendError,)),
    "500": (actions.status(500, "InternalError"), (BackendError,)),
    "503": (actions.slow_down(), (Throttled,)),
    "reset before the answer": (actions.refuse(), (ConnectionFailed,)),
    "reset in the body": (actions.reset(after=100), (ConnectionFailed,)),
    "end in the body": (actions.truncate(after=100), (ConnectionFailed,)),
    "short": (actions.short(7), (IntegrityError, BackendError)),
    "overlong, counted": (actions.overlong(9, declared=True), (IntegrityError, BackendError)),
    "stall": (actions.stall(after=100), (StalledTransfer,)),
    "slow-loris headers": (actions.drip(1, every=0.1), (StalledTransfer,)),
    "slow-loris body": (actions.drip(1, every=0.1, body_only=True), (StalledTransfer,)),
    "flipped bit": (actions.flip(12_345), (IntegrityError,)),
    "compressed body": (framing.compressed(), (IntegrityError, BackendError)),
    "garbage": (actions.raw(b"nonsense\r\n\r\n"), (BackendError,)),
    "endless headers": (actions.with_headers([("X-Big", "x" * 60_000)] * 40), (BackendError,)),
    "200 with an error body": (actions.error_in_200(), (BackendError, IntegrityError)),
    "no such length": (actions.set_headers({"Content-Length": "many"}), (BackendError,)),
    "two lengths": (actions.with_headers([("Content-Length", "5")]), (BackendError,)),
    "a checksum that is none": (actions.set_headers({"x-amz-checksum-crc64nvme": "?"}), (BackendError,)),
}


def put(s3: S3Server, bucket: str, shape: Shape) -> str:
    (s3.root / bucket / "key").write_bytes(shape.data)
    return f"s3://{bucket}/key"


def ranged(shape: Shape) -> dict[str, int | None]:
    return {"size": len(shape.data), "offset": shape.offset, "length": shape.length}


@pytest.mark.parametrize(("kit", "fault", "shape"), spread(PASSING, SHAPES), indirect=["kit"])
def test_a_fault_that_passes_is_overcome(
    kit: Kit, s3: S3Server, bucket: str, tmp_path: Path, fault: str, shape: Shape
) -> None:
    kit.part_size = PART
    kit.server.add(Rule("GET *", PASSING[fault], after=0 if shape.name == "small" else 1))
    outcome = kit.download({put(s3, bucket, shape): shape.wanted}, tmp_path / "to", **ranged(shape))
    assert kit.server.rules[0].used == 1, "the fault never struck"
    assert outcome.errors == {}


@pytest.mark.parametrize(("kit", "fault", "shape"), spread(AWKWARD, SHAPES), indirect=["kit"])
def test_what_is_right_but_awkward_costs_no_attempt(
    kit: Kit, s3: S3Server, bucket: str, tmp_path: Path, fault: str, shape: Shape
) -> None:
    kit.part_size = PART
    kit.more["transfer.retries"] = 0
    kit.server.add(Rule("GET *", AWKWARD[fault], times=None))
    outcome = kit.download({put(s3, bucket, shape): shape.wanted}, tmp_path / "to", **ranged(shape))
    assert kit.server.rules[0].used, "the fault never struck"
    assert outcome.errors == {}


@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[2]], ids=str)
def test_a_whole_object_must_have_the_sum_that_the_store_tells(
    kit: Kit, s3: S3Server, bucket: str, tmp_path: Path, shape: Shape
) -> None:
    kit.part_size = PART
    kit.server.add(Rule("GET *", actions.set_headers({"x-amz-checksum-crc64nvme": "AAAAAAAAAAA="}), times=None))
    outcome = kit.download({put(s3, bucket, shape): shape.wanted}, tmp_path / "to", **ranged(shape), crc64nvme=None)
    assert isinstance(outcome.only_error, IntegrityError)


@pytest.mark.parametrize(("kit", "fault", "shape"), spread(LASTING, SHAPES), indirect=["kit"])
def test_a_fault_that_stays_is_one_clear_error(
    kit: Kit, s3: S3Server, bucket: str, tmp_path: Path, fault: str, shape: Shape
) -> None:
    kit.part_size = PART
    kit.more.update({"transfer.retries": 1, "transfer.stall-timeout": "500ms"})
    action, kinds = LASTING[fault]
    kit.server.add(Rule("GET *", action, times=None))
    outcome = kit.download({put(s3, bucket, shape): shape.wanted}, tmp_path / "to", **ranged(shape))
    assert isinstance(outcome.only_error, kinds), repr(outcome.only_error)
    # Retries of all parts together are bounded: none goes on after another has given up.
    assert len(kit.server.requests) < 120
