from __future__ import annotations

from typing import Any

import pytest

from statelift.transfer.handles import subtask_of
from statelift.transfer.keyed.key_groups import key_group_expression, key_group_of, subtask_expression

pytestmark = pytest.mark.spark


def test_expressions_and_python_agree_on_a_real_spark(spark: Any) -> None:
    keys = [f"key-{number}" for number in range(500)] + ["", "ž", "日本語"]
    frame = spark.createDataFrame([(key, number) for number, key in enumerate(keys)], "key string, number bigint")
    both = ["key", "number"]
    rows = frame.select(
        *both,
        key_group_expression("key", 128).alias("one"),
        key_group_expression(both, 32768).alias("two"),
        subtask_expression(frame.key, 128, parallelism=7).alias("subtask"),
    ).collect()
    assert len(rows) == len(keys)
    for row in rows:
        assert row.one == key_group_of(row.key, 128)
        assert row.two == key_group_of((row.key, row.number), 32768)
        assert row.subtask == subtask_of(row.one, 7, 128)
