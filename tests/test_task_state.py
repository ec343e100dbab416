"""A task's state without Spark: the same calls as in a task, against a real store."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from statelift.backends.errors import CheckpointNotFound, CopyFailed, UsageError
from statelift.backends.options import Configuration
from statelift.transfer.checkpoint.layout import CheckpointLocation
from statelift.transfer.demo.s3_server import S3Server
from statelift.transfer.spark import complete_checkpoint, encode_snapshot, open_state
from statelift.transfer.spark.local_store import MARK
from statelift.transfer.strategy import ClaimMode

MAX_PARALLELISM = 16
ROWS = {b"key-%05d" % number: os.urandom(200) for number in range(3000)}


@pytest.fixture
def settings(configuration: Configuration) -> Configuration:
    return configuration.with_arguments({"state.inline-threshold": "4k", "state.rocksdb.compression": "none"})


def advance(
    settings: Configuration,
    base: str,
    number: int,
    rows: dict[bytes, bytes],
    root: Path,
    *,
    previous: int | None = None,
) -> str:
    """Write rows on top of a checkpoint and complete the next one. Returns its URI."""
    location = CheckpointLocation(base, number)
    before = None if previous is None else f"{base}/chk-{previous}"
    with open_state(before, 0, 1, settings, max_parallelism=MAX_PARALLELISM, root=root) as state:
        for key, value in rows.items():
            state.put(key, value)
        handle = state.snapshot_to(location).handle
    complete_checkpoint(
        location,
        [encode_snapshot(handle, 1)],
        configuration=settings,
        parallelism=1,
        max_parallelism=MAX_PARALLELISM,
    )
    return location.directory


def contents(settings: Configuration, uri: str, root: Path) -> dict[bytes, bytes]:
    with open_state(uri, 0, 1, settings, root=root) as state:
        return {key: value for _, key, value in state.items()}


def test_a_later_checkpoint_brings_only_what_is_new(settings: Configuration, bucket: str, tmp_path: Path) -> None:
    base, new = f"s3://{bucket}/job", {b"key-00001": b"x" * 5000, b"key-99999": b"y" * 5000}
    one = advance(settings, base, 1, ROWS, tmp_path / "writer")
    two = advance(settings, base, 2, new, tmp_path / "writer", previous=1)
    reader = tmp_path / "reader"
    with open_state(one, 0, 1, settings, root=reader) as state:
        assert state.restored.bytes_reused == 0
        assert state.restored.method != "reuse"
        assert "paths copy: the database's files are local to the worker" in state.restored.reason
    with open_state(two, 0, 1, settings, root=reader) as state:
        moved = state.restored.bytes - state.restored.bytes_reused
        assert moved < 40_000 < state.restored.bytes_reused
        assert {key: value for _, key, value in state.items()} == ROWS | new


def test_the_writers_disk_has_what_it_wrote(settings: Configuration, bucket: str, tmp_path: Path) -> None:
    uri = advance(settings, f"s3://{bucket}/job", 1, ROWS, tmp_path)
    with open_state(uri, 0, 1, settings, root=tmp_path) as state:
        assert state.restored.method == "reuse"
        assert state.restored.bytes - state.restored.bytes_reused < 20_000
        assert state.count() == len(ROWS)


@pytest.mark.parametrize("mode", ["NO_CLAIM", "LEGACY", "CLAIM"])
def test_a_snapshot_below_another_base_references_what_the_claim_mode_allows(
    settings: Configuration, bucket: str, tmp_path: Path, mode: str
) -> None:
    other = f"s3://{bucket}/other"
    uri = advance(settings, other, 3, ROWS, tmp_path / "writer")
    with open_state(uri, 0, 1, settings, root=tmp_path / "reader", claim=mode) as state:
        report = state.snapshot_to(f"s3://{bucket}/job/chk-4")
    named = {CheckpointLocation(f"s3://{bucket}/job", 4).resolve(file.handle).uri for file in report.handle.shared}
    assert all(each.startswith(other) for each in named) == (mode != "NO_CLAIM")
    assert all(each.startswith(f"s3://{bucket}/job/shared/") for each in named) == (mode == "NO_CLAIM")
    assert bool(report.files_reused) == (mode != "NO_CLAIM")


def test_a_version_of_another_claim_mode_is_another_one_of_the_same_files(
    settings: Configuration, bucket: str, tmp_path: Path
) -> None:
    uri = advance(settings, f"s3://{bucket}/other", 1, ROWS, tmp_path / "writer")
    target, found = f"s3://{bucket}/job/chk-2", []
    for mode in (ClaimMode.NO_CLAIM, ClaimMode.CLAIM, ClaimMode.NO_CLAIM):
        with open_state(uri, 0, 1, settings, root=tmp_path / "reader", claim=mode) as state:
            found.append((state.restored.bytes - state.restored.bytes_reused > 20_000, state.snapshot_to(target)))
    assert [downloaded for downloaded, _ in found] == [True, False, False]
    assert [bool(report.files_reused) for _, report in found] == [False, True, False]


def test_a_claim_mode_that_there_is_not(settings: Configuration, tmp_path: Path) -> None:
    state = open_state("s3://bucket/job/chk-1", 0, 1, settings, root=tmp_path, claim="mine")
    with pytest.raises(UsageError, match="no claim mode 'mine'"), state:
        pass


def test_a_reused_file_is_never_one_that_was_written_to(settings: Configuration, bucket: str, tmp_path: Path) -> None:
    base = f"s3://{bucket}/job"
    one = advance(settings, base, 1, ROWS, tmp_path / "writer")
    two = advance(settings, base, 2, {b"more": b"x"}, tmp_path / "writer", previous=1)
    reader = tmp_path / "reader"
    assert contents(settings, one, reader) == ROWS
    for pooled in (reader / "files").iterdir():
        damaged = bytearray(pooled.read_bytes())
        damaged[len(damaged) // 2] ^= 1
        pooled.write_bytes(damaged)
    assert contents(settings, two, reader) == ROWS | {b"more": b"x"}


def test_what_a_task_writes_stays_its_own(settings: Configuration, bucket: str, tmp_path: Path) -> None:
    uri = advance(settings, f"s3://{bucket}/job", 1, ROWS, tmp_path)
    with open_state(uri, 0, 1, settings, root=tmp_path) as state:
        state.put(b"key-00000", b"changed")
        state.delete(b"key-00001")
        state.compact()
    assert contents(settings, uri, tmp_path) == ROWS


def test_two_halves_are_the_whole(settings: Configuration, bucket: str, tmp_path: Path) -> None:
    uri = advance(settings, f"s3://{bucket}/job", 1, ROWS, tmp_path / "writer")
    halves = []
    for subtask in (0, 1):
        with open_state(uri, subtask, 2, settings, root=tmp_path / "reader") as state:
            halves.append({key: value for _, key, value in state.items()})
    assert halves[0] | halves[1] == ROWS
    assert not halves[0].keys() & halves[1].keys()
    assert halves[0]
    assert halves[1]


def test_a_failed_restore_leaves_nothing_on_the_disk(
    settings: Configuration, bucket: str, s3: S3Server, tmp_path: Path
) -> None:
    uri = advance(settings, f"s3://{bucket}/job", 1, ROWS, tmp_path / "writer")
    next((s3.root / bucket / "job" / "shared").iterdir()).unlink()
    with pytest.raises(CopyFailed), open_state(uri, 0, 1, settings, root=tmp_path / "reader"):
        pass
    assert not [path for path in (tmp_path / "reader").rglob("*") if path.suffix == ".sst" or path.name == MARK]
    assert list((tmp_path / "reader" / "work").iterdir()) == []


def test_a_checkpoint_that_is_not_there(settings: Configuration, bucket: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFound), open_state(f"s3://{bucket}/job/chk-1", 0, 1, settings, root=tmp_path):
        pass


def test_a_subtask_out_of_range(settings: Configuration, bucket: str, tmp_path: Path) -> None:
    uri = advance(settings, f"s3://{bucket}/job", 1, {b"a": b"b"}, tmp_path)
    with pytest.raises(UsageError, match="subtask 2 is not between 0 and 1"), open_state(uri, 2, 2, settings):
        pass
    with pytest.raises(UsageError, match="parallelism 17"), open_state(uri, 0, 17, settings):
        pass


def test_empty_state_needs_its_maximum(settings: Configuration, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs max_parallelism"), open_state(None, 0, 1, settings, root=tmp_path):
        pass


def test_outside_of_a_task_the_subtask_must_be_given(settings: Configuration, tmp_path: Path) -> None:
    state = open_state(None, None, 1, settings, max_parallelism=4, root=tmp_path)
    with pytest.raises(UsageError, match="the subtask must be given"), state:
        pass
