"""Restore a checkpoint onto a session's executors: one task a subtask, one row a task."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...backends.errors import TransferError
from ...backends.options import Configuration
from ..checkpoint.fallback import with_fall_back
from ..checkpoint.store import CheckpointStore
from ..handles import key_groups_of
from ..strategy import ClaimMode
from .options import options_from, share_secrets
from .outcomes import as_result, attempts_of, raise_first, surfacing
from .restoration import Restoration

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Columns of what `restore` returns; bytes are bytes, seconds are seconds.
COLUMNS = (
    "subtask int, executor string, host string, files int, bytes long, bytes_reused long, "
    "method string, reason string, seconds double, cpu_seconds double, verified string, attempt int, "
    "checkpoint string, fell_back string"
)


def restore(
    spark: SparkSession,
    checkpoint: str,
    parallelism: int | None = None,
    *,
    configuration: Configuration | None = None,
    method: str | None = None,
    fall_back: bool = False,
    claim: ClaimMode | str = ClaimMode.NO_CLAIM,
) -> DataFrame:
    """Bring a checkpoint's state onto the executors, where `open_state` finds it.

    It happens in this call, once: the returned DataFrame only holds what each task did.

    Args:
        checkpoint: ``<base>/chk-<n>``, or a savepoint's directory.
        parallelism: number of subtasks; by default the checkpoint's own.
        configuration: by default `options_from` the session.
        method: a backend's name, instead of the option ``transfer.backend``.
        fall_back: where a file of the checkpoint is missing, short or corrupt, restore the one
            before it. The column ``checkpoint`` says which was used, ``fell_back`` why.
        claim: as `open_state` will be told; a version restored under another mode is another one,
            though of the same files.

    Raises:
        CheckpointNotFound: there is no such checkpoint.
        UsageError: the parallelism is out of range, no such claim mode, or the session is a Spark Connect one.
        CopyFailed: a file is missing, denied or corrupt.
        BackendError: Spark lost the tasks.
    """
    mode = ClaimMode.of(claim)
    configuration = configuration or options_from(spark)
    if method is not None:
        configuration = configuration.with_arguments({"transfer.backend": method})
    share_secrets(spark, configuration)
    with CheckpointStore(configuration) as store:
        done = with_fall_back(
            store,
            checkpoint,
            lambda each: _restore(spark, each, parallelism, store, configuration, mode),
            fall_back=fall_back,
        )
    used = {"checkpoint": done.checkpoint, "fell_back": done.reason}
    return spark.createDataFrame([{**row, **used} for row in done.result], COLUMNS)


def _restore(
    spark: SparkSession,
    checkpoint: str,
    parallelism: int | None,
    store: CheckpointStore,
    configuration: Configuration,
    claim: ClaimMode,
) -> list[dict[str, Any]]:
    location, metadata = store.read(checkpoint)
    parallelism = metadata.parallelism if parallelism is None else parallelism
    key_groups_of(0, parallelism, metadata.max_parallelism)
    context = spark.sparkContext
    task = _Task(location.directory, parallelism, configuration, attempts_of(context), claim)
    with surfacing(f"restore of {location}"):
        found = context.parallelize(range(parallelism), parallelism).mapPartitions(task).collect()
    raise_first(error for _, error in found)
    return [row for row, _ in found if row is not None]


@dataclass(frozen=True)
class _Task:
    """What runs in an executor's Python worker; pickled without secrets."""

    checkpoint: str
    parallelism: int
    configuration: Configuration
    attempts: int
    claim: ClaimMode

    def __call__(self, subtasks: Iterable[int]) -> Iterator[tuple[dict[str, Any] | None, bytes | None]]:
        for subtask in subtasks:
            try:
                yield self._row(subtask), None
            except TransferError as error:
                yield None, as_result(error, self.attempts)

    def _row(self, subtask: int) -> dict[str, Any]:
        from pyspark import TaskContext

        restored = Restoration(self.checkpoint, subtask, self.parallelism, self.configuration, claim=self.claim).run()
        context = TaskContext.get()
        return {
            "subtask": subtask,
            "executor": executor_name(),
            "host": socket.gethostname(),
            "attempt": context.attemptNumber() if context else 0,
            **asdict(restored),
        }


def executor_name() -> str:
    """The executor that this Python worker belongs to: its id where the cluster manager shows it."""
    known = os.environ.get("SPARK_EXECUTOR_ID") or Path.cwd().name
    return known if known.isdigit() else f"pid-{os.getppid()}"
