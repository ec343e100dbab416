"""Processes that die by SIGKILL in the midst of checkpoints and savepoints of real state.

``python -m tests.crashing`` reads one job a line, forks a child for it and tells how that ended, so
that a death costs no start of an interpreter. On a disk the child counts every call that changes a
directory or opens a file to write, by an audit hook, and kills itself before the n-th; on S3 whoever
stands in front of the store kills it.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from statelift.backends.closeables import CloseableRegistry
from statelift.backends.options import Configuration
from statelift.transfer.checkpoint.coordinator import CompletedCheckpoint, Coordinator
from statelift.transfer.checkpoint.copying import copy_checkpoint
from statelift.transfer.checkpoint.removal import remove_checkpoint
from statelift.transfer.checkpoint.store import CheckpointStore
from statelift.transfer.downloader import StateDownloader
from statelift.transfer.file_systems import FileSystems, load_declarations
from statelift.transfer.handles import key_groups_of
from statelift.transfer.keyed.database import KeyedState
from statelift.transfer.keyed.key_groups import key_group_of
from statelift.transfer.keyed.restore import plan_restore, restore
from statelift.transfer.savepoint.job import Ending, Job
from statelift.transfer.savepoint.taking import savepoint
from statelift.transfer.strategy import Sharing
from statelift.transfer.uploader import StateUploader

MOST = 8
SUBTASKS = 2
OPTIONS = {"state.inline-threshold": "2kb", "state.rocksdb.write-buffer-size": "64kb"}
_CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate"}
_WRITES = os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_RDWR

Rows = dict[bytes, bytes]


def rows_at(checkpoint: int) -> Rows:
    """What the job's state is at a checkpoint: each changes, adds and removes keys."""
    if checkpoint == 0:
        return {}
    before = rows_at(checkpoint - 1)
    changed = [number for number in range(100 * (checkpoint - 1), 100 * checkpoint + 100) if number % 3]
    new = {b"key-%05d" % number: hashlib.blake2b(b"%d/%d" % (number, checkpoint)).digest() for number in changed}
    gone = {b"key-%05d" % number for number in range(0, 100 * checkpoint, 7)} if checkpoint > 1 else set()
    return {key: value for key, value in {**before, **new}.items() if key not in gone}


@dataclass
class World:
    """A base with checkpoints 1 and 2 and a savepoint, and whatever a process does to it.

    Args:
        root: directory of it all, a URI or a path.
        scratch: local directory of the workers.
        journal: local file that outlives the process: what it knows to be done.
        ballast: bytes of one more value from checkpoint 3 on, so that a file goes up in parts.
    """

    root: str
    options: dict[str, str]
    scratch: str
    journal: str
    ballast: int = 0

    def rows(self, checkpoint: int) -> Rows:
        """The state at a checkpoint of the job that runs in this world."""
        heavy = {b"key-ballast": hashlib.shake_128(b"ballast").digest(self.ballast)} if self.ballast else {}
        return {**rows_at(checkpoint), **(heavy if checkpoint >= 3 else {})}

    @property
    def base(self) -> str:
        return f"{self.root}/job"

    @property
    def target(self) -> str:
        return f"{self.base}/savepoints/new"

    @property
    def configuration(self) -> Configuration:
        return Configuration({**OPTIONS, **self.options}, environ={})

    def note(self, text: str) -> None:
        with open(self.journal, "a", encoding="ascii") as file:
            file.write(text + "\n")

    @contextmanager
    def running(self) -> Iterator[Running]:
        with ExitStack() as block:
            store = block.enter_context(CheckpointStore(self.configuration))
            systems = block.enter_context(FileSystems(self.configuration))
            coordinator = Coordinator(self.base, store, retained=2, background_deletes=False)
            newest = coordinator.start()
            states = [block.enter_context(self._state(newest, subtask, systems)) for subtask in range(SUBTASKS)]
            yield Running(self, coordinator, systems, states)
            coordinator.close()

    def _state(self, newest: CompletedCheckpoint | None, subtask: int, systems: FileSystems) -> KeyedState:
        own, directory = key_groups_of(subtask, SUBTASKS, MOST), f"{self.scratch}/db-{subtask}"
        if newest is None:
            return KeyedState.open(directory, own, MOST, configuration=self.configuration)
        plan = plan_restore(newest.metadata.states, own)
        restore(plan, newest.location, directory, StateDownloader(systems), CloseableRegistry())
        return KeyedState.open(directory, configuration=self.configuration)


@dataclass
class Running:
    """A driver with its coordinator and two workers with their databases."""

    world: World
    coordinator: Coordinator
    systems: FileSystems
    states: list[KeyedState]

    def checkpoint(self, _ending: Ending = Ending.NONE, *, abort: bool = False) -> CompletedCheckpoint | None:
        pending = self.coordinator.trigger(SUBTASKS, MOST)
        before, now = (self.world.rows(pending.checkpoint_id - back) for back in (1, 0))
        done = None
        for subtask, state in enumerate(self.states):
            changed = ((key, now.get(key)) for key in before.keys() | now.keys() if before.get(key) != now.get(key))
            addressed = ((key_group_of(key, MOST), key, value) for key, value in changed)
            state.write(row for row in addressed if row[0] in state.key_groups)
            state.compact()  # so that every checkpoint has files that no older one has
            full = pending.sharing is not Sharing.FORWARD_BACKWARD
            handle = state.snapshot(pending.location, StateUploader(self.systems), full=full)
            if abort:
                self.coordinator.acknowledge(pending.checkpoint_id, subtask, handle)
                self.coordinator.abort(pending.checkpoint_id)
                return None
            done = self.coordinator.acknowledge(pending.checkpoint_id, subtask, handle)
        for state in self.states:
            state.completed(pending.checkpoint_id)
        self.world.note(f"completed {pending.checkpoint_id}")
        return done


def prepare(world: World) -> None:
    with world.running() as running:
        running.checkpoint()
        running.checkpoint()
    savepoint(f"{world.base}/chk-2", f"{world.base}/savepoints/old", world.configuration)


def complete_one(world: World) -> None:
    """Snapshot, completion of checkpoint 3 and subsumption of checkpoint 1."""
    with world.running() as running:
        running.checkpoint()


def abort_one(world: World) -> None:
    with world.running() as running:
        running.checkpoint(abort=True)


def take_native(world: World) -> None:
    savepoint(f"{world.base}/chk-2", world.target, world.configuration)
    world.note("savepoint")


def take_canonical(world: World) -> None:
    savepoint(f"{world.base}/chk-2", world.target, world.configuration, type="canonical", scratch=world.scratch)
    world.note("savepoint")


def stop_with_savepoint(world: World) -> None:
    with world.running() as running:
        job = Job(running.coordinator, running.checkpoint, configuration=world.configuration)  # type: ignore[arg-type]
        job.stop_with_savepoint(world.target)
        world.note("savepoint")


def remove_oldest(world: World) -> None:
    with CheckpointStore(world.configuration) as store:
        remove_checkpoint(store, f"{world.base}/chk-1")


def remove_savepoint(world: World) -> None:
    with CheckpointStore(world.configuration) as store:
        remove_checkpoint(store, f"{world.base}/savepoints/old", force=True)


def copy_elsewhere(world: World) -> None:
    with CheckpointStore(world.configuration) as store, FileSystems(world.configuration) as systems:
        copy_checkpoint(f"{world.base}/chk-2", f"{world.root}/elsewhere", store, systems)
    world.note("copied")


PHASES: dict[str, Callable[[World], None]] = {
    each.__name__: each
    for each in (
        *(complete_one, abort_one, take_native, take_canonical, stop_with_savepoint),
        *(remove_oldest, remove_savepoint, copy_elsewhere),
    )
}


class Mortality:
    """Counts what the process changes below a directory, and kills it before the n-th change."""

    def __init__(self, root: str, dies_at: int) -> None:
        self.root = root
        self.dies_at = dies_at
        self.changes = 0
        sys.addaudithook(self._see)

    def _see(self, event: str, words: tuple[Any, ...]) -> None:
        if event in _CHANGES:
            touched = words[:2]
        elif event == "open" and isinstance(words[2], int) and words[2] & _WRITES:
            touched = words[:1]
        else:
            return
        if any(isinstance(each, str) and each.startswith(self.root) for each in touched):
            self.changes += 1
            if self.changes == self.dies_at:
                os.kill(os.getpid(), signal.SIGKILL)


def _child(order: dict[str, Any]) -> None:
    world = World(**order["world"])
    mortality = Mortality(world.root, order["dies_at"])
    PHASES[order["phase"]](world)
    world.note(f"changes {mortality.changes}")


def _serve() -> None:
    load_declarations()
    for module in ("boto3", "rocksdict", "pyarrow.parquet"):
        __import__(module)
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            try:
                _child(order)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
        print(json.dumps({"pid": pid}), flush=True)
        print(json.dumps({"code": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}), flush=True)


class Forker:
    """The process that forks; see this module."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.crashing"]
        here = Path(__file__).resolve().parent.parent
        self._process = subprocess.Popen(
            command, cwd=here, text=True, bufsize=1, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.pid = 0

    def run(self, phase: str, world: World, *, dies_at: int = 0) -> int:
        """Run a phase in a child; `pid` is its process meanwhile. Returns its exit code, negative for a signal."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps({"phase": phase, "world": vars(world), "dies_at": dies_at}) + "\n")
        self.pid = int(self._answer()["pid"])
        code = int(self._answer()["code"])
        self.pid = 0
        return code

    def _answer(self) -> dict[str, int]:
        assert self._process.stdout
        answer: dict[str, int] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


if __name__ == "__main__":
    _serve()
