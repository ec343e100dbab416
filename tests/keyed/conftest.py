"""A job with keyed state at some parallelism, and the dict that its state must equal."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from statelift.backends.closeables import CloseableRegistry
from statelift.backends.options import Configuration
from statelift.transfer.checkpoint.layout import CheckpointLocation
from statelift.transfer.downloader import StateDownloader
from statelift.transfer.file_systems import FileSystems
from statelift.transfer.handles import KeyedStateHandle, key_groups_of
from statelift.transfer.keyed.database import KeyedState
from statelift.transfer.keyed.options import RocksOptions
from statelift.transfer.keyed.restore import RestoreReport, plan_restore, restore
from statelift.transfer.keyed.snapshot import SnapshotReport, take
from statelift.transfer.uploader import StateUploader

assert RocksOptions  # declares state.rocksdb.*

#: Several files per level out of a few thousand rows.
SMALL = {
    "state.rocksdb.write-buffer-size": "256kb",
    "state.rocksdb.target-file-size": "128kb",
    "state.rocksdb.compression": "none",
    "state.inline-threshold": "0",
}


@dataclass
class Job:
    """All subtasks of one job in one process."""

    root: Path
    base: str
    configuration: Configuration
    max_parallelism: int = 128
    states: list[KeyedState] = field(default_factory=list)
    rows: dict[tuple[int, bytes], bytes] = field(default_factory=dict)
    checkpoint_id: int = 0
    generation: int = 0

    def __post_init__(self) -> None:
        self.file_systems = FileSystems(self.configuration)
        self.uploader = StateUploader(self.file_systems)
        self.downloader = StateDownloader(self.file_systems)

    def begin(self, parallelism: int = 1) -> None:
        for subtask in range(parallelism):
            own = key_groups_of(subtask, parallelism, self.max_parallelism)
            path = self.root / f"begun-{subtask}"
            self.states.append(KeyedState.open(path, own, self.max_parallelism, configuration=self.configuration))

    def write(self, rows: Sequence[tuple[int, bytes, bytes | None]]) -> None:
        for state in self.states:
            state.write([row for row in rows if row[0] in state.key_groups])
        for key_group, key, value in rows:
            if value is None:
                self.rows.pop((key_group, key), None)
            else:
                self.rows[key_group, key] = value

    def churn(self, source: random.Random, count: int, *, keys: int = 200, deletes: float = 0.25) -> None:
        """Random writes, overwrites and deletes."""
        rows: list[tuple[int, bytes, bytes | None]] = []
        for _ in range(count):
            value = None if source.random() < deletes else source.randbytes(source.randint(0, 300))
            rows.append((source.randrange(self.max_parallelism), b"%d" % source.randrange(keys), value))
        self.write(rows)

    def checkpoint(self, *, complete: bool = True, full: bool = False) -> list[SnapshotReport]:
        self.checkpoint_id += 1
        reports = [take(each, self.location, self.uploader, CloseableRegistry(), full=full) for each in self.states]
        if complete:
            for state in self.states:
                state.completed(self.checkpoint_id)
        return reports

    @property
    def location(self) -> CheckpointLocation:
        return CheckpointLocation(self.base, self.checkpoint_id)

    def rescale(self, handles: Sequence[KeyedStateHandle], parallelism: int) -> list[RestoreReport]:
        """Drop what is local and restore at another parallelism."""
        self.close()
        self.generation += 1
        reports = []
        for subtask in range(parallelism):
            plan = plan_restore(handles, key_groups_of(subtask, parallelism, self.max_parallelism))
            into = self.root / f"restored-{self.generation}-{subtask}"
            directory, report = restore(plan, self.location, into, self.downloader)
            reports.append(report)
            self.states.append(KeyedState.open(directory, configuration=self.configuration))
        return reports

    def restore_one(self, handles: Sequence[KeyedStateHandle], subtask: int, parallelism: int) -> KeyedState:
        plan = plan_restore(handles, key_groups_of(subtask, parallelism, self.max_parallelism))
        self.generation += 1
        into = self.root / f"restored-{self.generation}"
        return KeyedState.open(restore(plan, self.location, into, self.downloader)[0], configuration=self.configuration)

    def check(self) -> None:
        """Every key of every subtask has the value it must have, and no subtask has another's."""
        found: dict[tuple[int, bytes], bytes] = {}
        for state in self.states:
            for key_group, key, value in state.items():
                assert (key_group, key) not in found
                found[key_group, key] = value
        assert found == self.rows

    def close(self) -> None:
        for state in self.states:
            state.close()
        self.states.clear()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """A job with small files, checkpoints in a local directory, no subtask yet."""
    made = Job(tmp_path / "local", str(tmp_path / "base"), Configuration(SMALL, environ={}))
    yield made
    made.close()
    made.file_systems.close()


def handles_of(reports: Sequence[SnapshotReport]) -> list[KeyedStateHandle]:
    return [report.handle for report in reports]
