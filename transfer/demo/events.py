"""The demo's job: generated payments, summed up per account, all of it in Spark SQL but the state's own update.

An account's state is its number of payments, their total, and the receipt of the last one, about
1 KiB in all.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...backends.errors import IntegrityError
from ...backends.options import Configuration
from ..spark import TaskState, open_state

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import Column, DataFrame, SparkSession

ROW_BYTES = 1 << 10
MAX_PARALLELISM = 128
_RECEIPT_REPEATS = 8
_SUMS = struct.Struct(">qq")
_DIGESTS_AT_ONCE = 20_000


@dataclass(frozen=True)
class Payments:
    """Generated payments number ``first`` to ``last`` - 1, spread over ``accounts``."""

    first: int
    last: int
    accounts: int

    def summed(self, spark: SparkSession) -> DataFrame:
        """Per account, as bytes in ``key``: ``count``, ``total``, and the ``receipt`` of its last payment."""
        from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

        payments = spark.range(self.first, self.last).select(
            "id",
            F.pmod(F.xxhash64("id"), F.lit(self.accounts)).alias("account"),
            F.pmod(F.hash("id"), F.lit(10_000)).alias("cents"),
        )
        sums = payments.groupBy("account").agg(
            F.count("*").alias("count"), F.sum("cents").alias("total"), F.max("id").alias("last")
        )
        receipt = F.repeat(F.sha2(F.col("last").cast("string"), 512), _RECEIPT_REPEATS)
        return sums.select(
            F.encode(F.format_string("account-%012d", "account"), "utf-8").alias("key"),
            "count",
            "total",
            F.encode(receipt, "utf-8").alias("receipt"),
        )

    def digests(self, spark: SparkSession) -> DataFrame:
        """What the state must be after these payments: per ``key``, the SHA-256 of its value as ``expected``."""
        from pyspark.sql import functions as F  # noqa: N812

        sums = self.summed(spark)
        value = F.concat(_as_bytes("count"), _as_bytes("total"), F.col("receipt"))
        return sums.select("key", F.sha2(value, 256).alias("expected"))


def _as_bytes(column: str) -> Column:
    """A bigint as 8 bytes, big-endian: two's complement, as ``struct``'s ``>q``."""
    from pyspark.sql import functions as F  # noqa: N812

    padded: Column = F.unhex(F.lpad(F.hex(column), 16, "0"))
    return padded


def begin(state: TaskState, batches: Iterator[RecordBatch]) -> None:
    """Fill empty state with sums."""
    for batch in batches:
        state.write(
            (group, key, _SUMS.pack(count, total) + receipt) for group, key, count, total, receipt in _rows(batch)
        )


def add(state: TaskState, batches: Iterator[RecordBatch]) -> None:
    """Add further sums to the state."""
    for batch in batches:
        state.write(_added(state, batch))


def _added(state: TaskState, batch: RecordBatch) -> Iterator[tuple[int, bytes, bytes]]:
    for group, key, count, total, receipt in _rows(batch):
        old = state.get(key, key_group=group)
        if old is not None:
            old_count, old_total = _SUMS.unpack_from(old)
            yield group, key, _SUMS.pack(old_count + count, old_total + total) + receipt
        else:
            yield group, key, _SUMS.pack(count, total) + receipt


def _rows(batch: RecordBatch) -> Iterator[tuple[int, bytes, int, int, bytes]]:
    names = ("key_group", "key", "count", "total", "receipt")
    return zip(*(batch.column(name).to_pylist() for name in names), strict=True)


def check(
    spark: SparkSession, checkpoint: str, parallelism: int, expected: DataFrame, configuration: Configuration
) -> int:
    """Compare every key of restored state with what it must be. Returns the number of keys.

    Raises:
        IntegrityError: keys are missing, too many, or have another value.
    """
    from pyspark.sql import functions as F  # noqa: N812

    reader = _reader(checkpoint, parallelism, configuration)
    found = spark.range(0, parallelism, 1, parallelism).mapInArrow(reader, "key binary, found string")
    both = expected.join(found, "key", "full_outer")
    differs = ~F.coalesce(F.col("found") == F.col("expected"), F.lit(False))
    keys, wrong = both.agg(F.count("*"), F.count_if(differs)).collect()[0]
    if wrong:
        raise IntegrityError(f"{wrong} of {keys} keys of the restored state are missing, too many or different")
    return int(keys)


def _reader(checkpoint: str, parallelism: int, configuration: Configuration) -> object:
    def read(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        for _ in batches:
            pass
        with open_state(checkpoint, None, parallelism, configuration) as state:
            yield from _digests(state)

    return read


def _digests(state: TaskState) -> Iterator[RecordBatch]:
    import pyarrow as pa

    def batch() -> RecordBatch:
        return pa.RecordBatch.from_pydict({"key": pa.array(keys, pa.binary()), "found": pa.array(found, pa.string())})

    keys: list[bytes] = []
    found: list[str] = []
    for _, key, value in state.items():
        keys.append(key)
        found.append(hashlib.sha256(value).hexdigest())
        if len(keys) == _DIGESTS_AT_ONCE:
            yield batch()
            keys.clear()
            found.clear()
    yield batch()
