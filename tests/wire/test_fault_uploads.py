"""Every fault of the issue on an upload: of one request, and of each step of one in parts."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from statelift.backends.errors import (
    AccessDenied,
    BackendError,
    ConnectionFailed,
    IntegrityError,
    SourceNotFound,
    StalledTransfer,
    Throttled,
    TransferError,
)
from statelift.backends.options import Configuration
from statelift.backends.s3_access import S3Access
from statelift.backends.s3_options import S3Options
from statelift.transfer.demo.s3_server import S3Server

from ..servers import fault_actions as actions
from ..servers import framing_actions as framing
from ..servers import request_actions as requests
from ..servers.fault import Action, Rule
from .kit import OLD, Kit, spread

pytestmark = pytest.mark.timeout(60)
SLOW = pytest.mark.slow
PART = 64 << 10
SMALL = random.Random(1).randbytes(50_000)
LARGE = random.Random(2).randbytes(5 * PART + 77)


@dataclass(frozen=True)
class Step:
    """A request of an upload, and the data that makes it."""

    name: str
    match: str
    data: bytes

    def __str__(self) -> str:
        return self.name


PUT = Step("put", "PUT *", SMALL)
CREATE = Step("create", "POST *uploads=*", LARGE)
UPLOAD_PART = Step("part", "PUT *partNumber=3&*", LARGE)
COMPLETE = Step("complete", "POST *uploadId=*", LARGE)
STEPS = [PUT, CREATE, UPLOAD_PART, COMPLETE]
WITH_BODY = [PUT, UPLOAD_PART]

PASSING: dict[str, Action] = {
    "429": actions.status(429, "TooManyRequests"),
    "500": actions.status(500, "InternalError"),
    "502 without a body": actions.empty_status(502),
    "503 SlowDown": actions.slow_down(),
    "503 with Retry-After": actions.slow_down(retry_after=1),
    "400 RequestTimeout": actions.status(400, "RequestTimeout"),
    "409 OperationAborted": actions.status(409, "OperationAborted"),
    "reset before the answer": actions.refuse(),
    "garbage": actions.raw(b"nonsense\r\n\r\n"),
    "200 with an error body": actions.error_in_200(),
}

#: The store did what it was asked, and that is not known: doing it again must do no harm.
UNKNOWN: dict[str, Action] = {
    "answer lost": requests.lost_answer(),
    "reset in the status line": framing.cut(5, "reset"),
    "reset in the headers": framing.cut(150, "reset"),
    "end in the headers": framing.cut(150, "end"),
    "stall before the answer": framing.cut(0, "stall"),
    "stall in the headers": framing.cut(150, "stall"),
}

AWKWARD: dict[str, Action] = {
    "headers split at every byte": framing.split(1),
    "chunked": framing.chunked(7),
    "chunked, with a trailer": framing.chunked(70, trailer="x-amz-meta-a: b\r\n"),
    "100 Continue": framing.interim(100, times=3),
    "103 Early Hints": framing.interim(103),
    "Connection: close": framing.closing(),
    "closed without a word": framing.closing(announced=False),
    "HTTP/1.0": framing.http10(),
    "no length": framing.without_length(),
    "late": actions.delay(0.2),
    "slow answer": actions.drip(100, every=0.01),
    "answered twice": framing.twice(),
}

LASTING: dict[str, tuple[Action, tuple[type[TransferError], ...]]] = {
    "403": (actions.status(403, "AccessDenied"), (AccessDenied,)),
    "404": (actions.status(404, "NoSuchBucket"), (SourceNotFound,)),
    "400 ExpiredToken": (actions.status(400, "ExpiredToken"), (AccessDenied,)),
    "400 EntityTooLarge": (actions.status(400, "EntityTooLarge"), (BackendError,)),
    "301": (actions.redirect("eu-west-1"), (BackendError, AccessDenied)),
    "500": (actions.status(500, "InternalError"), (BackendError,)),
    "503": (actions.slow_down(), (Throttled,)),
    "400 BadDigest": (actions.status(400, "BadDigest"), (IntegrityError,)),
    "200 with an error body": (actions.error_in_200(), (BackendError,)),
    "reset before the answer": (actions.refuse(), (ConnectionFailed,)),
    "stall before the answer": (actions.stall(of_head=True), (StalledTransfer,)),
    "slow-loris headers": (actions.drip(1, every=0.1), (StalledTransfer,)),
    "garbage": (actions.raw(b"nonsense\r\n\r\n"), (BackendError,)),
    "endless headers": (actions.with_headers([("X-Big", "x" * 60_000)] * 40), (BackendError,)),
    "a sum that is not ours": (
        actions.set_headers({"x-amz-checksum-crc64nvme": "AAAAAAAAAAA="}),
        (IntegrityError,),
    ),
}

#: Faults while the body is on its way, from (how far it came) to what the server does then.
IN_THE_BODY: dict[str, Callable[[int], Action]] = {
    "reset": requests.reset_request,
    "end": requests.end_request,
    "stall": requests.stall_request,
    "403": lambda after: requests.answer_early(after, 403, "AccessDenied"),
    "503": lambda after: requests.answer_early(after, 503, "SlowDown"),
}


@pytest.fixture
def uploads(s3: S3Server, bucket: str) -> Callable[[], list[Any]]:
    """The multipart uploads that the store itself still holds."""

    def listed() -> list[Any]:
        access = S3Access(Configuration(s3.options, environ={}).of(S3Options))
        client: Any = access.client()
        try:
            return list(client.list_multipart_uploads(Bucket=bucket).get("Uploads", []))
        except client.exceptions.NoSuchUpload:
            # rclone's answer for a bucket that never had one.
            return []
        finally:
            access.close()

    return listed


def upload(kit: Kit, step: Step, bucket: str, file: Path) -> dict[str, TransferError]:
    """Errors of an upload; the progress that it told was taken back where it failed."""
    kit.part_size = PART if step is not PUT else None
    return kit.upload(step.data, file, f"s3://{bucket}/key").errors


@pytest.mark.parametrize(("kit", "fault", "step"), spread(PASSING, STEPS), indirect=["kit"])
def test_a_fault_that_passes_is_overcome(
    kit: Kit, s3_root: Path, bucket: str, tmp_path: Path, uploads: Any, fault: str, step: Step
) -> None:
    kit.server.add(Rule(step.match, PASSING[fault]))
    assert upload(kit, step, bucket, tmp_path / "file") == {}
    assert kit.server.rules[0].used == 1, "the fault never struck"
    assert (s3_root / bucket / "key").read_bytes() == step.data
    assert uploads() == []


@pytest.mark.parametrize(("kit", "fault", "step"), spread(UNKNOWN, STEPS), indirect=["kit"])
def test_an_answer_that_is_lost_does_no_harm(
    kit: Kit, s3_root: Path, bucket: str, tmp_path: Path, uploads: Any, fault: str, step: Step
) -> None:
    kit.server.add(Rule(step.match, UNKNOWN[fault]))
    errors = upload(kit, step, bucket, tmp_path / "file")
    assert kit.server.rules[0].used == 1, "the fault never struck"
    # rclone's ETag does not tell whether a completed object is ours: then an error is the honest answer.
    assert errors == {} or step is COMPLETE
    assert (s3_root / bucket / "key").read_bytes() == step.data
    assert uploads() == []


@pytest.mark.parametrize(("kit", "fault", "step"), spread(AWKWARD, STEPS), indirect=["kit"])
def test_what_is_right_but_awkward_costs_no_attempt(
    kit: Kit, s3_root: Path, bucket: str, tmp_path: Path, uploads: Any, fault: str, step: Step
) -> None:
    kit.more["transfer.retries"] = 0
    kit.server.add(Rule("P*", AWKWARD[fault], times=None))
    assert upload(kit, step, bucket, tmp_path / "file") == {}
    assert (s3_root / bucket / "key").read_bytes() == step.data
    assert uploads() == []


@pytest.mark.parametrize(("kit", "fault", "step"), spread(LASTING, STEPS), indirect=["kit"])
def test_a_fault_that_stays_is_one_clear_error(
    kit: Kit, s3_root: Path, bucket: str, tmp_path: Path, uploads: Any, fault: str, step: Step
) -> None:
    target = s3_root / bucket / "key"
    target.write_bytes(OLD)
    kit.more.update({"transfer.retries": 1, "transfer.stall-timeout": "300ms"})
    action, kinds = LASTING[fault]
    kit.server.add(Rule(step.match, action, times=None))
    errors = upload(kit, step, bucket, tmp_path / "file")
    if fault == "a sum that is not ours":
        # One request's object was replaced and is withdrawn; a create's sum is nobody's.
        assert bool(errors) == (step is not CREATE)
        assert not target.exists() if step in (PUT, COMPLETE) else target.read_bytes() in (OLD, step.data)
    else:
        (error,) = errors.values()
        assert isinstance(error, kinds), repr(error)
        assert target.read_bytes() in (OLD, step.data)
    assert uploads() == []


@pytest.mark.parametrize(
    "after", [pytest.param(0, marks=SLOW), pytest.param(1, marks=SLOW), 20_000, pytest.param(49_999, marks=SLOW)]
)
@pytest.mark.parametrize("step", WITH_BODY, ids=str)
@pytest.mark.parametrize("fault", [pytest.param(each, marks=SLOW if each == "stall" else ()) for each in IN_THE_BODY])
def test_a_fault_in_the_body_is_overcome_or_told(
    kit: Kit, s3_root: Path, bucket: str, tmp_path: Path, uploads: Any, fault: str, step: Step, after: int
) -> None:
    target = s3_root / bucket / "key"
    target.write_bytes(OLD)
    kit.server.add(Rule(step.match, IN_THE_BODY[fault](after), early=True))
    errors = upload(kit, step, bucket, tmp_path / "file")
    assert kit.server.rules[0].used == 1, "the fault never struck"
    if fault == "403":
        (error,) = errors.values()
        assert isinstance(error, AccessDenied)
        assert target.read_bytes() == OLD
    else:
        assert errors == {}
        assert target.read_bytes() == step.data
    assert uploads() == []


@pytest.mark.parametrize("step", WITH_BODY, ids=str)
@pytest.mark.parametrize("after", [0, pytest.param(30_000, marks=SLOW)])
@pytest.mark.parametrize("fault", ["reset", "end", pytest.param("stall", marks=SLOW)])
def test_a_body_that_never_arrives_is_an_error(
    kit: Kit, s3_root: Path, bucket: str, tmp_path: Path, uploads: Any, fault: str, step: Step, after: int
) -> None:
    target = s3_root / bucket / "key"
    target.write_bytes(OLD)
    kit.more.update({"transfer.retries": 1, "transfer.stall-timeout": "300ms"})
    kit.server.add(Rule(step.match, IN_THE_BODY[fault](after), early=True, times=None))
    (error,) = upload(kit, step, bucket, tmp_path / "file").values()
    assert isinstance(error, (ConnectionFailed, StalledTransfer)), repr(error)
    assert target.read_bytes() == OLD
    assert uploads() == []


@pytest.mark.parametrize("step", WITH_BODY, ids=str)
def test_a_continue_that_nobody_asked_for_is_ignored(
    kit: Kit, s3_root: Path, bucket: str, tmp_path: Path, step: Step
) -> None:
    kit.more["transfer.retries"] = 0
    kit.server.add(Rule(step.match, requests.continue_then_forward(times=2), early=True, times=None))
    assert upload(kit, step, bucket, tmp_path / "file") == {}
    assert (s3_root / bucket / "key").read_bytes() == step.data
