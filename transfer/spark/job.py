"""The write side: a job updates keyed state in tasks, and the driver makes a checkpoint of the snapshots.

    updates = events.groupBy("account").sum("amount")
    checkpoint(spark, updates, add_up, "s3://state/job", 8, key="account", parallelism=4, previous=7)

Tasks upload new SST files and return a handle; ``_metadata`` is written last, by the driver, when
every subtask has answered. Only the handles of the attempts that Spark accepted are in it, so that
retried and speculative attempts do no harm.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ...backends.errors import CheckpointError, TransferError, UsageError
from ...backends.options import Configuration
from ..checkpoint.coordinator import CompletedCheckpoint, Coordinator
from ..checkpoint.layout import CheckpointLocation
from ..checkpoint.metadata import CheckpointMetadata, decode, encode
from ..checkpoint.store import CheckpointStore
from ..handles import KeyedStateHandle, key_groups_of
from ..keyed.key_groups import key_group_expression, subtask_expression
from ..strategy import ClaimMode, Sharing
from .options import options_from, share_secrets
from .outcomes import as_result, attempts_of, raise_first, surfacing
from .state import TaskState, open_state

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import DataFrame, Row, SparkSession

#: Applies a subtask's updates, as Arrow batches with the column ``key_group``, to its state.
Update: TypeAlias = "Callable[[TaskState, Iterator[RecordBatch]], object]"

KEY_GROUP = "key_group"
_ROW = "subtask int, handle binary, files int, bytes long, bytes_uploaded long, seconds double, error binary"


@dataclass(frozen=True, kw_only=True)
class CheckpointReport:
    """A checkpoint that is complete.

    Args:
        bytes: of the whole state.
        bytes_uploaded: of the files that no earlier checkpoint had.
    """

    location: CheckpointLocation
    parallelism: int
    files: int
    bytes: int
    bytes_uploaded: int
    seconds: float


def checkpoint(
    spark: SparkSession,
    updates: DataFrame,
    update: Update,
    base: str,
    checkpoint_id: int,
    *,
    key: str,
    parallelism: int,
    max_parallelism: int = 128,
    previous: int | str | None = None,
    configuration: Configuration | None = None,
    properties: Mapping[str, str] | None = None,
    claim: ClaimMode | str = ClaimMode.NO_CLAIM,
) -> CheckpointReport:
    """Apply updates to the state, one task a subtask, and complete a checkpoint of the result.

    Args:
        update: called once in each subtask's task, also where it has no updates.
        key: the column that rows are routed by, as ``pmod(hash(key), max_parallelism)``.
        previous: the checkpoint below ``base`` to go on from, by its number; or another job's, or a
            savepoint, by its URI. None begins with empty state.
        configuration: by default `options_from` the session.
        claim: under CLAIM and LEGACY the checkpoint references files of ``previous`` below another
            base; nothing here deletes them, see `coordinated_checkpoint`. Under NO_CLAIM it is full.

    Raises:
        CheckpointError: the checkpoint exists already, or ``previous`` is missing or damaged.
        UsageError: the parallelism is out of range, ``max_parallelism`` is not that of ``previous``,
            or no such claim mode.
        CopyFailed: files could not be uploaded.
    """
    started = time.monotonic()
    mode = ClaimMode.of(claim)
    configuration = configuration or options_from(spark)
    share_secrets(spark, configuration)
    location = CheckpointLocation.parse(f"{base}/chk-{checkpoint_id}")
    before = f"{location.base}/chk-{previous}" if isinstance(previous, int) else previous
    key_groups_of(0, parallelism, max_parallelism)
    _check(location, before, max_parallelism, configuration)
    attempts = attempts_of(spark.sparkContext)
    task = _Task(location, before, parallelism, max_parallelism, update, configuration, attempts, claim=mode)
    rows = task.run_all(updates, key)
    complete_checkpoint(
        location,
        [bytes(row.handle) for row in rows],
        configuration=configuration,
        parallelism=parallelism,
        max_parallelism=max_parallelism,
        properties=properties,
    )
    return _report(location, rows, started)


def coordinated_checkpoint(
    spark: SparkSession,
    updates: DataFrame,
    update: Update,
    coordinator: Coordinator,
    *,
    key: str,
    parallelism: int,
    max_parallelism: int = 128,
    previous: CompletedCheckpoint | None = None,
    configuration: Configuration | None = None,
) -> CheckpointReport:
    """Like `checkpoint`, for a job whose checkpoints a coordinator numbers, completes, subsumes and deletes.

    Args:
        previous: the checkpoint to go on from: by default the coordinator's newest; after
            ``coordinator.restore(…)`` what that returned. Without either, state begins empty.
            Restored by CLAIM or LEGACY, its files are referenced from the first checkpoint on;
            by NO_CLAIM that one is full.

    Raises:
        CheckpointError: the coordinator was replaced, or ``previous`` is damaged; the checkpoint is aborted.
        CopyFailed: files could not be uploaded; the checkpoint is aborted.
    """
    started = time.monotonic()
    configuration = configuration or options_from(spark)
    share_secrets(spark, configuration)
    newest = previous or coordinator.latest
    before = None if newest is None else str(newest.location)
    pending = coordinator.trigger(parallelism, max_parallelism)
    try:
        _check(pending.location, before, max_parallelism, configuration)
        task = _Task(
            pending.location,
            before,
            parallelism,
            max_parallelism,
            update,
            configuration,
            attempts_of(spark.sparkContext),
            full=pending.sharing is not Sharing.FORWARD_BACKWARD,
            claim=_claim_of(newest, coordinator),
        )
        rows = task.run_all(updates, key)
    except BaseException:
        coordinator.abort(pending.checkpoint_id)
        raise
    for row in rows:
        handle = decode(bytes(row.handle), name=str(pending.location)).states[0]
        coordinator.acknowledge(pending.checkpoint_id, row.subtask, handle)
    return _report(pending.location, rows, started)


def _claim_of(previous: CompletedCheckpoint | None, coordinator: Coordinator) -> ClaimMode:
    """The mode that the coordinator restored a checkpoint in: what it retains of other bases it claimed or relies on.

    A foreign checkpoint that it does not retain may go at any time, so nothing of it is referenced.
    """
    if previous is None or all(each.location != previous.location for each in coordinator.completed):
        return ClaimMode.NO_CLAIM
    if previous.location.base == coordinator.base:
        return ClaimMode.NO_CLAIM
    return ClaimMode.CLAIM if previous.deletable else ClaimMode.LEGACY


def _report(location: CheckpointLocation, rows: list[Row], started: float) -> CheckpointReport:
    return CheckpointReport(
        location=location,
        parallelism=len(rows),
        files=sum(row.files for row in rows),
        bytes=sum(row.bytes for row in rows),
        bytes_uploaded=sum(row.bytes_uploaded for row in rows),
        seconds=time.monotonic() - started,
    )


def complete_checkpoint(
    location: CheckpointLocation,
    snapshots: Iterable[bytes],
    *,
    configuration: Configuration,
    parallelism: int,
    max_parallelism: int,
    properties: Mapping[str, str] | None = None,
) -> CheckpointMetadata:
    """Write ``_metadata``, on the driver, from what every subtask's `TaskState.snapshot_to` returned.

    Raises:
        CheckpointError: a subtask's snapshot is missing or of another checkpoint, or the checkpoint exists already.
    """
    handles = [handle for each in snapshots for handle in decode(each, name=str(location)).states]
    _check_complete(location, handles, parallelism, max_parallelism)
    metadata = CheckpointMetadata(
        checkpoint_id=location.checkpoint_id,
        max_parallelism=max_parallelism,
        parallelism=parallelism,
        states=tuple(sorted(handles, key=lambda handle: handle.key_groups.first)),
        created=time.time(),
        properties=properties or {},
    )
    with CheckpointStore(configuration) as store:
        store.write(location, metadata)
    return metadata


def _check(
    location: CheckpointLocation, previous: str | None, max_parallelism: int, configuration: Configuration
) -> None:
    """Find on the driver what would otherwise fail in every task, or after all of them."""
    with CheckpointStore(configuration) as store:
        if store.objects.exists(location.metadata):
            raise CheckpointError(f"{location}: this checkpoint exists already", remedy="use the next number")
        if previous is None:
            return
        _, metadata = store.read(previous)
    if metadata.max_parallelism != max_parallelism:
        raise UsageError(
            f"max_parallelism {max_parallelism} is not {metadata.max_parallelism}, that of {previous}",
            remedy="the maximum is fixed when state is first written",
        )


def _check_complete(
    location: CheckpointLocation, handles: list[KeyedStateHandle], parallelism: int, max_parallelism: int
) -> None:
    found = sorted((handle.key_groups.first, handle.key_groups.last) for handle in handles)
    wanted = [key_groups_of(subtask, parallelism, max_parallelism) for subtask in range(parallelism)]
    if found != [(each.first, each.last) for each in wanted]:
        raise CheckpointError(f"{location}: {len(found)} snapshots do not make up {parallelism} subtasks")
    for handle in handles:
        if handle.checkpoint_id != location.checkpoint_id:
            raise CheckpointError(f"{location}: a snapshot belongs to checkpoint {handle.checkpoint_id}")


@dataclass(frozen=True)
class _Task:
    """What runs in an executor's Python worker; pickled without secrets."""

    location: CheckpointLocation
    previous: str | None
    parallelism: int
    max_parallelism: int
    update: Update
    configuration: Configuration
    attempts: int
    full: bool = False
    claim: ClaimMode = ClaimMode.NO_CLAIM

    def run_all(self, updates: DataFrame, key: str) -> list[Row]:
        """Route rows to subtasks by their key group, run one task a subtask, and return what each did."""
        routed = updates.withColumn(KEY_GROUP, key_group_expression(key, self.max_parallelism))
        subtask = subtask_expression(key, self.max_parallelism, parallelism=self.parallelism)
        with surfacing(f"checkpoint {self.location}"):
            rows: list[Row] = routed.repartitionById(self.parallelism, subtask).mapInArrow(self, _ROW).collect()
        raise_first(row.error for row in rows)
        return rows

    def __call__(self, batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        row: dict[str, object] = dict.fromkeys(("handle", "files", "bytes", "bytes_uploaded", "seconds", "error"))
        row["subtask"] = context.partitionId() if context else 0
        try:
            row.update(self._run(int(str(row["subtask"])), batches))
        except TransferError as error:
            row["error"] = as_result(error, self.attempts)
        # A task that returns before its input is read leaves Spark waiting to write it.
        for _ in batches:
            pass
        yield pa.RecordBatch.from_pylist([row], schema=_schema())

    def _run(self, subtask: int, batches: Iterator[RecordBatch]) -> dict[str, object]:
        started = time.monotonic()
        with open_state(
            self.previous,
            subtask,
            self.parallelism,
            self.configuration,
            max_parallelism=self.max_parallelism,
            claim=self.claim,
        ) as state:
            self.update(state, batches)
            snapshot = state.snapshot_to(self.location, full=self.full)
        handle = snapshot.handle
        return {
            "handle": encode_snapshot(handle, self.parallelism),
            "files": len(handle.shared) + len(handle.private),
            "bytes": handle.size,
            "bytes_uploaded": snapshot.copy.bytes_moved,
            "seconds": time.monotonic() - started,
        }


def encode_snapshot(handle: KeyedStateHandle, parallelism: int) -> bytes:
    """A subtask's handle as bytes, to be returned from a task."""
    return encode(CheckpointMetadata(handle.checkpoint_id, handle.max_parallelism, parallelism, (handle,)))


def _schema() -> object:
    import pyarrow as pa

    kinds = {"int": pa.int32(), "long": pa.int64(), "double": pa.float64(), "binary": pa.binary()}
    return pa.schema([(name, kinds[kind]) for name, kind in (each.split() for each in _ROW.split(", "))])
