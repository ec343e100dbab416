"""Whether the store has what was sent: signed payloads, sums that it checks, tells or ignores, damage on the way."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from statelift.backends.closeables import CloseableRegistry
from statelift.backends.errors import BackendError, CopyFailed, IntegrityError
from statelift.backends.options import Configuration
from statelift.backends.request import CopyRequest
from statelift.backends.wire import WireFileSystem
from statelift.transfer.demo.s3_server import S3Server

from ..servers import request_actions as requests
from ..servers.fault import Rule
from ..servers.strict import StrictStore
from .kit import Kit, serving

PART = 64 << 10
SMALL = random.Random(4).randbytes(30_000)
LARGE = random.Random(5).randbytes(5 * PART + 3)
AWKWARD_KEYS = [
    "plain",
    "a b+c%20d/é/😀",
    "~'!*()&$@=:,;?#[]\"<>|",
    "a//b/./../c",
    "trailing/",
    "tab\tand\nline",
    "%2F%25",
    "x" * 900,
]


@pytest.fixture
def store() -> Iterator[StrictStore]:
    with StrictStore() as store:
        yield store


@pytest.fixture
def strict(store: StrictStore, tmp_path: Path) -> Iterator[Kit]:
    with serving(store, tmp_path / "state") as kit:
        kit.part_size = PART
        yield kit


@pytest.mark.parametrize("key", AWKWARD_KEYS)
@pytest.mark.parametrize("data", [b"", SMALL, LARGE], ids=["empty", "put", "parts"])
@pytest.mark.parametrize("signs", [True, False], ids=["signed", "unsigned"])
def test_every_signature_is_botocore_s(
    strict: Kit, store: StrictStore, tmp_path: Path, key: str, data: bytes, signs: bool
) -> None:
    store.signed_payload = signs
    strict.more["wire.sign-payload"] = signs
    assert strict.upload(data, tmp_path / "file", f"s3://bucket/{key}").errors == {}
    assert store.objects == {f"/bucket/{key}": data}
    assert store.refused == []


def test_a_store_that_insists_on_a_signed_payload_refuses_another(
    strict: Kit, store: StrictStore, tmp_path: Path
) -> None:
    store.signed_payload = True
    assert isinstance(strict.upload(SMALL, tmp_path / "file", "s3://bucket/key").only_error, BackendError)
    assert (store.objects, set(store.refused)) == ({}, {"InvalidRequest"})


@pytest.mark.parametrize(("data", "match"), [(SMALL, "PUT *"), (LARGE, "PUT *partNumber=2&*")], ids=["put", "parts"])
class TestDamage:
    def test_a_store_that_checks_sums_refuses_it_and_gets_the_bytes_once_more(
        self, strict: Kit, store: StrictStore, tmp_path: Path, data: bytes, match: str
    ) -> None:
        strict.server.add(Rule(match, requests.damaged(1234)))
        outcome = strict.upload(data, tmp_path / "file", "s3://bucket/key")
        assert outcome.errors == {}
        assert store.refused == ["BadDigest"]
        assert store.objects == {"/bucket/key": data}
        assert outcome.report is not None
        assert outcome.report.files[0].verified == "crc64nvme"

    def test_damage_that_stays_is_an_error_and_nothing_is_there(
        self, strict: Kit, store: StrictStore, tmp_path: Path, data: bytes, match: str
    ) -> None:
        strict.server.add(Rule(match, requests.damaged(1234), times=None))
        assert isinstance(strict.upload(data, tmp_path / "file", "s3://bucket/key").only_error, IntegrityError)
        assert store.refused == ["BadDigest"] * 2
        assert (store.objects, store.parts) == ({}, {})

    def test_a_store_that_tells_another_sum_keeps_nothing(
        self, strict: Kit, store: StrictStore, tmp_path: Path, data: bytes, match: str
    ) -> None:
        store.told = "AAAAAAAAAAA="
        assert isinstance(strict.upload(data, tmp_path / "file", "s3://bucket/key").only_error, IntegrityError)
        assert (store.objects, store.parts) == ({}, {})

    def test_a_signed_payload_protects_where_sums_are_ignored(
        self, strict: Kit, store: StrictStore, tmp_path: Path, data: bytes, match: str
    ) -> None:
        store.checks_sums = False
        strict.more["wire.sign-payload"] = True
        strict.server.add(Rule(match, requests.damaged(1234)))
        assert strict.upload(data, tmp_path / "file", "s3://bucket/key").errors == {}
        assert store.refused == ["XAmzContentSHA256Mismatch"]
        assert store.objects == {"/bucket/key": data}

    def test_a_store_that_ignores_both_is_not_said_to_have_checked(
        self, strict: Kit, store: StrictStore, tmp_path: Path, data: bytes, match: str
    ) -> None:
        """What is damaged on the way to such a store is found when the object is read: the sum is recorded."""
        store.checks_sums = False
        strict.server.add(Rule(match, requests.damaged(1234)))
        outcome = strict.upload(data, tmp_path / "file", "s3://bucket/key", crc64nvme=None)
        assert outcome.report is not None
        (file,) = outcome.report.files
        assert file.verified == "size"
        request = CopyRequest("s3://bucket/key", str(tmp_path / "back"), size=len(data), crc64nvme=file.crc64nvme)
        assert isinstance(strict.copy([request]).only_error, IntegrityError)
        assert not (tmp_path / "back").exists()


def test_a_file_that_changes_while_it_is_sent_is_not_sent_again(
    strict: Kit, store: StrictStore, tmp_path: Path
) -> None:
    path = tmp_path / "file"

    def change(exchange: Any) -> None:
        path.write_bytes(SMALL[::-1])
        requests.damaged(5)(exchange)

    strict.server.add(Rule("PUT *", change))
    assert "changed" in str(strict.upload(SMALL, path, "s3://bucket/key").only_error)
    assert len(strict.server.requests) == 1


def test_progress_of_damaged_bytes_is_taken_back(strict: Kit, store: StrictStore, tmp_path: Path) -> None:
    store.told = "AAAAAAAAAAA="
    moved = []
    (tmp_path / "file").write_bytes(SMALL)
    file_system = strict.file_system()
    with pytest.raises(Exception, match="computed CRC64NVME"):
        file_system.copy_files(
            [CopyRequest(str(tmp_path / "file"), "s3://bucket/key")],
            CloseableRegistry(),
            progress=lambda _, count: moved.append(count),
        )
    file_system.close()
    assert sum(moved) == 0
    assert max(moved) > 0


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["put", "parts"])
@pytest.mark.parametrize("key", AWKWARD_KEYS[:3])
def test_rclone_takes_signed_payloads(s3: S3Server, bucket: str, tmp_path: Path, data: bytes, key: str) -> None:
    with serving(s3, tmp_path / "state") as kit:
        kit.part_size = PART
        kit.more["wire.sign-payload"] = True
        assert kit.upload(data, tmp_path / "file", f"s3://{bucket}/{key}").errors == {}
        found = {each.header("x-amz-content-sha256") for each in kit.server.requests}
    assert "UNSIGNED-PAYLOAD" not in found
    assert (s3.root / bucket / key).read_bytes() == data


@pytest.mark.parametrize(
    ("source", "message"), [("/proc/self/status", "gives it no size"), ("/dev/zero", "cannot read")]
)
def test_a_source_without_a_size_is_no_empty_file(
    source: str, message: str, bucket: str, configuration: Configuration
) -> None:
    with pytest.raises(CopyFailed) as raised:
        WireFileSystem(configuration).copy_files([CopyRequest(source, f"s3://{bucket}/x")], CloseableRegistry())
    assert message in str(raised.value)
