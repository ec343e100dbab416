"""File managers and coordinator against a simple model, over random lives of a job.

Workers keep their databases' files below the checkpoints' shared directory, so that snapshots and
restores reuse them in place. The model knows, for each checkpoint, what every subtask's database
held when it was taken.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
from itertools import count
from pathlib import Path

import fsspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from statelift.backends.options import Configuration
from statelift.transfer.checkpoint.coordinator import Coordinator, PendingCheckpoint
from statelift.transfer.checkpoint.layout import CheckpointLocation
from statelift.transfer.checkpoint.orphans import needed_files, remove_orphans
from statelift.transfer.checkpoint.store import CheckpointStore
from statelift.transfer.files import FileManager, Ownership
from statelift.transfer.handles import FileHandle, KeyedStateHandle, KeyGroupRange, RelativeFileHandle, StateFile
from statelift.transfer.strategy import ClaimMode, Restore, Snapshot, plan_restore_transfer, plan_snapshot
from statelift.transfer.strategy import Method as Way

from .test_coordinator import Crash, MortalObjects

Contents = dict[str, bytes]  # a database: SST name → bytes
BARE = Configuration(environ={})
SERIAL = count(1)


class Database:
    """One subtask's database: immutable files in a working directory below ``shared/``."""

    def __init__(self, base: Path, subtask: int, parallelism: int) -> None:
        self.base = base
        self.working = base / "shared" / f"op-{subtask}-{parallelism}"
        self.manager = FileManager(
            fsspec.filesystem("file"), str(self.working), private_directory=str(base / "local" / uuid.uuid4().hex)
        )
        self.backend = uuid.uuid4().hex
        self.contents: Contents = {}

    def write(self, data: bytes) -> None:
        name = f"{next(SERIAL):06d}.sst"
        Path(self.manager.create(f"/db/{name}").path).write_bytes(data)
        self.contents[name] = data

    def drop(self) -> None:
        name = min(self.contents)
        self.manager.delete(f"/db/{name}")
        del self.contents[name]

    def restore(self, location: CheckpointLocation, state: KeyedStateHandle, mode: ClaimMode) -> None:
        plan = plan_restore_transfer(
            Restore(
                working=str(self.working),
                sources=(location.shared,),
                own_shared=str(self.base / "shared"),
                claim=mode,
            )
        )
        for file in state.shared:
            source = location.resolve(file.handle)
            data = Path(source.uri).read_bytes()
            # Two databases that become one may each have a file of this name: the later is renumbered.
            name = f"{next(SERIAL):06d}.sst" if file.name in self.contents else file.name
            if plan.for_file(file.name, file.handle).method is Way.REUSE:
                self.manager.restore(f"/db/{name}", FileHandle(source.uri, source.size))
            else:
                Path(self.manager.create(f"/db/{name}").path).write_bytes(data)
            self.contents[name] = data

    def snapshot(self, pending: PendingCheckpoint) -> tuple[KeyedStateHandle, frozenset[str]]:
        plan = plan_snapshot(
            Snapshot(
                working=str(self.working),
                target=pending.location.directory,
                shared=pending.location.shared,
                sharing=pending.sharing,
            )
        )
        files = []
        for name in sorted(self.contents):
            physical = self.manager.mapping.get(f"/db/{name}")
            if plan.for_file(name).method is Way.REUSE:
                handle = FileHandle(physical.path, len(self.contents[name]))
                self.manager.hand_over(f"/db/{name}", physical.handle or handle)
                files.append(StateFile(name, handle))
            else:
                copy = RelativeFileHandle("shared", uuid.uuid4().hex, len(self.contents[name]))
                shutil.copyfile(physical.path, pending.location.resolve(copy).uri)
                files.append(StateFile(name, copy))
        in_place = {each.path for each in self.manager.mapping.files() if each.ownership is Ownership.NOT_OWNED}
        state = KeyedStateHandle(KeyGroupRange(0, 7), 8, self.backend, pending.checkpoint_id, tuple(files))
        return state, frozenset(in_place)


class JobMachine(RuleBasedStateMachine):
    """A job's life: checkpoints, failovers, rescales, crashes, restores by another job."""

    @initialize(parallelism=st.integers(1, 3), retained=st.integers(1, 2))
    def begin(self, parallelism: int, retained: int) -> None:
        self.root = Path(f"{tempfile.gettempdir()}/statelift-model-{uuid.uuid4().hex}")
        self.bases = 0
        self.retained = retained
        self.untouchable: list[tuple[str, int]] = []  # checkpoints of others: they must stay
        self.taken: dict[tuple[Path, int], list[Contents]] = {}
        self.mode = ClaimMode.NO_CLAIM
        self.source: str | None = None
        self.new_job(parallelism)

    def new_job(self, parallelism: int) -> None:
        self.bases += 1
        self.base = self.root / f"job-{self.bases}"
        (self.base / "shared").mkdir(parents=True)
        self.start(parallelism)

    def start(self, parallelism: int) -> None:
        """(Re)start driver and workers from the newest checkpoint, else from the one restored from."""
        self.pending: dict[int, PendingCheckpoint] = {}
        self.objects = MortalObjects(BARE)
        store = CheckpointStore(BARE, objects=self.objects)
        self.coordinator = Coordinator(str(self.base), store, retained=self.retained, background_deletes=False)
        newest = self.coordinator.start()
        if newest is None and self.source is not None:
            newest = self.coordinator.restore(self.source, self.mode)
        self.databases = [Database(self.base, subtask, parallelism) for subtask in range(parallelism)]
        if newest is None:
            return
        for index, state in enumerate(newest.metadata.states):
            # Rescaling by linking: each old subtask's files go to at least one new subtask.
            for database in {self.databases[index % parallelism], self.databases[(index + 1) % parallelism]}:
                database.restore(newest.location, state, self.mode)

    def live(self, operation: object) -> None:
        try:
            operation()  # type: ignore[operator]
        except Crash:
            self.start(len(self.databases))

    @rule(subtask=st.integers(0, 2), data=st.binary(min_size=1, max_size=4))
    def write(self, subtask: int, data: bytes) -> None:
        self.databases[subtask % len(self.databases)].write(data)

    @rule(subtask=st.integers(0, 2))
    def drop(self, subtask: int) -> None:
        database = self.databases[subtask % len(self.databases)]
        if database.contents:
            database.drop()

    @rule()
    def trigger(self) -> None:
        pending = self.coordinator.trigger(len(self.databases), 8)
        self.pending[pending.checkpoint_id] = pending
        self.taken[self.base, pending.checkpoint_id] = [{} for _ in self.databases]

    @precondition(lambda self: getattr(self, "pending", None))
    @rule(which=st.integers(0, 5), subtask=st.integers(0, 2), twice=st.booleans())
    def acknowledge(self, which: int, subtask: int, twice: bool) -> None:
        number = sorted(self.pending)[which % len(self.pending)]
        pending, subtask = self.pending[number], subtask % len(self.databases)
        if subtask not in pending.missing:
            return
        database = self.databases[subtask]
        self.taken[self.base, number][subtask] = dict(database.contents)
        state, in_place = database.snapshot(pending)
        self.live(lambda: self.coordinator.acknowledge(number, subtask, state, in_place=in_place))
        if twice and not self.objects.dies_at:
            self.live(lambda: self.coordinator.acknowledge(number, subtask, state, in_place=in_place))

    @precondition(lambda self: getattr(self, "pending", None))
    @rule(which=st.integers(0, 5))
    def abort(self, which: int) -> None:
        number = sorted(self.pending)[which % len(self.pending)]
        self.live(lambda: self.coordinator.abort(number))

    @rule()
    def checkpoint_everything(self) -> None:
        self.trigger()
        number = max(self.pending)
        for subtask in range(len(self.databases)):
            if number in self.pending:
                self.acknowledge(sorted(self.pending).index(number), subtask, False)

    @rule(parallelism=st.integers(1, 3))
    def fail_over(self, parallelism: int) -> None:
        """Every process is killed; the job starts again, perhaps at another parallelism."""
        self.start(parallelism)

    @rule(operations=st.integers(1, 6), after=st.booleans())
    def let_the_driver_die_soon(self, operations: int, after: bool) -> None:
        self.objects.dies_at = self.objects.operations + operations
        self.objects.after = after

    @rule(mode=st.sampled_from(list(ClaimMode)), parallelism=st.integers(1, 3))
    def restore_as_another_job(self, mode: ClaimMode, parallelism: int) -> None:
        self.start(len(self.databases))
        newest = self.coordinator.latest
        if newest is None:
            return
        self.end_of_job()
        name = (newest.location.base, newest.checkpoint_id)
        self.untouchable = [each for each in self.untouchable if each != name]
        if mode is not ClaimMode.CLAIM:
            self.untouchable.append(name)
        self.source, self.mode = newest.location.directory, mode
        self.new_job(parallelism)

    def end_of_job(self) -> None:
        for database in self.databases:
            database.manager.close()
        self.live(self.coordinator.close)

    @invariant()
    def every_retained_checkpoint_is_whole(self) -> None:
        store = CheckpointStore(BARE)
        visible = [location for base in self.root.glob("job-*") for location in store.list(str(base))]
        for location in visible:
            _, metadata = store.read(location.directory)
            expected = self.taken[Path(location.base), location.checkpoint_id]
            assert len(metadata.states) == len(expected)
            for state, contents in zip(metadata.states, expected, strict=True):
                found = {file.name: Path(location.resolve(file.handle).uri).read_bytes() for file in state.shared}
                assert found == contents, f"{location} is not what was taken"
        seen = {(each.base, each.checkpoint_id) for each in visible}
        assert set(self.untouchable) <= seen, "a checkpoint that was not claimed is gone"
        for completed in self.coordinator.completed:
            assert (completed.location.base, completed.checkpoint_id) in seen

    @invariant()
    def every_database_reads_its_files(self) -> None:
        for database in self.databases:
            for name, data in database.contents.items():
                assert Path(database.manager.mapping.get(f"/db/{name}").path).read_bytes() == data

    @invariant()
    def forget_what_ended(self) -> None:
        self.pending = {each: self.pending[each] for each in self.pending if each in self.coordinator._pending}

    def teardown(self) -> None:
        if not hasattr(self, "root"):
            return
        try:
            self.objects.dies_at = 0
            self.end_of_job()
            store = CheckpointStore(BARE)
            remove_orphans(store, str(self.base), older_than=0)
            needed: set[str] = set()
            for base in self.root.glob("job-*"):
                for location in store.list(str(base)):
                    needed |= needed_files(location, store.read(location.directory)[1].states)
            left = {str(each) for each in (self.base / "shared").rglob("*") if each.is_file()}
            assert left <= needed, "something unneeded outlived the sweep"
        finally:
            shutil.rmtree(self.root)


TestJobMachine = JobMachine.TestCase
TestJobMachine.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
