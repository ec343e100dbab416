"""The two worked examples of file reuse, step by step: same parallelism, and from two subtasks to one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fsspec.implementations.local import LocalFileSystem

from statelift.backends.options import Configuration
from statelift.transfer.checkpoint.coordinator import CompletedCheckpoint, Coordinator
from statelift.transfer.checkpoint.store import CheckpointStore
from statelift.transfer.files import FileManager, Ownership
from statelift.transfer.handles import FileHandle, KeyedStateHandle, StateFile, key_groups_of
from statelift.transfer.strategy import (
    ClaimMode,
    Method,
    Restore,
    Sharing,
    Snapshot,
    plan_restore_transfer,
    plan_snapshot,
)

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
