from __future__ import annotations

from typing import Any

import pytest

from statelift.backends.errors import (
    AccessDenied,
    CheckpointNotFound,
    CopyFailed,
    SourceNotFound,
    UsageError,
)
from statelift.backends.options import Configuration
from statelift.transfer.spark import open_state, restore
from statelift.transfer.spark.restore import COLUMNS

from .conftest import Saved

pytestmark = pytest.mark.spark


def test_each_subtask_is_one_row_of_one_task(spark: Any, saved: Saved, settings: Configuration) -> None:
    found = restore(spark, saved.uri, 2, configuration=settings)
    rows = sorted(found.collect(), key=lambda row: row.subtask)
    assert found.columns == [each.split()[0] for each in COLUMNS.split(", ")]
    assert [row.subtask for row in rows] == [0, 1]
    assert len({row.executor for row in rows}) == 2, "both subtasks on one executor"
    for row in rows:
        assert row.files > 0
        assert row.bytes > 0
        assert row.bytes_reused == 0
        assert row.verified == "crc64nvme"
        assert row.seconds > 0
        assert row.cpu_seconds > 0
        assert row.attempt == 0


def test_the_parallelism_is_the_checkpoints_own_unless_given(spark: Any, saved: Saved, settings: Configuration) -> None:
    assert [row.subtask for row in restore(spark, saved.uri, configuration=settings).collect()] == [0]


def test_looking_at_the_result_again_restores_nothing(spark: Any, saved: Saved, settings: Configuration) -> None:
    found = restore(spark, saved.uri, 1, configuration=settings)
    assert found.collect() == found.collect()


def test_state_on_the_disk_is_not_downloaded_again(
    spark: Any, saved: Saved, settings: Configuration, tmp_path: Any
) -> None:
    here = settings.with_arguments({"state.local-dir": tmp_path / "state"})
    first = restore(spark, saved.uri, 1, configuration=here).collect()[0]
    again = restore(spark, saved.uri, 1, configuration=here).collect()[0]
    assert (first.bytes_reused, again.bytes_reused) == (0, first.bytes)
    assert again.method == "reuse"
    assert "paths copy: " in first.reason
    assert again.reason == "reuse: this version was restored here before"


def test_a_task_finds_what_restore_brought(spark: Any, saved: Saved, settings: Configuration, tmp_path: Any) -> None:
    here = settings.with_arguments({"state.local-dir": tmp_path / "state"})
    restore(spark, saved.uri, 2, configuration=here)
    uri = saved.uri

    def read(_: Any) -> Any:
        with open_state(uri, None, 2, here) as state:
            yield state.restored.method, [(key, value) for _, key, value in state.items()]

    found = spark.sparkContext.parallelize(range(2), 2).mapPartitions(read).collect()
    assert [method for method, _ in found] == ["reuse", "reuse"]
    assert dict(row for _, rows in found for row in rows) == saved.rows
    assert sum(len(rows) for _, rows in found) == len(saved.rows)


def test_concurrent_tasks_of_an_executor_download_once(spark: Any, saved: Saved, settings: Configuration) -> None:
    uri = saved.uri

    def read(_: Any) -> Any:
        import os

        with open_state(uri, 0, 1, settings) as state:
            yield os.environ["SPARK_LOCAL_DIRS"], state.restored.method, state.count()

    found = spark.sparkContext.parallelize(range(4), 4).mapPartitions(read).collect()
    executors = {executor for executor, _, _ in found}
    downloads = [executor for executor, method, _ in found if method != "reuse"]
    assert sorted(downloads) == sorted(executors)
    assert {count for _, _, count in found} == {len(saved.rows)}


def test_a_checkpoint_that_is_not_there_is_one_error(spark: Any, saved: Saved, settings: Configuration) -> None:
    with pytest.raises(CheckpointNotFound, match=f"{saved.base}/chk-9"):
        restore(spark, f"{saved.base}/chk-9", 2, configuration=settings)


def test_parallelism_above_the_maximum_is_one_error(spark: Any, saved: Saved, settings: Configuration) -> None:
    with pytest.raises(UsageError, match="parallelism 17 is not between 1 and the maximum 16"):
        restore(spark, saved.uri, 17, configuration=settings)


def test_wrong_credentials_are_one_error(spark: Any, saved: Saved, settings: Configuration) -> None:
    wrong = settings.with_arguments({"s3.secret-key": "not-the-secret"})
    with pytest.raises(AccessDenied) as caught:
        restore(spark, saved.uri, 2, configuration=wrong)
    assert "not-the-secret" not in str(caught.value)


def test_a_missing_file_is_one_error_that_names_it(spark: Any, saved: Saved, settings: Configuration) -> None:
    victim = max((saved.objects / "shared").iterdir(), key=lambda path: path.stat().st_size)
    victim.unlink()
    with pytest.raises(CopyFailed, match=victim.name) as caught:
        restore(spark, saved.uri, 2, configuration=settings)
    assert isinstance(caught.value.errors[0], SourceNotFound)


def test_a_subtask_out_of_range_is_an_error_of_the_task(saved: Saved, settings: Configuration, tmp_path: Any) -> None:
    with pytest.raises(UsageError, match="subtask 2 is not between 0 and 1"), open_state(saved.uri, 2, 2, settings):
        pass
