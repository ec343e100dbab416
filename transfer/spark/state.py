"""Keyed state inside a task: restored unless the executor has it, opened, gone after the task.

def score(batches):
    with open_state("s3://state/job/chk-42", parallelism=4, configuration=configuration) as state:
        for batch in batches:
            ... state.get(key) ...
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...backends.closeables import CloseableRegistry
from ...backends.errors import UsageError
from ...backends.options import Configuration
from ..checkpoint.layout import CheckpointLocation
from ..file_systems import FileSystems
from ..handles import key_groups_of
from ..keyed.database import KeyedState
from ..keyed.snapshot import SnapshotReport, take
from ..strategy import ClaimMode
from ..uploader import StateUploader
from .file_pool import FilePool, pooled_digest
from .restoration import Restoration, Restored, local_store


class TaskState(KeyedState):
    """The keyed state of one subtask, in its task.

    Attributes:
        restored: what bringing it here took.
    """

    restored: Restored
    _configuration: Configuration
    _pool: FilePool

    def snapshot_to(self, location: CheckpointLocation | str, *, full: bool = False) -> SnapshotReport:
        """Upload what no earlier checkpoint has; the driver completes the checkpoint (`complete_checkpoint`).

        The files stay on this executor's disk, where a restore of the checkpoint finds them.

        Args:
            full: upload every file, as the first checkpoint after a NO_CLAIM restore must.

        Raises:
            CheckpointError: ``location`` names no checkpoint.
            CopyFailed: a file could not be uploaded; nothing of this snapshot stays in the store.
        """
        location = CheckpointLocation.parse(location) if isinstance(location, str) else location
        with FileSystems(self._configuration) as file_systems:
            report = take(self, location, StateUploader(file_systems), CloseableRegistry(), full=full)
        for file in report.handle.shared:
            path = os.path.join(self.directory, file.name)
            digest = pooled_digest(location, file.handle, path)
            if digest:
                self._pool.add(digest, path)
        return report


@contextmanager
def open_state(
    checkpoint: str | None,
    subtask: int | None = None,
    parallelism: int = 1,
    configuration: Configuration | None = None,
    *,
    max_parallelism: int | None = None,
    root: str | os.PathLike[str] | None = None,
    claim: ClaimMode | str = ClaimMode.NO_CLAIM,
) -> Iterator[TaskState]:
    """A subtask's state, restored unless its version is on this executor's disk already.

    Several tasks of one executor may ask for one version at the same time: it is downloaded once,
    and each gets a working copy of its own. What is written to it lives on in snapshots only.

    Args:
        checkpoint: ``<base>/chk-<n>``, or a savepoint's directory; None begins with empty state.
        subtask: by default this Spark task's partition.
        configuration: by default from this process's environment.
        max_parallelism: of empty state.
        root: where restored state is kept, instead of the option ``state.local-dir``.
        claim: what a snapshot below another base than the checkpoint's may do with its files.
            NO_CLAIM: nothing, the first one is full. CLAIM and LEGACY: reference them; a
            coordinator that was told CLAIM deletes them in time, under LEGACY nobody does.

    Raises:
        CheckpointNotFound: there is no such checkpoint.
        CheckpointError: its metadata is damaged.
        UsageError: the subtask or the parallelism is out of range, or no such claim mode.
        CopyFailed: a file is missing, denied or corrupt; nothing of it stays on the disk.
    """
    subtask = _this_partition() if subtask is None else subtask
    configuration = configuration or Configuration()
    where = None if root is None else Path(root)
    if checkpoint is None:
        with _empty(subtask, parallelism, max_parallelism, configuration, where) as state:
            yield state
        return
    restoration = Restoration(checkpoint, subtask, parallelism, configuration, where, ClaimMode.of(claim))
    with (
        restoration.working_copy() as (directory, restored),
        TaskState.open(directory, configuration=configuration) as state,
    ):
        state.restored, state._configuration, state._pool = restored, configuration, restoration.store.pool
        yield state


@contextmanager
def _empty(
    subtask: int, parallelism: int, max_parallelism: int | None, configuration: Configuration, root: Path | None
) -> Iterator[TaskState]:
    if max_parallelism is None:
        raise UsageError("empty state needs max_parallelism", remedy="choose it once, well above any parallelism")
    key_groups = key_groups_of(subtask, parallelism, max_parallelism)
    store = local_store(configuration, root, f"{key_groups.first}-{key_groups.last}")
    with (
        store.empty() as directory,
        TaskState.open(directory, key_groups, max_parallelism, configuration=configuration) as state,
    ):
        state.restored, state._configuration, state._pool = Restored(), configuration, store.pool
        yield state


def _this_partition() -> int:
    """The number of the Spark task that this process runs.

    Raises:
        UsageError: it runs none.
    """
    try:
        from pyspark import TaskContext
    except ImportError:
        context = None
    else:
        context = TaskContext.get()
    if context is None:
        raise UsageError("outside of a Spark task the subtask must be given")
    return int(context.partitionId())
