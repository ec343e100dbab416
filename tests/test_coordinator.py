"""The coordinator: completes, aborts, subsumes, restores and fences, whatever crashes in between."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from statelift.backends.errors import BackendError, CheckpointError, UsageError
from statelift.backends.options import Configuration
from statelift.transfer.checkpoint.coordinator import Coordinator, PendingCheckpoint
from statelift.transfer.checkpoint.deletion import Deleter
from statelift.transfer.checkpoint.layout import CheckpointLocation
from statelift.transfer.checkpoint.metadata import CheckpointMetadata
from statelift.transfer.checkpoint.registry import SharedFileRegistry
from statelift.transfer.checkpoint.store import CheckpointStore
from statelift.transfer.handles import (
    FileHandle,
    InMemoryHandle,
    KeyedStateHandle,
    KeyGroupRange,
    RelativeFileHandle,
    StateFile,
)
from statelift.transfer.objects import Objects, StoredObject
from statelift.transfer.strategy import ClaimMode, Sharing


class Crash(BaseException):
    """The process died."""


class MortalObjects(Objects):
    """Real objects whose process dies at the n-th operation, before or after it took effect."""

    def __init__(self, configuration: Configuration, *, dies_at: int = 0, after: bool = False) -> None:
        super().__init__(configuration)
        self.operations = 0
        self.dies_at = dies_at
        self.after = after

    def _step(self) -> bool:
        self.operations += 1
        if self.dies_at and self.operations > self.dies_at:
            raise Crash  # dead men do nothing more
        if self.operations == self.dies_at and not self.after:
            raise Crash
        return self.operations == self.dies_at

    def write(self, uri: str, data: bytes, *, only_if_absent: bool = False) -> None:
        last = self._step()
        super().write(uri, data, only_if_absent=only_if_absent)
        if last:
            raise Crash

    def delete(self, uris: Iterable[str]) -> None:
        for uri in uris:  # one by one: a batch may be cut anywhere
            last = self._step()
            super().delete([uri])
            if last:
                raise Crash

    def list(self, prefix: str) -> Iterator[StoredObject]:
        last = self._step()
        yield from super().list(prefix)
        if last:
            raise Crash


def coordinator(base: Path, objects: Objects | None = None, *, retained: int = 1) -> Coordinator:
    store = CheckpointStore(Configuration(environ={}), objects=objects or Objects(Configuration(environ={})))
    return Coordinator(str(base), store, retained=retained, background_deletes=False)


class Worker:
    """A subtask: a set of SST files that it uploads once and names in each checkpoint."""

    def __init__(self, base: Path, objects: Objects, backend: str = "db") -> None:
        self.base = base
        self.objects = objects
        self.backend = backend
        self.files: dict[str, RelativeFileHandle | FileHandle] = {}

    def snapshot(
        self, pending: PendingCheckpoint, names: Sequence[str], subtask: int = 0, *, fresh: bool = False
    ) -> KeyedStateHandle:
        for name in names:
            if name not in self.files or fresh or pending.sharing is Sharing.FORWARD:
                handle = RelativeFileHandle("shared", uuid.uuid4().hex, len(name), hash(name) & (1 << 64) - 1)
                self.objects.write(pending.location.resolve(handle).uri, name.encode())
                self.files[name] = handle
        private = RelativeFileHandle("exclusive", f"manifest-{subtask}", 1)
        self.objects.write(pending.location.resolve(private).uri, b"m")
        return KeyedStateHandle(
            KeyGroupRange(0, 127),
            128,
            self.backend,
            pending.checkpoint_id,
            (*(StateFile(name, self.files[name]) for name in names), StateFile("tiny.sst", InMemoryHandle(b"t"))),
            (StateFile("MANIFEST", private),),
        )


def restorable(base: Path) -> list[int]:
    """Ids of the checkpoints that exist, each proven to have every one of its files, whole."""
    store = CheckpointStore(Configuration(environ={}))
    found = []
    for location in store.list(str(base)):
        _, metadata = store.read(location.directory)
        for state in metadata.states:
            for file in (*state.shared, *state.private):
                if not isinstance(file.handle, InMemoryHandle):
                    source = location.resolve(file.handle)
                    assert os.path.getsize(source.uri) == source.size, f"{location} lacks {file.name}"
        found.append(location.checkpoint_id)
    return found


def names_in(base: Path, directory: str) -> set[str]:
    path = base / directory
    return set(os.listdir(path)) if path.is_dir() else set()


def test_a_checkpoint_exists_once_every_subtask_has_acknowledged(tmp_path: Path) -> None:
    one = coordinator(tmp_path)
    assert one.start() is None
    worker = Worker(tmp_path, one._objects)
    pending = one.trigger(2, 128)
    assert one.acknowledge(pending.checkpoint_id, 0, worker.snapshot(pending, ["1.sst"], 0)) is None
    assert restorable(tmp_path) == []
    assert pending.missing == [1]
    done = one.acknowledge(pending.checkpoint_id, 1, worker.snapshot(pending, ["2.sst"], 1))
    assert done is not None
    assert done.metadata.parallelism == 2
    assert restorable(tmp_path) == [1]


def test_subsuming_deletes_what_only_the_old_checkpoint_used(tmp_path: Path) -> None:
    one = coordinator(tmp_path)
    one.start()
    worker = Worker(tmp_path, one._objects)
    for names in (["1.sst", "2.sst"], ["2.sst", "3.sst"]):
        pending = one.trigger(1, 128)
        one.acknowledge(pending.checkpoint_id, 0, worker.snapshot(pending, names))
    assert restorable(tmp_path) == [2]
    kept = {worker.files["2.sst"].path, worker.files["3.sst"].path}
    assert names_in(tmp_path, "shared") == kept
    assert names_in(tmp_path, "chk-1") == set()


def test_retained_checkpoints_stay_whole(tmp_path: Path) -> None:
    one = coordinator(tmp_path, retained=3)
    one.start()
    worker = Worker(tmp_path, one._objects)
    for number in range(5):
        pending = one.trigger(1, 128)
        one.acknowledge(pending.checkpoint_id, 0, worker.snapshot(pending, [f"{number}.sst", "base.sst"]))
    assert restorable(tmp_path) == [3, 4, 5]
    assert len(names_in(tmp_path, "shared")) == 4


def test_aborting_deletes_its_uploads_and_no_others(tmp_path: Path) -> None:
    one = coordinator(tmp_path)
    one.start()
    worker = Worker(tmp_path, one._objects)
    first = one.trigger(1, 128)
    one.acknowledge(1, 0, worker.snapshot(first, ["1.sst"]))
    second = one.trigger(2, 128)
    one.acknowledge(2, 0, worker.snapshot(second, ["1.sst", "2.sst"]))
    one.abort(2)
    one.abort(2)
    assert restorable(tmp_path) == [1]
    assert names_in(tmp_path, "shared") == {worker.files["1.sst"].path}
    assert names_in(tmp_path, "chk-2") == set()


def test_an_acknowledgement_after_the_abort_leaves_nothing(tmp_path: Path) -> None:
    one = coordinator(tmp_path)
    one.start()
    worker = Worker(tmp_path, one._objects)
    pending = one.trigger(1, 128)
    one.abort(1)
    assert one.acknowledge(1, 0, worker.snapshot(pending, ["1.sst"])) is None
    assert names_in(tmp_path, "shared") == set()


def test_a_doubled_acknowledgement_changes_nothing(tmp_path: Path) -> None:
    one = coordinator(tmp_path)
    one.start()
    worker = Worker(tmp_path, one._objects)
    pending = one.trigger(1, 128)
    state = worker.snapshot(pending, ["1.sst"])
    assert one.acknowledge(1, 0, state) is not None
    assert one.acknowledge(1, 0, state) is None
    assert restorable(tmp_path) == [1]


def test_a_second_attempts_state_is_discarded_without_harm(tmp_path: Path) -> None:
    one = coordinator(tmp_path)
    one.start()
    worker, speculative = Worker(tmp_path, one._objects), Worker(tmp_path, one._objects, "db-2")
    pending = one.trigger(1, 128)
    one.acknowledge(1, 0, worker.snapshot(pending, ["1.sst"]))
    one.acknowledge(1, 0, speculative.snapshot(pending, ["1.sst"]))
    assert restorable(tmp_path) == [1]
    assert names_in(tmp_path, "shared") == {worker.files["1.sst"].path}


def test_completing_a_later_checkpoint_aborts_the_earlier_pending_one(tmp_path: Path) -> None:
    one = coordinator(tmp_path)
    one.start()
    worker = Worker(tmp_path, one._objects)
    early, late = one.trigger(2, 128), one.trigger(1, 128)
    one.acknowledge(early.checkpoint_id, 0, Worker(tmp_path, one._objects, "other").snapshot(early, ["9.sst"]))
    one.acknowledge(late.checkpoint_id, 0, worker.snapshot(late, ["1.sst"]))
    assert restorable(tmp_path) == [2]
    assert names_in(tmp_path, "shared") == {worker.files["1.sst"].path}


def test_a_confirmed_upload_wins_over_a_duplicate(tmp_path: Path) -> None:
    one = coordinator(tmp_path)
    one.start()
    worker = Worker(tmp_path, one._objects)
    first = one.trigger(1, 128)
    one.acknowledge(1, 0, worker.snapshot(first, ["1.sst"]))
    confirmed = worker.files["1.sst"].path
    second = one.trigger(1, 128)
    done = one.acknowledge(2, 0, worker.snapshot(second, ["1.sst"], fresh=True))
    assert done is not None
    assert done.metadata.states[0].shared[0].handle.path == confirmed
    assert names_in(tmp_path, "shared") == {confirmed}
    assert restorable(tmp_path) == [2]


def test_a_handed_over_file_of_an_aborted_checkpoint_is_deleted_once_the_database_dropped_it(tmp_path: Path) -> None:
    one = coordinator(tmp_path)
    one.start()
    worker = Worker(tmp_path, one._objects)
    first = one.trigger(2, 128)
    state = worker.snapshot(first, ["1.sst"])
    in_place = frozenset({first.location.resolve(worker.files["1.sst"]).uri})
    one.acknowledge(1, 0, state, in_place=in_place)
    one.abort(1)
    assert names_in(tmp_path, "shared") == {worker.files["1.sst"].path}, "the database still reads it"
    second = one.trigger(1, 128)
    one.acknowledge(2, 0, worker.snapshot(second, ["2.sst"]), in_place=frozenset())
    assert names_in(tmp_path, "shared") == {worker.files["2.sst"].path}


def test_a_full_checkpoint_does_not_take_files_from_under_the_database(tmp_path: Path) -> None:
    one = coordinator(tmp_path)
    one.start()
    worker = Worker(tmp_path, one._objects)
    first = one.trigger(1, 128)
    state = worker.snapshot(first, ["1.sst"])
    in_place = frozenset({first.location.resolve(worker.files["1.sst"]).uri})
    reused = worker.files["1.sst"].path
    one.acknowledge(1, 0, state, in_place=in_place)
    second = one.trigger(1, 128)
    copies = Worker(tmp_path, one._objects, "db-copies")
    full = copies.snapshot(second, ["1.sst"])
    object.__setattr__(full, "backend_id", "db")
    one.acknowledge(2, 0, full, in_place=in_place)
    assert reused in names_in(tmp_path, "shared")


def test_a_replaced_coordinator_completes_nothing(tmp_path: Path) -> None:
    old = coordinator(tmp_path)
    old.start()
    worker = Worker(tmp_path, old._objects)
    pending = old.trigger(1, 128)
    state = worker.snapshot(pending, ["1.sst"])
    new = coordinator(tmp_path)
    new.start()
    with pytest.raises(CheckpointError, match="was replaced by epoch 2"):
        old.acknowledge(1, 0, state)
    assert restorable(tmp_path) == []
    mine = new.trigger(1, 128)
    assert new.acknowledge(mine.checkpoint_id, 0, Worker(tmp_path, new._objects).snapshot(mine, ["1.sst"]))


def test_a_replacement_between_check_and_write_takes_the_checkpoint_back(tmp_path: Path) -> None:
    old = coordinator(tmp_path)
    old.start()
    pending = old.trigger(1, 128)
    state = Worker(tmp_path, old._objects).snapshot(pending, ["1.sst"])
    write = old._store.write

    def write_late(location: CheckpointLocation, metadata: object) -> None:
        coordinator(tmp_path).start()
        write(location, metadata)  # type: ignore[arg-type]

    old._store.write = write_late  # type: ignore[method-assign,assignment]
    with pytest.raises(CheckpointError, match="was replaced"):
        old.acknowledge(1, 0, state)
    assert restorable(tmp_path) == []


def test_two_that_start_at_once_get_different_epochs(tmp_path: Path) -> None:
    first, second = coordinator(tmp_path), coordinator(tmp_path)
    first.start()
    second.start()
    assert first._epoch is not None
    assert second._epoch is not None
    assert first._epoch.number < second._epoch.number
    second.trigger(1, 128)
    with pytest.raises(CheckpointError):
        first._epoch.check()


def test_using_it_before_start_or_retaining_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not started"):
        coordinator(tmp_path).trigger(1, 128)
    with pytest.raises(UsageError, match="at least one"):
        coordinator(tmp_path, retained=0)


@pytest.mark.parametrize("claimed", ["?", "{}", "[1]", '[""]', '["/"]', "[" * 100_000])
def test_a_checkpoint_whose_claims_are_no_bases_is_refused(tmp_path: Path, claimed: str) -> None:
    """Whatever lies below a claimed base may be deleted."""
    store = CheckpointStore(Configuration(environ={}))
    location = CheckpointLocation(str(tmp_path), 1)
    store.write(location, CheckpointMetadata(1, 128, 1, (), properties={"claimed": claimed}))
    with pytest.raises(CheckpointError, match=r"chk-1: the property 'claimed' names no bases"):
        coordinator(tmp_path).start()


def foreign_checkpoint(base: Path) -> tuple[str, Worker]:
    other = coordinator(base)
    other.start()
    worker = Worker(base, other._objects)
    pending = other.trigger(1, 128)
    other.acknowledge(1, 0, worker.snapshot(pending, ["1.sst", "2.sst"]))
    return pending.location.directory, worker


def absolute(worker: Worker, location: CheckpointLocation) -> None:
    for name, handle in worker.files.items():
        if isinstance(handle, RelativeFileHandle):
            worker.files[name] = FileHandle(location.resolve(handle).uri, handle.size, handle.crc64nvme)


@pytest.mark.parametrize("mode", list(ClaimMode))
def test_restoring_another_jobs_checkpoint(tmp_path: Path, mode: ClaimMode) -> None:
    theirs, base = tmp_path / "theirs", tmp_path / "ours"
    uri, worker = foreign_checkpoint(theirs)
    one = coordinator(base)
    one.start()
    restored = one.restore(uri, mode)
    absolute(worker, restored.location)
    worker.base = base
    for names in (["1.sst", "2.sst"], ["2.sst", "3.sst"], ["3.sst"]):
        pending = one.trigger(1, 128)
        assert one.acknowledge(pending.checkpoint_id, 0, worker.snapshot(pending, names)) is not None
        one = restarted(base)
    assert len(restorable(base)) == 1
    if mode is ClaimMode.CLAIM:
        assert restorable(theirs) == []
        assert names_in(theirs, "shared") == set()
    else:
        assert restorable(theirs) == [1]
        assert len(names_in(theirs, "shared")) == 2


def restarted(base: Path) -> Coordinator:
    """The same job's coordinator after a failover: it must remember whose files are whose."""
    again = coordinator(base)
    again.start()
    return again


def test_a_checkpoint_of_a_number_that_this_job_retains_is_not_claimed(tmp_path: Path) -> None:
    uri, _ = foreign_checkpoint(tmp_path / "theirs")
    foreign_checkpoint(tmp_path / "ours")
    one = restarted(tmp_path / "ours")
    with pytest.raises(CheckpointError, match="has one of that number"):
        one.restore(uri, ClaimMode.CLAIM)
    assert one.restore(uri).checkpoint_id == 1
    assert restorable(tmp_path / "ours") == restorable(tmp_path / "theirs") == [1]


def test_no_claim_refuses_an_incremental_first_checkpoint(tmp_path: Path) -> None:
    uri, worker = foreign_checkpoint(tmp_path / "theirs")
    one = coordinator(tmp_path / "ours")
    one.start()
    restored = one.restore(uri, ClaimMode.NO_CLAIM)
    absolute(worker, restored.location)
    pending = one.trigger(1, 128)
    assert pending.sharing is Sharing.FORWARD
    object.__setattr__(pending, "sharing", Sharing.FORWARD_BACKWARD)
    state = worker.snapshot(pending, ["1.sst"])
    object.__setattr__(pending, "sharing", Sharing.FORWARD)
    with pytest.raises(CheckpointError, match="must be full"):
        one.acknowledge(pending.checkpoint_id, 0, state)


def job(base: Path, objects: Objects) -> Iterator[int]:
    """Checkpoints with an abort and a subsumption in between; yields each id that completed."""
    one = coordinator(base, objects)
    one.start()
    worker = Worker(base, objects)
    for number, names in enumerate((["1.sst"], ["1.sst", "2.sst"], ["2.sst", "3.sst"], ["3.sst"])):
        pending = one.trigger(2, 128)
        one.acknowledge(pending.checkpoint_id, 0, worker.snapshot(pending, names, 0))
        if number == 1:
            one.abort(pending.checkpoint_id)
            worker.files = {name: worker.files[name] for name in ["1.sst"]}
            continue
        done = one.acknowledge(pending.checkpoint_id, 1, worker.snapshot(pending, names, 1))
        assert done is not None
        yield pending.checkpoint_id
    one.close()


def operations_of_a_job(tmp_path: Path) -> int:
    objects = MortalObjects(Configuration(environ={}))
    list(job(tmp_path / "whole", objects))
    return objects.operations


@pytest.mark.parametrize("after", [False, True])
def test_dying_at_any_operation_loses_no_completed_checkpoint_and_shows_no_partial_one(
    tmp_path: Path, after: bool
) -> None:
    total = operations_of_a_job(tmp_path)
    assert total > 30
    for dies_at in range(1, total + 1):
        base = tmp_path / f"{after}-{dies_at}"
        completed: list[int] = []
        objects = MortalObjects(Configuration(environ={}), dies_at=dies_at, after=after)
        with pytest.raises(Crash):
            completed.extend(job(base, objects))
        found = restorable(base)
        if completed:
            assert found, f"operation {dies_at}: the completed checkpoint {completed[-1]} is gone"
            assert max(found) >= completed[-1]
        successor = restarted(base)
        pending = successor.trigger(1, 128)
        worker = Worker(base, successor._objects, "new")
        assert successor.acknowledge(pending.checkpoint_id, 0, worker.snapshot(pending, ["n.sst"])) is not None
        assert restorable(base) == [pending.checkpoint_id]


def test_deletes_are_retried_and_what_fails_is_left_to_the_sweep() -> None:
    class Flaky:
        def __init__(self) -> None:
            self.calls: list[list[str]] = []

        def delete(self, uris: Sequence[str]) -> None:
            self.calls.append(list(uris))
            if uris[0] == "forbidden":
                raise BackendError("no")
            if len(self.calls) == 1:
                raise BackendError("later", transient=True)

    flaky = Flaky()
    deleter = Deleter(flaky)
    deleter.submit(["a"], ["b", "c"])
    deleter.submit(["forbidden"], ["never"])
    deleter.submit([])
    deleter.close()
    assert flaky.calls == [["a"], ["a"], ["b", "c"], ["forbidden"]]
    assert deleter.failed == ["forbidden"]
    deleter.submit(["after closing"])
    assert flaky.calls[-1] == ["after closing"]


def test_the_registry_keeps_a_file_while_anyone_uses_it() -> None:
    registry = SharedFileRegistry()
    assert registry.register(1, "k", "a") == "a"
    assert registry.register(2, "k", "b") == "b", "unconfirmed: the newer upload takes the key"
    registry.confirm(2)
    assert registry.register(3, "k", "c") == "b"
    assert registry.release(1) == ["a"]
    assert registry.release(2) == []
    assert registry.users_of("b") == {3}
    assert registry.release(3) == ["b"]
    assert "b" not in registry
