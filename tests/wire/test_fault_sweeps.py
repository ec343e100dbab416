"""Answers cut, or split, at every byte: one file per position, all of them in one batch."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from statelift.backends.checksums import crc64nvme
from statelift.backends.options import Configuration
from statelift.backends.request import CopyRequest
from statelift.backends.s3_access import S3Access
from statelift.backends.s3_options import S3Options
from statelift.transfer.demo.s3_server import S3Server

from ..servers import framing_actions as framing
from ..servers import request_actions as requests
from ..servers.fault import Action, Exchange, Request, Rule
from ..servers.moto import MotoServer
from .kit import Kit, serving

pytestmark = pytest.mark.timeout(120)
BODY = random.Random(6).randbytes(90)
#: Longer than every answer here, head and body; positions behind an answer's end cut nothing.
LONGEST = 1200
SLOW = pytest.mark.slow
STEPS = [pytest.param(1, marks=SLOW, id="every byte"), pytest.param(13, id="every 13th byte")]
FEWER = [pytest.param(7, marks=SLOW, id="every 7th byte"), pytest.param(29, id="every 29th byte")]


class AtEach:
    """A different action for the first request about each key; the position is the key's number."""

    def __init__(self, make: object, method: str) -> None:
        self._make = make
        self._method = method
        self.struck: set[str] = set()

    def __call__(self, request: Request) -> bool:
        if request.method != self._method or request.path in self.struck:
            return False
        self.struck.add(request.path)
        return True

    def act(self, exchange: Exchange) -> None:
        action: Action = self._make(int(exchange.request.path.rpartition("-")[2]))  # type: ignore[operator]
        action(exchange)

    def rule(self, *, early: bool = False) -> Rule:
        return Rule(self, self.act, times=None, early=early)


def objects(s3: S3Server, bucket: str, positions: range) -> dict[str, bytes]:
    for at in positions:
        (s3.root / bucket / f"key-{at}").write_bytes(BODY)
    return {f"s3://{bucket}/key-{at}": BODY for at in positions}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("ending", ["reset", "end", pytest.param("stall", marks=SLOW)])
def test_downloads_whose_answer_is_cut_at_any_byte(
    kit: Kit, s3: S3Server, bucket: str, tmp_path: Path, ending: framing.Ending, step: int
) -> None:
    positions = range(0, LONGEST, step * (5 if ending == "stall" else 1))
    each = AtEach(lambda at: framing.cut(at, ending), "GET")
    kit.server.add(each.rule())
    outcome = kit.download(objects(s3, bucket, positions), tmp_path / "to")
    assert outcome.errors == {}
    assert len(each.struck) == len(positions)


@pytest.mark.parametrize("step", STEPS)
def test_downloads_whose_answer_is_split_at_any_byte(
    kit: Kit, s3: S3Server, bucket: str, tmp_path: Path, step: int
) -> None:
    kit.more["transfer.retries"] = 0
    positions = range(0, LONGEST, step)
    each = AtEach(framing.split_at, "GET")
    kit.server.add(each.rule())
    assert kit.download(objects(s3, bucket, positions), tmp_path / "to").errors == {}
    assert len(each.struck) == len(positions)


@pytest.mark.parametrize("step", FEWER)
@pytest.mark.parametrize("method", ["HEAD", "PUT"])
@pytest.mark.parametrize("ending", ["reset", "end"])
def test_copies_whose_answer_is_cut_at_any_byte(
    moto_s3: MotoServer, moto_bucket: str, tmp_path: Path, ending: framing.Ending, method: str, step: int
) -> None:
    access = S3Access(Configuration(moto_s3.options, environ={}).of(S3Options))
    client: Any = access.client()
    positions = range(0, LONGEST, step)
    for at in positions:
        client.put_object(Bucket=moto_bucket, Key=f"key-{at}", Body=BODY)
    each = AtEach(lambda at: framing.cut(at, ending), method)
    with serving(moto_s3, tmp_path / "state") as kit:
        kit.server.add(each.rule())
        uris = [(f"s3://{moto_bucket}/key-{at}", f"s3://{moto_bucket}/copy-{at}") for at in positions]
        assert kit.copy([CopyRequest(*uri, size=len(BODY)) for uri in uris]).errors == {}
    # HEAD: the source's before, and the copy's after.
    assert len(each.struck) == len(uris) * (2 if method == "HEAD" else 1)
    copied = {client.get_object(Bucket=moto_bucket, Key=f"copy-{at}")["Body"].read() for at in positions}
    access.close()
    assert copied == {BODY}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("ending", ["reset", "end"])
@pytest.mark.parametrize("where", ["answer", "body"])
def test_uploads_cut_at_any_byte(
    kit: Kit, s3: S3Server, bucket: str, tmp_path: Path, ending: framing.Ending, where: str, step: int
) -> None:
    (tmp_path / "file").write_bytes(BODY)
    if where == "answer":
        positions = range(0, LONGEST, step)
        each = AtEach(lambda at: framing.cut(at, ending), "PUT")
    else:
        positions = range(0, len(BODY), step)
        each = AtEach(requests.reset_request if ending == "reset" else requests.end_request, "PUT")
    kit.server.add(each.rule(early=where == "body"))
    requested = [
        CopyRequest(str(tmp_path / "file"), f"s3://{bucket}/key-{at}", size=len(BODY), crc64nvme=crc64nvme(BODY))
        for at in positions
    ]
    assert kit.copy(requested).errors == {}
    assert len(each.struck) == len(positions)
    assert {(s3.root / bucket / f"key-{at}").read_bytes() for at in positions} == {BODY}
