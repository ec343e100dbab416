"""Every fault of the issue on a copy within the store: at each of its requests, whole and in parts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from statelift.backends.errors import (
    AccessDenied,
    BackendError,
    ConnectionFailed,
    IntegrityError,
    SourceChanged,
    StalledTransfer,
    TransferError,
)
from statelift.backends.options import Configuration
from statelift.backends.request import CopyRequest
from statelift.backends.s3_access import S3Access
from statelift.backends.s3_options import S3Options
from statelift.backends.wire import server_side

from ..servers import fault_actions as actions
from ..servers import framing_actions as framing
from ..servers import request_actions as requests
from ..servers.fault import Action, Rule
from ..servers.moto import MotoServer
from ..servers.tls import Certificates
from .kit import OLD, Kit, serving, spread

pytestmark = pytest.mark.timeout(60)
PART = 64 << 10
DATA = random.Random(3).randbytes(3 * PART + 99)


@dataclass(frozen=True)
class Step:
    """A request of a copy; ``in_parts`` says of which kind of copy."""

    name: str
    match: str
    in_parts: bool = False

    def __str__(self) -> str:
        return self.name


LOOK = Step("look", "HEAD *from")
COPY = Step("copy", "PUT *to")
CHECK = Step("check", "HEAD *to")
CREATE = Step("create", "POST *uploads=*", in_parts=True)
COPY_PART = Step("part", "PUT *partNumber=2&*", in_parts=True)
COMPLETE = Step("complete", "POST *uploadId=*", in_parts=True)
STEPS = [LOOK, COPY, CHECK, CREATE, COPY_PART, COMPLETE]
WITH_ANSWER = [COPY, CREATE, COPY_PART, COMPLETE]

PASSING: dict[str, Action] = {
    "500": actions.empty_status(500),
    "502 without a body": actions.empty_status(502),
    "503": actions.empty_status(503),
    "reset before the answer": actions.refuse(),
    "reset in the status line": framing.cut(5, "reset"),
    "reset in the headers": framing.cut(100, "reset"),
    "end in the headers": framing.cut(100, "end"),
    "answer lost": requests.lost_answer(),
    "garbage": actions.raw(b"nonsense\r\n\r\n"),
}
AWKWARD: dict[str, Action] = {
    "headers split": framing.split(3),
    "100 Continue": framing.interim(100, times=3),
    "Connection: close": framing.closing(),
    "closed without a word": framing.closing(announced=False),
    "HTTP/1.0": framing.http10(),
    "late": actions.delay(0.1),
}
#: Only where the answer has a body.
ONLY_BODIES: dict[str, Action] = {
    "200 with an error body": actions.error_in_200(),
    "body cut": framing.cut(350, "end"),
}
LASTING: dict[str, tuple[Action, tuple[type[TransferError], ...]]] = {
    "403": (actions.status(403, "AccessDenied"), (AccessDenied,)),
    "412": (actions.empty_status(412), (SourceChanged,)),
    "500": (actions.empty_status(500), (BackendError,)),
    "503": (actions.slow_down(), (BackendError,)),
    "reset before the answer": (actions.refuse(), (ConnectionFailed,)),
    "stall before the answer": (actions.stall(of_head=True), (StalledTransfer,)),
    "garbage": (actions.raw(b"nonsense\r\n\r\n"), (BackendError,)),
    "endless headers": (actions.with_headers([("X-Big", "x" * 60_000)] * 40), (BackendError,)),
}


@pytest.fixture
def client(moto_s3: MotoServer) -> Iterator[Any]:
    access = S3Access(Configuration(moto_s3.options, environ={}).of(S3Options))
    yield access.client()
    access.close()


@pytest.fixture
def kit(
    request: pytest.FixtureRequest, moto_s3: MotoServer, certificates: Certificates, tmp_path: Path
) -> Iterator[Kit]:
    trusted = certificates if request.param == "https" else None
    with serving(moto_s3, tmp_path / "state", trusted) as kit:
        yield kit


def copy(
    kit: Kit, step: Step, bucket: str, client: Any, monkeypatch: pytest.MonkeyPatch, **request: Any
) -> dict[str, TransferError]:
    """Copy onto an older object; whatever comes of it, no upload is left and the source is what it was."""
    client.put_object(Bucket=bucket, Key="from", Body=DATA)
    client.put_object(Bucket=bucket, Key="to", Body=OLD)
    monkeypatch.setattr(server_side, "_PART", PART)
    if step.in_parts:
        monkeypatch.setattr(server_side, "_SINGLE_MOST", PART)
    wanted = {"size": len(DATA), **request}
    errors = kit.copy([CopyRequest(f"s3://{bucket}/from", f"s3://{bucket}/to", **wanted)]).errors
    if step is not CREATE:
        # moto says of every upload that it began in 2010, so those of an unheard answer are not known for ours.
        assert client.list_multipart_uploads(Bucket=bucket).get("Uploads", []) == []
    assert content(client, bucket, "from") == DATA
    found = content(client, bucket, "to")
    assert found == DATA if not errors else found in (OLD, DATA), f"{len(found)} wrong bytes"
    return errors


def content(client: Any, bucket: str, key: str) -> bytes:
    return bytes(client.get_object(Bucket=bucket, Key=key)["Body"].read())


@pytest.mark.parametrize(
    ("kit", "fault", "step"), spread(PASSING, STEPS) + spread(ONLY_BODIES, WITH_ANSWER), indirect=["kit"]
)
def test_a_fault_that_passes_is_overcome(
    kit: Kit, moto_bucket: str, client: Any, monkeypatch: pytest.MonkeyPatch, fault: str, step: Step
) -> None:
    kit.server.add(Rule(step.match, {**PASSING, **ONLY_BODIES}[fault]))
    assert copy(kit, step, moto_bucket, client, monkeypatch) == {}
    assert kit.server.rules[0].used == 1, "the fault never struck"


@pytest.mark.parametrize(("kit", "fault", "step"), spread(AWKWARD, [COPY, COMPLETE]), indirect=["kit"])
def test_what_is_right_but_awkward_costs_no_attempt(
    kit: Kit, moto_bucket: str, client: Any, monkeypatch: pytest.MonkeyPatch, fault: str, step: Step
) -> None:
    kit.more["transfer.retries"] = 0
    kit.server.add(Rule("*", AWKWARD[fault], times=None))
    assert copy(kit, step, moto_bucket, client, monkeypatch) == {}


@pytest.mark.parametrize(("kit", "fault", "step"), spread(LASTING, STEPS), indirect=["kit"])
def test_a_fault_that_stays_is_one_clear_error(
    kit: Kit, moto_bucket: str, client: Any, monkeypatch: pytest.MonkeyPatch, fault: str, step: Step
) -> None:
    kit.more.update({"transfer.retries": 1, "transfer.stall-timeout": "200ms"})
    action, kinds = LASTING[fault]
    kit.server.add(Rule(step.match, action, times=None))
    (error,) = copy(kit, step, moto_bucket, client, monkeypatch).values()
    assert isinstance(error, kinds), repr(error)


@pytest.mark.parametrize("kit", ["http"], indirect=True)
@pytest.mark.parametrize("step", WITH_ANSWER, ids=str)
def test_an_error_in_a_200_that_stays_is_an_error(
    kit: Kit, moto_bucket: str, client: Any, monkeypatch: pytest.MonkeyPatch, step: Step
) -> None:
    kit.more["transfer.retries"] = 1
    kit.server.add(Rule(step.match, actions.error_in_200(), times=None))
    (error,) = copy(kit, step, moto_bucket, client, monkeypatch).values()
    assert isinstance(error, BackendError)
    assert content(client, moto_bucket, "to") == OLD


@pytest.mark.parametrize("kit", ["http"], indirect=True)
@pytest.mark.parametrize("step", [COPY, COPY_PART], ids=str)
@pytest.mark.parametrize("pinned", [False, True])
def test_a_source_overwritten_during_the_copy_is_never_mixed(
    kit: Kit, moto_bucket: str, client: Any, monkeypatch: pytest.MonkeyPatch, step: Step, pinned: bool
) -> None:
    changed = DATA[::-1]
    client.put_object(Bucket=moto_bucket, Key="from", Body=DATA)
    etag = client.head_object(Bucket=moto_bucket, Key="from")["ETag"]

    def overwrite() -> None:
        client.put_object(Bucket=moto_bucket, Key="from", Body=changed)

    kit.server.add(Rule(step.match, actions.call(overwrite)))
    monkeypatch.setattr(server_side, "_PART", PART)
    if step.in_parts:
        monkeypatch.setattr(server_side, "_SINGLE_MOST", PART)
    request = CopyRequest(
        f"s3://{moto_bucket}/from", f"s3://{moto_bucket}/to", size=len(DATA), etag=etag if pinned else None
    )
    errors = kit.copy([request]).errors
    assert kit.server.rules[0].used == 1
    assert client.list_multipart_uploads(Bucket=moto_bucket).get("Uploads", []) == []
    if errors:
        (error,) = errors.values()
        assert isinstance(error, SourceChanged)
        keys = [each["Key"] for each in client.list_objects_v2(Bucket=moto_bucket)["Contents"]]
        assert keys == ["from"]
    else:
        assert not pinned
        assert content(client, moto_bucket, "to") in (DATA, changed)


@pytest.mark.parametrize("kit", ["http"], indirect=True)
@pytest.mark.parametrize("crc", [1, None])
def test_a_copy_that_has_another_size_is_an_error(
    kit: Kit, moto_bucket: str, client: Any, monkeypatch: pytest.MonkeyPatch, crc: int | None
) -> None:
    kit.server.add(Rule("HEAD *to", actions.set_headers({"Content-Length": "7"}), times=None))
    (error,) = copy(kit, CHECK, moto_bucket, client, monkeypatch, crc64nvme=crc).values()
    assert isinstance(error, IntegrityError)
