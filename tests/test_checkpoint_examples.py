"""The two worked examples of file reuse, step by step: same parallelism, and from two subtasks to one.

First with the file manager, then with RocksDB, where a hard link is what reuse is on a disk.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from fsspec.implementations.local import LocalFileSystem

from statelift.backends.checksums import crc64nvme
from statelift.backends.closeables import CloseableRegistry
from statelift.backends.options import Configuration
from statelift.backends.report import CopiedFile
from statelift.transfer.checkpoint.coordinator import CompletedCheckpoint, Coordinator, PendingCheckpoint
from statelift.transfer.checkpoint.layout import CheckpointLocation
from statelift.transfer.checkpoint.store import CheckpointStore
from statelift.transfer.downloader import StateDownloader
from statelift.transfer.file_systems import FileSystems
from statelift.transfer.files import FileManager, Ownership
from statelift.transfer.handles import (
    FileHandle,
    KeyedStateHandle,
    RelativeFileHandle,
    SegmentHandle,
    StateFile,
    key_groups_of,
)
from statelift.transfer.keyed.database import KeyedState
from statelift.transfer.keyed.restore import RestoreReport, plan_restore, restore
from statelift.transfer.keyed.snapshot import SnapshotReport, take
from statelift.transfer.strategy import (
    ClaimMode,
    Method,
    Restore,
    Sharing,
    Snapshot,
    plan_restore_transfer,
    plan_snapshot,
)
from statelift.transfer.uploader import StateUploader

MOST = 8


class CountingFileSystem(LocalFileSystem):
    """A local file system that counts what a copy would need: files opened, copied or moved."""

    cachable = False
    protocol = "counting"

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self.opened = 0

    def _open(self, *words: object, **options: object) -> object:
        self.opened += 1
        return super()._open(*words, **options)

    def cp_file(self, *words: object, **options: object) -> None:
        raise AssertionError("a file was copied")

    def mv(self, *words: object, **options: object) -> None:
        raise AssertionError("a file was moved")


class Database:
    """A subtask's database: logical files of one file manager below the checkpoint's shared directory."""

    def __init__(self, base: Path, name: str, subtask: int, parallelism: int) -> None:
        self.base = base
        self.files = CountingFileSystem()
        self.manager = FileManager(
            self.files, str(base / "shared" / name), private_directory=str(base.parent / "local" / name)
        )
        self.key_groups = key_groups_of(subtask, parallelism, MOST)
        self.backend = name

    def create(self, name: str, data: bytes = b"rows") -> Path:
        """RocksDB writes a file of its own."""
        path = Path(self.manager.create(f"/db/{name}").path)
        path.write_bytes(data)
        return path

    def restore(self, done: CompletedCheckpoint, subtask: int, *, prefix: str = "") -> None:
        plan = plan_restore_transfer(
            Restore(
                working=self.manager.directory,
                sources=(done.location.shared,),
                own_shared=str(self.base / "shared"),
                claim=ClaimMode.CLAIM,
            )
        )
        for file in done.metadata.states[subtask].shared:
            assert plan.for_file(file.name, file.handle).method is Method.REUSE
            assert isinstance(file.handle, FileHandle)
            self.manager.restore(f"/db/{prefix}{file.name}", file.handle)

    def snapshot(self, checkpoint_id: int) -> tuple[KeyedStateHandle, frozenset[str]]:
        shared = str(self.base / "shared")
        plan = plan_snapshot(Snapshot(working=self.manager.directory, target=f"{self.base}/chk", shared=shared))
        files = []
        for path in self.manager.mapping.paths("/db"):
            file = self.manager.mapping.get(path)
            if file.ownership is Ownership.PRIVATE:
                continue
            assert plan.for_file(path, ownership=file.ownership).method is Method.REUSE
            handle = file.handle or FileHandle(file.path, os.path.getsize(file.path))
            self.manager.hand_over(path, handle)
            files.append(StateFile(os.path.basename(path), handle))
        in_place = frozenset(file.path for file in self.manager.mapping.files())
        return KeyedStateHandle(self.key_groups, MOST, self.backend, checkpoint_id, tuple(files)), in_place

    def owner(self, name: str) -> Ownership:
        return self.manager.mapping.get(f"/db/{name}").ownership


def coordinator(base: Path) -> Coordinator:
    made = Coordinator(str(base), CheckpointStore(Configuration(environ={})), background_deletes=False)
    made.start()
    return made


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path / "job"


def first_run(base: Path, parallelism: int, files: list[list[str]]) -> None:
    """A job that wrote CHK-1 and ended."""
    boss = coordinator(base)
    pending = boss.trigger(parallelism, MOST)
    for subtask in range(parallelism):
        database = Database(base, f"first-{subtask}", subtask, parallelism)
        for name in files[subtask]:
            database.create(name, f"{subtask} {name}".encode())
        boss.acknowledge(pending.checkpoint_id, subtask, database.snapshot(1)[0])
        database.manager.close()
    assert [each.checkpoint_id for each in boss.completed] == [1]
    boss.close()


def path_of(done: CompletedCheckpoint, name: str, subtask: int = 0) -> Path:
    [uri] = [
        done.location.resolve(file.handle).uri
        for file in done.metadata.states[subtask].shared
        if file.name == name and isinstance(file.handle, FileHandle)
    ]
    return Path(uri)


def test_same_parallelism(base: Path, tmp_path: Path) -> None:
    first_run(base, 1, [["1.sst", "2.sst"]])
    # Figures 1 and 2: restoration from CHK-1 in CLAIM mode links the database's files to the checkpoint's.
    boss = coordinator(base)
    done = boss.restore(f"{base}/chk-1", ClaimMode.CLAIM)
    one, two = path_of(done, "1.sst"), path_of(done, "2.sst")
    database = Database(base, "second-0", 0, 1)
    database.restore(done, 0)
    assert {database.owner(name) for name in ("1.sst", "2.sst")} == {Ownership.NOT_OWNED}
    assert database.files.opened == 0
    real = tmp_path / "rocksdb" / "1.sst"
    assert database.manager.materialize("/db/1.sst", str(real)) == "hard-link"
    assert os.path.samefile(real, one)
    # Figures 3 to 5: new files are the database's own, and only those are deleted when it drops them.
    three, four = database.create("3.sst"), database.create("4.sst")
    assert database.owner("3.sst") is Ownership.SHAREABLE
    database.manager.delete("/db/1.sst")
    database.manager.delete("/db/4.sst")
    assert one.exists()
    assert not four.exists()
    # Figures 6 to 8: CHK-2 reuses the files in their places.
    identity = [os.stat(path).st_ino for path in (two, three)]
    pending = boss.trigger(1, MOST)
    assert pending.sharing is Sharing.FORWARD_BACKWARD
    state, in_place = database.snapshot(pending.checkpoint_id)
    completed = boss.acknowledge(pending.checkpoint_id, 0, state, in_place=in_place)
    assert completed is not None
    assert [path_of(completed, name) for name in ("2.sst", "3.sst")] == [two, three]
    assert [os.stat(path).st_ino for path in (two, three)] == identity
    assert database.owner("3.sst") is Ownership.NOT_OWNED
    assert database.files.opened == 0
    # CHK-1 is subsumed, and the file that nobody needs is deleted by the coordinator.
    assert [each.checkpoint_id for each in boss.completed] == [2]
    assert not (base / "chk-1" / "_metadata").exists()
    assert not one.exists()
    assert two.exists()
    assert three.exists()
    # The worker exits: what the coordinator owns stays.
    database.manager.close()
    assert two.exists()
    assert three.exists()
    boss.close()


def test_from_two_subtasks_to_one(base: Path) -> None:
    first_run(base, 2, [["1.sst", "2.sst"], ["1.sst", "2.sst"]])
    # Figures 1 and 2: a temporary database per old subtask reuses its files.
    boss = coordinator(base)
    done = boss.restore(f"{base}/chk-1", ClaimMode.CLAIM)
    old = [path_of(done, name, subtask) for subtask in range(2) for name in ("1.sst", "2.sst")]
    temporary = [Database(base, f"temporary-{subtask}", subtask, 2) for subtask in range(2)]
    for subtask, each in enumerate(temporary):
        each.restore(done, subtask)
    # Figure 3: clipping creates files and drops others; none of the checkpoint's is deleted.
    clipped = temporary[1].create("3.sst", b"the valid half of 2.sst")
    temporary[1].manager.delete("/db/2.sst")
    assert all(path.exists() for path in old)
    # Figure 4: one database takes all files over, those of the temporary ones by hand-over of the name alone.
    database = Database(base, "merged", 0, 1)
    handles: list[tuple[str, FileHandle]] = []
    for subtask, each in enumerate(temporary):
        state, _ = each.snapshot(0)
        handles += [(f"{subtask}{file.name}", file.handle) for file in state.shared]  # type: ignore[misc]
    for name, handle in handles:
        database.manager.restore(f"/db/{name}", handle)
    for each in temporary:
        each.manager.close()
    assert clipped.exists()
    assert database.manager.mapping.get("/db/13.sst").path == str(clipped)
    assert sum(each.files.opened for each in (*temporary, database)) == 0
    # The first checkpoint of the merged database copies nothing; the file that was clipped away goes with CHK-1.
    pending = boss.trigger(1, MOST)
    state, in_place = database.snapshot(pending.checkpoint_id)
    assert boss.acknowledge(pending.checkpoint_id, 0, state, in_place=in_place) is not None
    assert [path.exists() for path in old] == [True, True, True, False]
    assert clipped.exists()
    assert database.files.opened == 0
    boss.close()


# ---------------------------------------------------------------- RocksDB


ROCKS = Configuration({"state.inline-threshold": "0", "state.rocksdb.compression": "none"}, environ={})


class Subtask:
    """One subtask of a job with RocksDB state, on one disk with its checkpoints."""

    def __init__(self, state: KeyedState, report: RestoreReport | None = None) -> None:
        self.state = state
        self.report = report

    @classmethod
    def restored(
        cls, done: CompletedCheckpoint, into: Path, subtask: int, parallelism: int, claim: ClaimMode = ClaimMode.CLAIM
    ) -> Subtask:
        plan = plan_restore(done.metadata.states, key_groups_of(subtask, parallelism, MOST))
        with FileSystems(ROCKS) as systems:
            directory, report = restore(plan, done.location, into, StateDownloader(systems), claim=claim)
        return cls(KeyedState.open(directory, configuration=ROCKS), report)

    def write(self, label: str) -> None:
        for key_group in self.state.key_groups:
            self.state.write([(key_group, b"%d" % index, f"{label}-{index}".encode() * 20) for index in range(200)])
        self.state.flush()

    def snapshot(self, pending: PendingCheckpoint) -> SnapshotReport:
        with FileSystems(ROCKS) as systems:
            full = pending.sharing is Sharing.FORWARD
            return take(self.state, pending.location, StateUploader(systems), CloseableRegistry(), full=full)

    def content(self) -> dict[tuple[int, bytes], bytes]:
        return {(key_group, key): value for key_group, key, value in self.state.items()}


def rocks_checkpoint(boss: Coordinator, subtasks: list[Subtask]) -> tuple[CompletedCheckpoint, list[SnapshotReport]]:
    pending = boss.trigger(len(subtasks), MOST)
    reports = [each.snapshot(pending) for each in subtasks]
    done = [boss.acknowledge(pending.checkpoint_id, index, each.handle) for index, each in enumerate(reports)][-1]
    assert done is not None
    for each in subtasks:
        each.state.completed(done.checkpoint_id)
    return done, reports


def tables(done: CompletedCheckpoint) -> set[str]:
    return {done.location.resolve(file.handle).uri for state in done.metadata.states for file in state.shared}  # type: ignore[arg-type]


def first_rocks(base: Path, root: Path, parallelism: int) -> dict[tuple[int, bytes], bytes]:
    boss = coordinator(base)
    subtasks = [
        Subtask(KeyedState.open(root / f"first-{index}", key_groups_of(index, parallelism, MOST), MOST))
        for index in range(parallelism)
    ]
    found = {}
    for each in subtasks:
        each.write("first")
        found.update(each.content())
    rocks_checkpoint(boss, subtasks)
    for each in subtasks:
        each.state.close()
    boss.close()
    return found


def moved_tables(files: tuple[CopiedFile, ...], *, snapshot: bool) -> int:
    """Bytes of SST files that were not linked."""
    side = "source" if snapshot else "destination"
    return sum(
        each.bytes for each in files if getattr(each.request, side).endswith(".sst") and each.method != "hard-link"
    )


@pytest.mark.parametrize("parallelism", [1, 2])
def test_the_examples_with_rocksdb(base: Path, tmp_path: Path, parallelism: int) -> None:
    expected = first_rocks(base, tmp_path, parallelism)
    boss = coordinator(base)
    latest = boss.latest
    assert latest is not None
    done = boss.restore(f"{base}/chk-1", ClaimMode.CLAIM)
    database = Subtask.restored(done, tmp_path / "second", 0, 1)
    report = database.report
    assert report is not None
    linked = {os.stat(path).st_ino for path in Path(database.state.directory).glob("*.sst")}
    assert linked <= {os.stat(each).st_ino for each in tables(done)}
    assert moved_tables(report.copy.files, snapshot=False) == 0
    assert [each.decision.method for each in report.transfers if each.decision.method is Method.REUSE]
    assert database.content() == expected
    # The database rewrites everything and drops the files that it restored: the checkpoint keeps its own.
    database.write("second")
    database.state.compact()
    assert all(os.path.exists(each) for each in tables(done))
    expected = database.content()
    completed, reports = rocks_checkpoint(boss, [database])
    assert moved_tables(reports[0].copy.files, snapshot=True) == 0
    assert not any(os.path.exists(each) for each in tables(done) - tables(completed))
    assert all(os.path.exists(each) for each in tables(completed))
    assert database.content() == expected
    database.state.close()
    again = Subtask.restored(completed, tmp_path / "third", 0, 1)
    assert again.content() == expected
    again.state.close()
    boss.close()


@pytest.mark.parametrize("mode", ClaimMode)
def test_files_of_another_base_are_referenced_only_when_they_may_be(
    base: Path, tmp_path: Path, mode: ClaimMode
) -> None:
    expected = first_rocks(base, tmp_path, 1)
    boss = coordinator(tmp_path / "new")
    done = boss.restore(f"{base}/chk-1", mode)
    database = Subtask.restored(done, tmp_path / "second", 0, 1, mode)
    completed, _ = rocks_checkpoint(boss, [database])
    old, new = tables(done), tables(completed)
    assert (new == old) == (mode is not ClaimMode.NO_CLAIM)
    assert completed.metadata.kind == ("full" if mode is ClaimMode.NO_CLAIM else "incremental")
    # A second checkpoint goes on referencing; once everything is rewritten, only a claimed file goes.
    database.write("second")
    second, reports = rocks_checkpoint(boss, [database])
    assert reports[0].files_reused == len(new)
    assert new < tables(second)
    expected = database.content()
    database.state.compact()
    last, _ = rocks_checkpoint(boss, [database])
    assert not tables(last) & old
    assert [os.path.exists(each) for each in old] == [mode is not ClaimMode.CLAIM] * len(old)
    assert (base / "chk-1" / "_metadata").exists() == (mode is not ClaimMode.CLAIM)
    database.state.close()
    again = Subtask.restored(last, tmp_path / "third", 0, 1)
    assert again.content() == expected
    again.state.close()
    boss.close()


def test_a_checkpoint_of_segments_restores_by_ranges(base: Path, tmp_path: Path) -> None:
    expected = first_rocks(base, tmp_path, 2)
    store = CheckpointStore(Configuration(environ={}))
    location, metadata = store.read(f"{base}/chk-1")
    merged, states = b"", []
    for state in metadata.states:
        files = []
        for file in state.shared:
            data = Path(location.resolve(file.handle).uri).read_bytes()  # type: ignore[arg-type]
            files.append((file, len(merged), data))
            merged += data
        states.append((state, files))
    whole = RelativeFileHandle("shared", "merged", len(merged), crc64nvme(merged))
    Path(location.resolve(whole).uri).write_bytes(merged)
    for each in tables(CompletedCheckpoint(location, metadata)):
        Path(each).unlink()
    cut = tuple(
        replace(
            state,
            shared=tuple(
                replace(file, handle=SegmentHandle(whole, offset, len(data), crc64nvme(data)))
                for file, offset, data in files
            ),
        )
        for state, files in states
    )
    done = CompletedCheckpoint(location, replace(metadata, states=cut))
    database = Subtask.restored(done, tmp_path / "second", 0, 1)
    assert database.content() == expected
    # The next checkpoint references the segments.
    pending = PendingCheckpoint(CheckpointLocation(str(base), 2), MOST, 1, Sharing.FORWARD_BACKWARD)
    report = database.snapshot(pending)
    assert report.files_reused == len(report.handle.shared)
    assert all(isinstance(file.handle, SegmentHandle) for file in report.handle.shared)
    database.state.close()
    boss = coordinator(base)
    second = boss.trigger(1, MOST)
    boss.acknowledge(second.checkpoint_id, 0, replace(report.handle, checkpoint_id=second.checkpoint_id))
    latest = boss.latest
    assert latest is not None
    again = Subtask.restored(latest, tmp_path / "third", 0, 1)
    assert again.content() == expected
    again.state.close()
    boss.close()
