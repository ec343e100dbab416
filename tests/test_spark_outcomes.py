from __future__ import annotations

import pickle
import re
from types import SimpleNamespace

import pytest

from statelift.backends.errors import (
    AccessDenied,
    BackendError,
    CheckpointNotFound,
    ConnectionFailed,
    CopyFailed,
    IntegrityError,
    NoSpace,
    TransferError,
)
from statelift.transfer.spark import outcomes

FINAL = [
    AccessDenied("denied"),
    CheckpointNotFound("gone"),
    CopyFailed([ConnectionFailed("reset"), AccessDenied("no")]),
]
RETRIED = [ConnectionFailed("reset"), NoSpace("full"), IntegrityError("damaged"), CopyFailed([NoSpace("full")])]


def attempt(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this process look like a task's attempt."""
    pyspark = pytest.importorskip("pyspark")
    monkeypatch.setattr(pyspark.TaskContext, "_taskContext", SimpleNamespace(attemptNumber=lambda: number))


@pytest.mark.parametrize("error", FINAL, ids=repr)
def test_what_fails_everywhere_is_not_tried_again(error: TransferError, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt(0, monkeypatch)
    with pytest.raises(type(error), match=re.escape(str(error))):
        outcomes.raise_first([None, outcomes.as_result(error, 4)])


@pytest.mark.parametrize("error", RETRIED, ids=repr)
def test_what_another_attempt_may_escape_is_raised_until_the_last(
    error: TransferError, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt(2, monkeypatch)
    with pytest.raises(type(error)):
        outcomes.as_result(error, 4)
    attempt(3, monkeypatch)
    assert isinstance(pickle.loads(outcomes.as_result(error, 4)), type(error))


def test_no_error_raises_nothing() -> None:
    outcomes.raise_first([None, None])


@pytest.mark.parametrize(
    ("master", "conf", "expected"),
    [
        ("local[4]", None, 1),
        ("local[4, 3]", None, 3),
        ("local", None, 1),
        ("local-cluster[2,1,1024]", None, 4),
        ("yarn", "7", 7),
        ("spark://host:7077", None, 4),
    ],
)
def test_attempts_are_spark_s_own(master: str, conf: str | None, expected: int) -> None:
    context = SimpleNamespace(master=master, getConf=lambda: {} if conf is None else {"spark.task.maxFailures": conf})
    assert outcomes.attempts_of(context) == expected  # type: ignore[arg-type]


_SQL = """[UDF_ERROR] An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "job.py", line 3, in update
    raise ValueError("no such currency")
ValueError: no such currency
and a second line
 SQLSTATE: 38000"""
_RDD = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times, %s
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator$$anonfun$1.applyOrElse(PythonRunner.scala:624)
"""
_CRASH = (
    "most recent failure: Lost task 0.3: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (_SQL, "ValueError: no such currency"),
        (_RDD % _CRASH, "Python worker exited unexpectedly"),
        ("", "no reason given"),
    ],
)
def test_spark_s_own_failures_become_one_line(text: str, expected: str) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(BackendError, match=expected) as caught, outcomes.surfacing("restore of s3://b/chk-1"):
        raise PySparkException(message=text)
    assert str(caught.value).startswith("restore of s3://b/chk-1 failed in Spark: ")
    assert "\n" not in str(caught.value)
