"""Savepoints of real state: self-contained, relocatable, copied by the store itself, or readable by others."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from statelift.backends.closeables import CloseableRegistry
from statelift.backends.errors import (
    CheckpointError,
    CheckpointNotFound,
    CopyCancelled,
    CopyFailed,
    IntegrityError,
    UsageError,
)
from statelift.backends.options import Configuration
from statelift.backends.report import CopyReport
from statelift.backends.request import CopyRequest
from statelift.transfer.checkpoint.coordinator import Coordinator
from statelift.transfer.checkpoint.layout import CheckpointLocation
from statelift.transfer.checkpoint.metadata import CheckpointMetadata
from statelift.transfer.checkpoint.store import CheckpointStore
from statelift.transfer.downloader import StateDownloader
from statelift.transfer.file_systems import FileSystems
from statelift.transfer.handles import (
    InMemoryHandle,
    KeyedStateHandle,
    KeyGroupRange,
    RelativeFileHandle,
    SegmentHandle,
    StateFile,
    key_groups_of,
)
from statelift.transfer.keyed.database import KeyedState
from statelift.transfer.keyed.key_groups import key_group_of
from statelift.transfer.keyed.restore import plan_restore, restore
from statelift.transfer.savepoint.taking import SavepointReport, savepoint
from statelift.transfer.strategy import ClaimMode
from statelift.transfer.uploader import StateUploader

from .test_coordinator import Crash, MortalObjects, restorable

MOST = 16
LOCAL = Configuration({"state.inline-threshold": "2kb", "state.rocksdb.write-buffer-size": "64kb"}, environ={})
VALUES = {b"key-%05d" % number: os.urandom(64) for number in range(4000)}


def write_checkpoint(base: str, configuration: Configuration, scratch: Path, *, parallelism: int = 2) -> str:
    """A checkpoint 7 of every value."""
    location = CheckpointLocation(base, 7)
    states = []
    with FileSystems(configuration) as systems:
        for subtask in range(parallelism):
            own = key_groups_of(subtask, parallelism, MOST)
            with KeyedState.open(scratch / f"db-{subtask}", own, MOST, configuration=configuration) as state:
                rows = ((key_group_of(key, MOST), key, value) for key, value in VALUES.items())
                state.write(row for row in rows if row[0] in own)
                states.append(state.snapshot(location, StateUploader(systems)))
    with CheckpointStore(configuration) as store:
        store.write(location, CheckpointMetadata(7, MOST, parallelism, tuple(states), properties={"job": "test"}))
    return location.directory


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return write_checkpoint(str(tmp_path / "job"), LOCAL, tmp_path / "scratch")


@pytest.fixture
def remote(configuration: Configuration, bucket: str, tmp_path: Path) -> tuple[Configuration, str]:
    """A checkpoint in a bucket of the real server."""
    own = configuration.with_arguments({"state.inline-threshold": "2kb"})
    return own, write_checkpoint(f"s3://{bucket}/job", own, tmp_path / "scratch")


def rows_of(snapshot: str, configuration: Configuration, into: Path, *, parallelism: int) -> dict[bytes, bytes]:
    """All rows that the subtasks of a restore have, each key once and each in its own key groups."""
    found: dict[bytes, bytes] = {}
    with CheckpointStore(configuration) as store, FileSystems(configuration) as systems:
        location, metadata = store.read(snapshot)
        for subtask in range(parallelism):
            own = key_groups_of(subtask, parallelism, MOST)
            plan = plan_restore(metadata.states, own)
            directory, _ = restore(plan, location, into / str(subtask), StateDownloader(systems))
            with KeyedState.open(directory, configuration=configuration) as state:
                assert state.key_groups == own
                for key_group, key, value in state.items():
                    assert key_group in own
                    assert key_group == key_group_of(key, MOST)
                    assert key not in found
                    found[key] = value
    return found


def handles_of(report: SavepointReport) -> list[object]:
    return [file.handle for state in report.metadata.states for file in (*state.shared, *state.private)]


def files_below(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", ["native", "canonical"])
@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_a_moved_savepoint_restores_at_any_parallelism(
    checkpoint: str, tmp_path: Path, kind: str, parallelism: int
) -> None:
    taken = savepoint(checkpoint, str(tmp_path / "savepoints" / "one"), LOCAL, type=kind)
    assert taken.metadata.kind == "savepoint"
    assert taken.metadata.properties == {"job": "test", "savepoint.type": kind}
    for handle in handles_of(taken):
        assert isinstance(handle, InMemoryHandle) or (
            isinstance(handle, RelativeFileHandle) and handle.scope == "exclusive"
        )
    shutil.rmtree(tmp_path / "job")
    moved = tmp_path / "elsewhere" / "other name"
    shutil.move(tmp_path / "savepoints" / "one", moved)
    assert rows_of(str(moved), LOCAL, tmp_path / "into", parallelism=parallelism) == VALUES


@pytest.mark.parametrize("kind", ["native", "canonical"])
def test_a_savepoint_shares_no_file_with_its_checkpoint(checkpoint: str, tmp_path: Path, kind: str) -> None:
    before = files_below(tmp_path / "job")
    savepoint(checkpoint, str(tmp_path / "sp"), LOCAL, type=kind)
    assert files_below(tmp_path / "job") == before
    inodes = [os.stat(path).st_ino for path in tmp_path.glob("job/**/*") if path.is_file()]
    assert not {os.stat(tmp_path / "sp" / name).st_ino for name in files_below(tmp_path / "sp")} & set(inodes)


@pytest.mark.parametrize("backend", ["auto", "wire", "sdk"])
@pytest.mark.parametrize("other_bucket", [False, True])
def test_on_one_endpoint_no_data_passes_the_client(
    remote: tuple[Configuration, str], bucket: str, backend: str, other_bucket: bool
) -> None:
    configuration, checkpoint = remote
    target = f"s3://state/{bucket}/{backend}" if other_bucket else f"s3://{bucket}/savepoints/one"
    taken = savepoint(checkpoint, target, configuration.with_arguments({"transfer.backend": backend}))
    assert set(taken.copy.methods) == {"server-side"}
    assert taken.copy.bytes_moved == 0
    assert taken.copy.bytes > 100_000


def test_a_savepoint_copied_to_another_bucket_restores(
    remote: tuple[Configuration, str], bucket: str, s3_root: Path, tmp_path: Path
) -> None:
    configuration, checkpoint = remote
    savepoint(checkpoint, f"s3://{bucket}/savepoints/one/", configuration)
    shutil.copytree(s3_root / bucket / "savepoints" / "one", s3_root / "state" / bucket / "copy")
    shutil.rmtree(s3_root / bucket / "job")
    shutil.rmtree(s3_root / bucket / "savepoints")
    found = rows_of(f"s3://state/{bucket}/copy/_metadata", configuration, tmp_path / "into", parallelism=3)
    assert found == VALUES


@pytest.mark.parametrize("kind", ["native", "canonical"])
def test_from_one_store_to_another_and_back(
    remote: tuple[Configuration, str], bucket: str, tmp_path: Path, kind: str
) -> None:
    configuration, checkpoint = remote
    savepoint(checkpoint, str(tmp_path / "sp"), configuration, type=kind)
    savepoint(str(tmp_path / "sp"), f"s3://{bucket}/again", configuration)
    assert rows_of(f"s3://{bucket}/again", configuration, tmp_path / "into", parallelism=1) == VALUES


def test_ranges_are_copied_by_a_store_that_can(
    moto_configuration: Configuration, moto_bucket: str, tmp_path: Path
) -> None:
    taken = segments(f"s3://{moto_bucket}/job", f"s3://{moto_bucket}/sp", moto_configuration, used=0.25)
    assert set(taken.copy.methods) == {"server-side"}
    assert taken.copy.bytes == 25_000


def segments(base: str, target: str, configuration: Configuration, *, used: float) -> SavepointReport:
    """A savepoint of a checkpoint whose two files are ranges of one of 100,000 bytes."""
    location = CheckpointLocation(base, 1)
    data = os.urandom(100_000)
    file = RelativeFileHandle("shared", "merged", len(data))
    half = int(used * len(data)) // 2
    ranges = [SegmentHandle(file, 1000, half), SegmentHandle(file, 1000 + half, half)]
    state = KeyedStateHandle(
        KeyGroupRange(0, 0), 1, "b", 1, tuple(StateFile(f"{i}.sst", each) for i, each in enumerate(ranges))
    )
    with CheckpointStore(configuration) as store:
        store.objects.write(f"{base}/shared/merged", data)
        store.write(location, CheckpointMetadata(1, 1, 1, (state,)))
        taken = savepoint(location.directory, target, configuration)
        for handle, original in zip(handles_of(taken), ranges, strict=True):
            source = taken.location.resolve(handle)  # type: ignore[arg-type]
            whole = store.objects.read(source.uri)
            assert len(whole) == source.size
            found = whole[source.offset :][: source.length]
            assert found == data[original.offset : original.offset + original.size]
    return taken


def test_segments_become_files_where_most_of_their_file_is_not_needed(tmp_path: Path) -> None:
    taken = segments(str(tmp_path / "job"), str(tmp_path / "sp"), LOCAL, used=0.25)
    assert all(isinstance(handle, RelativeFileHandle) for handle in handles_of(taken))
    assert taken.copy.bytes == 25_000


def test_segments_stay_ranges_of_one_file_where_most_of_it_is_needed(tmp_path: Path) -> None:
    taken = segments(str(tmp_path / "job"), str(tmp_path / "sp"), LOCAL, used=0.75)
    assert all(isinstance(handle, SegmentHandle) for handle in handles_of(taken))
    assert len(taken.copy.files) == 1


def test_a_target_with_a_snapshot_is_refused_and_kept(checkpoint: str, tmp_path: Path) -> None:
    savepoint(checkpoint, str(tmp_path / "sp"), LOCAL)
    before = files_below(tmp_path / "sp")
    with pytest.raises(CheckpointError, match="there is a snapshot already"):
        savepoint(checkpoint, str(tmp_path / "sp"), LOCAL, type="canonical")
    assert files_below(tmp_path / "sp") == before


@pytest.mark.parametrize("target", ["job/chk-7/sp", "job/shared", "job/shared/sp", "job/taskowned/x", "any/chk-3"])
def test_a_target_that_a_coordinator_would_take_for_its_own_is_refused(
    checkpoint: str, tmp_path: Path, target: str
) -> None:
    before = files_below(tmp_path)
    with pytest.raises(CheckpointError):
        savepoint(checkpoint, str(tmp_path / target), LOCAL)
    assert files_below(tmp_path) == before


def test_wrong_types_and_missing_checkpoints_are_refused(checkpoint: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="binary"):
        savepoint(checkpoint, str(tmp_path / "sp"), LOCAL, type="binary")
    with pytest.raises(CheckpointNotFound):
        savepoint(str(tmp_path / "job" / "chk-8"), str(tmp_path / "sp"), LOCAL)
    with pytest.raises(CheckpointNotFound):
        savepoint(str(tmp_path / "nowhere"), str(tmp_path / "sp"), LOCAL)
    assert not (tmp_path / "sp").exists()


def test_a_checkpoint_moved_to_another_name_says_that_it_cannot_be(checkpoint: str, tmp_path: Path) -> None:
    shutil.copytree(checkpoint, tmp_path / "moved")
    with CheckpointStore(LOCAL) as store, pytest.raises(CheckpointError, match="belongs under chk-7"):
        store.read(str(tmp_path / "moved"))


@pytest.mark.parametrize("kind", ["native", "canonical"])
def test_a_damaged_checkpoint_leaves_no_trace_of_a_savepoint(checkpoint: str, tmp_path: Path, kind: str) -> None:
    victim = max((tmp_path / "job" / "shared").iterdir(), key=lambda path: path.stat().st_size)
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    # A hard link is not read when it is made: then RocksDB's own checksums find it.
    with pytest.raises((CopyFailed, IntegrityError), match=r"CRC64NVME|chk-7, the subtask.* checksum"):
        savepoint(checkpoint, str(tmp_path / "new" / "sp"), LOCAL, type=kind)
    assert not (tmp_path / "new").exists()


def test_closing_ends_a_savepoint_without_a_trace(
    remote: tuple[Configuration, str], s3_root: Path, bucket: str
) -> None:
    configuration, checkpoint = remote
    closeables = CloseableRegistry()

    def close(_request: CopyRequest, _count: int) -> None:
        closeables.close("enough")

    with pytest.raises(CopyCancelled):
        savepoint(
            checkpoint,
            f"s3://{bucket}/sp",
            configuration,
            type="canonical",
            closeables=closeables,
            progress=close,
        )
    assert not (s3_root / bucket / "sp").exists() or files_below(s3_root / bucket / "sp") == set()


class MortalSystems(FileSystems):
    """Copies files one by one and counts each as an operation, at which the process may die."""

    objects: MortalObjects

    def copy(self, requests: Sequence[CopyRequest], *args: object, **kwargs: object) -> CopyReport:
        reports = []
        for request in requests:
            last = self.objects._step()
            reports.append(super().copy([request], *args, **kwargs))  # type: ignore[arg-type]
            if last:
                raise Crash
        return CopyReport.joined(reports, seconds=0.0)


def deaths(checkpoint: str, target: str, kind: str) -> Iterator[bool]:
    """A savepoint that dies at each operation in turn; whether it was complete by then."""
    dies_at, after = 1, False
    while True:
        objects = MortalObjects(LOCAL, dies_at=dies_at, after=after)
        systems = MortalSystems(LOCAL)
        systems.objects = objects
        try:
            savepoint(
                checkpoint, target, type=kind, store=CheckpointStore(LOCAL, objects=objects), file_systems=systems
            )
        except Crash:
            yield after and objects.operations >= dies_at
        else:
            return
        dies_at, after = dies_at + after, not after


@pytest.mark.parametrize("kind", ["native", "canonical"])
def test_a_crash_at_any_operation_shows_no_partial_savepoint_and_hurts_no_checkpoint(
    checkpoint: str, tmp_path: Path, kind: str
) -> None:
    target, count = tmp_path / "sp", 0
    for _ in deaths(checkpoint, str(target), kind):
        count += 1
        assert restorable(tmp_path / "job") == [7]
        if (target / "_metadata").exists():
            assert rows_of(str(target), LOCAL, tmp_path / f"into-{count}", parallelism=1) == VALUES
        shutil.rmtree(target, ignore_errors=True)
    assert count >= 8
    assert rows_of(str(target), LOCAL, tmp_path / "into", parallelism=2) == VALUES


class Forgetful(MortalObjects):
    """Stores the metadata and loses the answer."""

    def write(self, uri: str, data: bytes, *, only_if_absent: bool = False) -> None:
        super().write(uri, data, only_if_absent=only_if_absent)
        super().write(uri, data, only_if_absent=only_if_absent)


def test_a_lost_answer_to_the_last_write_is_no_failure(checkpoint: str, tmp_path: Path) -> None:
    store = CheckpointStore(LOCAL, objects=Forgetful(LOCAL))
    with FileSystems(LOCAL) as systems:
        savepoint(checkpoint, str(tmp_path / "sp"), store=store, file_systems=systems)
    assert rows_of(str(tmp_path / "sp"), LOCAL, tmp_path / "into", parallelism=1) == VALUES


class Rival(MortalObjects):
    """Somebody else's savepoint of the same target is complete just before ours would be."""

    rival = ""

    def write(self, uri: str, data: bytes, *, only_if_absent: bool = False) -> None:
        savepoint(self.rival, uri.removesuffix("/_metadata"), LOCAL, type="canonical")
        super().write(uri, data, only_if_absent=only_if_absent)


@pytest.mark.parametrize("kind", ["native", "canonical"])
def test_of_two_savepoints_to_one_target_the_first_is_kept_whole(checkpoint: str, tmp_path: Path, kind: str) -> None:
    objects = Rival(LOCAL)
    objects.rival = checkpoint
    with FileSystems(LOCAL) as systems, pytest.raises(CheckpointError, match="there is a snapshot already"):
        store = CheckpointStore(LOCAL, objects=objects)
        savepoint(checkpoint, str(tmp_path / "sp"), type=kind, store=store, file_systems=systems)
    _, metadata = CheckpointStore(LOCAL).read(str(tmp_path / "sp"))
    named = {file.handle.path for state in metadata.states for file in (*state.shared, *state.private)}  # type: ignore[union-attr]
    assert files_below(tmp_path / "sp") == {*named, "_metadata"}
    assert rows_of(str(tmp_path / "sp"), LOCAL, tmp_path / "into", parallelism=1) == VALUES


def test_what_concerns_a_job_alone_is_left_behind(tmp_path: Path) -> None:
    location = CheckpointLocation(str(tmp_path / "job"), 3)
    data = InMemoryHandle(b"small")
    states = (KeyedStateHandle(KeyGroupRange(0, 0), 1, "b", 3, (StateFile("1.sst", data),)),)
    with CheckpointStore(LOCAL) as store:
        store.write(location, CheckpointMetadata(3, 1, 1, states, properties={"claimed": '["/old"]', "own": "yes"}))
    taken = savepoint(location.directory, str(tmp_path / "sp"), LOCAL)
    assert taken.metadata.properties == {"own": "yes", "savepoint.type": "native"}
    assert handles_of(taken) == [data]
    assert files_below(tmp_path / "sp") == {"_metadata"}


@pytest.mark.parametrize("mode", list(ClaimMode))
def test_a_coordinator_starts_from_a_savepoint(checkpoint: str, tmp_path: Path, mode: ClaimMode) -> None:
    savepoint(checkpoint, str(tmp_path / "sp"), LOCAL)
    before = files_below(tmp_path / "sp")
    store = CheckpointStore(LOCAL)
    job = Coordinator(str(tmp_path / "new job"), store, background_deletes=False)
    job.start()
    restored = job.restore(str(tmp_path / "sp"), mode)
    assert restored.location.is_savepoint
    with FileSystems(LOCAL) as systems:
        pending = job.trigger(1, MOST)
        assert pending.checkpoint_id == 8
        plan = plan_restore(restored.metadata.states, KeyGroupRange(0, MOST - 1))
        into, _ = restore(plan, restored.location, tmp_path / "db", StateDownloader(systems))
        with KeyedState.open(into) as state:
            handle = state.snapshot(pending.location, StateUploader(systems))
        done = job.acknowledge(pending.checkpoint_id, 0, handle)
    job.close()
    assert done is not None
    assert rows_of(done.location.directory, LOCAL, tmp_path / "again", parallelism=1) == VALUES
    assert files_below(tmp_path / "sp") == (set() if mode is ClaimMode.CLAIM else before)


@pytest.mark.parametrize("kind", ["native", "canonical"])
def test_a_task_opens_a_savepoint_wherever_a_checkpoint_is_accepted(checkpoint: str, tmp_path: Path, kind: str) -> None:
    from statelift.transfer.spark.state import open_state

    taken = savepoint(checkpoint, str(tmp_path / "sp"), LOCAL, type=kind)
    found: dict[bytes, bytes] = {}
    for subtask in range(3):
        with open_state(taken.location.directory, subtask, 3, LOCAL, root=tmp_path / "disk") as state:
            found |= {key: value for _, key, value in state.items()}
    assert found == VALUES
    with open_state(taken.location.metadata, 0, 3, LOCAL, root=tmp_path / "disk") as state:
        assert state.restored.method == "reuse"


def test_a_checkpoint_is_kept_while_it_is_held(tmp_path: Path) -> None:
    job = Coordinator(str(tmp_path), CheckpointStore(LOCAL), background_deletes=False)
    job.start()

    def take() -> int:
        pending = job.trigger(1, 1)
        state = KeyedStateHandle(KeyGroupRange(0, 0), 1, "b", pending.checkpoint_id)
        done = job.acknowledge(pending.checkpoint_id, 0, state)
        assert done
        return done.checkpoint_id

    first = take()
    with job.holding(first):
        second = take()
        assert restorable(tmp_path) == [first, second]
    assert restorable(tmp_path) == [second]
    with pytest.raises(CheckpointError, match="not retained"), job.holding(first):
        pass


def test_a_savepoint_under_a_checkpoints_name_is_left_alone(checkpoint: str, tmp_path: Path) -> None:
    savepoint(checkpoint, str(tmp_path / "sp"), LOCAL)
    shutil.move(tmp_path / "sp", tmp_path / "job" / "chk-3")
    job = Coordinator(str(tmp_path / "job"), CheckpointStore(LOCAL), background_deletes=False)
    latest = job.start()
    assert latest is not None
    assert latest.checkpoint_id == 7
    assert rows_of(str(tmp_path / "job" / "chk-3"), LOCAL, tmp_path / "into", parallelism=1) == VALUES
