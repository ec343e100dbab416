"""Savepoints through Spark: restored onto executors, gone on from, and read by Spark itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from statelift.backends.options import Configuration
from statelift.transfer.savepoint.taking import savepoint
from statelift.transfer.spark import checkpoint, open_state, restore

from .conftest import MAX_PARALLELISM, Saved

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("kind", ["native", "canonical"])
def test_executors_restore_a_savepoint_at_another_parallelism(
    spark: Any, saved: Saved, settings: Configuration, bucket: str, kind: str
) -> None:
    target = f"s3://{bucket}/savepoints/{kind}"
    savepoint(saved.uri, target, settings, type=kind)
    rows = restore(spark, target, 2, configuration=settings).collect()
    assert sorted(row.subtask for row in rows) == [0, 1]
    assert all(row.bytes > 0 and row.verified == "crc64nvme" for row in rows)


def test_a_job_goes_on_from_a_savepoint(
    spark: Any, saved: Saved, settings: Configuration, bucket: str, tmp_path: Path
) -> None:
    target = f"s3://{bucket}/savepoints/one"
    savepoint(saved.uri, target, settings)

    def update(state: Any, batches: Iterator[Any]) -> None:
        for batch in batches:
            for row in batch.to_pylist():
                state.put(row["name"], b"new", key_group=row["key_group"])

    updates = spark.createDataFrame([("added",)], "name string")
    done = checkpoint(
        spark,
        updates,
        update,
        f"s3://{bucket}/next",
        2,
        key="name",
        parallelism=2,
        max_parallelism=MAX_PARALLELISM,
        previous=target,
        configuration=settings,
    )
    found: dict[bytes, bytes] = {}
    for subtask in range(2):
        with open_state(done.location.directory, subtask, 2, settings, root=tmp_path / "disk") as state:
            found |= {key: value for _, key, value in state.items()}
    assert found == {**saved.rows, b"added": b"new"}


def test_spark_reads_the_rows(spark: Any, saved: Saved, settings: Configuration, tmp_path: Path) -> None:
    savepoint(saved.uri, str(tmp_path / "sp"), settings, type="canonical")
    frame = spark.read.parquet(str(tmp_path / "sp"))
    assert frame.dtypes == [("key_group", "int"), ("key", "binary"), ("value", "binary")]
    assert {bytes(row.key): bytes(row.value) for row in frame.collect()} == saved.rows
    few = frame.where("key_group < 3").count()
    assert 0 < few < len(saved.rows)
