"""How an error of the tree gets from a task to the driver as itself, and not as a Java stack trace.

A task that fails in a way which another attempt might escape raises, so that Spark retries it; one
that fails for good, and the last attempt, returns the error as its result instead.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ...backends.errors import BackendError, CopyFailed, DestinationError, TransferError

if TYPE_CHECKING:
    from pyspark import SparkContext

_DEFAULT_ATTEMPTS = 4
_TRACEBACK = "Traceback (most recent call last):"
_LONGEST = 500


def attempts_of(context: SparkContext) -> int:
    """How often Spark starts a task before it gives up (``spark.task.maxFailures``; once in local mode)."""
    master = context.master
    if master.startswith("local") and not master.startswith("local-cluster"):
        _, _, failures = master.rstrip("]").partition(",")
        return int(failures) if failures.strip().isdigit() else 1
    return int(context.getConf().get("spark.task.maxFailures", str(_DEFAULT_ATTEMPTS)) or _DEFAULT_ATTEMPTS)


def as_result(error: TransferError, attempts: int) -> bytes:
    """A task's error, pickled for the driver.

    Raises:
        TransferError: ``error`` itself, where a further attempt is allowed and may succeed.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    last = context is None or context.attemptNumber() >= attempts - 1
    if not last and not _is_final(error):
        raise error
    return pickle.dumps(error)


def _is_final(error: TransferError) -> bool:
    """Whether every executor would fail alike. A full or read-only disk is one executor's own."""
    if isinstance(error, CopyFailed):
        return any(_is_final(each) for each in error.errors)
    return error.shared and not isinstance(error, DestinationError)


def raise_first(errors: Iterable[bytes | None]) -> None:
    """Raise the first error that a task returned, if any did."""
    for pickled in errors:
        if pickled:
            raise pickle.loads(pickled)  # noqa: S301  our own tasks' results, as Spark's own pickles are


@contextmanager
def surfacing(what: str) -> Iterator[None]:
    """Turn Spark's failure of a job into one error of the tree.

    Raises:
        BackendError: tasks were lost or failed by something that is no error of ours.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JError, PySparkException) as error:
        raise BackendError(f"{what} failed in Spark: {_reason(str(error))}") from error


def _reason(text: str) -> str:
    """The one line of Spark's long story that says why."""
    _, traceback, after = text.rpartition(_TRACEBACK)
    if traceback:
        # The frames are indented, what was raised is not.
        raised = next((line for line in after.splitlines() if line and not line[0].isspace()), "")
        if raised:
            return raised[:_LONGEST]
    lines = [line.strip(" :\t") for line in text.splitlines() if line.strip()]
    aborted = next((line for line in lines if "Job aborted" in line), None)
    return (aborted or (lines[0] if lines else "no reason given"))[:_LONGEST]
