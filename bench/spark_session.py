"""What runs inside a Spark session: ``python -m statelift.bench.spark_session ORDERS``.

The orders are a JSON file; one JSON line per result is printed, so that a session that breaks
keeps what it has.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..transfer.demo.cluster import local_cluster
from .restoring import METHODS, Method, restore_once
from .rounds import order


def through_spark(orders: dict[str, Any]) -> None:
    """Every method on two single-core executors, in rounds that take turns."""
    scratch = Path(orders["scratch"])
    with local_cluster(scratch / "spark") as spark:
        pin_executors(spark)
        _warm_up(spark, orders, scratch)
        for number in range(orders["rounds"]):
            for name in order(orders["methods"], number):
                local = scratch / "local-state"
                shutil.rmtree(local, ignore_errors=True)
                local.mkdir()
                _tell(name, number, functools.partial(_restore, spark, METHODS[name], orders, local))
                shutil.rmtree(local, ignore_errors=True)


def pin_executors(spark: Any) -> int:
    """Give each executor, and the Python workers that it will start, one CPU in turn. Returns their number."""
    import psutil

    java = psutil.Process(spark.sparkContext._gateway.proc.pid)
    found = [each for each in java.children(recursive=True) if _is_executor(each)]
    cpus = sorted(os.sched_getaffinity(0))
    for number, executor in enumerate(sorted(found, key=lambda each: each.pid)):
        for thread in os.listdir(f"/proc/{executor.pid}/task"):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), {cpus[number % len(cpus)]})
    return len(found)


def _is_executor(process: Any) -> bool:
    import psutil

    try:
        return any("CoarseGrainedExecutorBackend" in word for word in process.cmdline())
    except psutil.Error:
        # It has gone meanwhile: a script that started another program.
        return False


def _warm_up(spark: Any, orders: dict[str, Any], scratch: Path) -> None:
    """Python workers start, and import what every method needs; Spark compiles what it does for a frame."""
    spark.sparkContext.parallelize(range(2), 2).map(lambda _: __import__("statelift.bench.restoring")).count()
    local = scratch / "warm-up"
    local.mkdir()
    _restore(spark, METHODS["wire"], orders, local)
    shutil.rmtree(local, ignore_errors=True)


def _tell(name: str, number: int, run: Callable[[], dict[str, Any]]) -> None:
    started = time.monotonic()
    try:
        found = {**run(), "wall": time.monotonic() - started}
    except Exception as error:
        found = {"failed": _reason(error)}
    print(json.dumps({"method": name, "round": number, **found}), flush=True)


def _reason(error: Exception) -> str:
    """The line that says why: our own error's, where a stack trace of Spark has one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith(("statelift.", "Caused by: "))]
    return (ours or [f"{type(error).__name__}: {' '.join(lines[:2])}"])[-1][:300]


def _restore(spark: Any, method: Method, orders: dict[str, Any], local: Path) -> dict[str, Any]:
    if method.everything:
        return _as_the_original(spark, method, orders, local)
    from ..transfer.spark.options import options_from
    from ..transfer.spark.restore import restore

    more = {"s3.s5cmd.path": orders["s5cmd"]} if method.backend == "s5cmd" else {}
    configuration = options_from(spark, **{"state.local-dir": str(local), **more, **method.options})
    frame = restore(
        spark, orders["checkpoint"], orders["parallelism"], configuration=configuration, method=method.backend
    )
    rows = frame.collect()
    return {"bytes": sum(row["bytes"] for row in rows), "cpu": sum(row["cpu_seconds"] for row in rows)}


def _as_the_original(spark: Any, method: Method, orders: dict[str, Any], local: Path) -> dict[str, Any]:
    """The same tasks, but every file goes to every subtask and is clipped there."""
    checkpoint, parallelism = orders["checkpoint"], orders["parallelism"]

    def task(subtasks: Iterator[int]) -> Iterator[tuple[int, float]]:
        for subtask in subtasks:
            before = os.times()
            found = restore_once(method, checkpoint, subtask, parallelism, str(local / str(subtask)))
            yield int(str(found["bytes"])), sum(os.times()[:4]) - sum(before[:4])

    rows = spark.sparkContext.parallelize(range(parallelism), parallelism).mapPartitions(task).collect()
    return {"bytes": sum(row[0] for row in rows), "cpu": sum(row[1] for row in rows)}


def own_store(orders: dict[str, Any]) -> None:
    """Spark's own RocksDB state store: write as many bytes, then load them from the checkpoint."""
    scratch = Path(orders["scratch"])
    conf = {
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.shuffle.partitions": "1",
        "spark.driver.memory": "1g",
        **orders.get("conf", {}),
    }
    with local_cluster(scratch / "spark-own", master="local[1]", conf=conf) as spark:
        checkpoint = orders.get("location") or str(scratch / "own-checkpoint")
        try:
            _aggregate(spark, orders["rows"], orders["value"], scratch, checkpoint)
        except Exception as error:
            # Its text must be asked for while the JVM is there.
            print(json.dumps({"method": orders["name"], "round": 0, "failed": _reason(error)}), flush=True)
            return
        for number in range(orders["rounds"]):
            _tell(orders["name"], number, lambda: _load(spark, checkpoint))


def _aggregate(spark: Any, rows: int, value: int, scratch: Path, checkpoint: str) -> None:
    """One row of state per key, by a streaming aggregation over a file."""
    source = str(scratch / "rows")
    spark.range(rows).selectExpr("id", f"randstr({value}, 7) || id AS value").write.parquet(source)
    stream = spark.readStream.schema("id long, value string").parquet(source)
    query = (
        stream.groupBy("id")
        .agg({"value": "max"})
        .writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def _load(spark: Any, checkpoint: str) -> dict[str, Any]:
    """A reader makes a provider of its own, which loads the whole store; one row is enough for that."""
    found = spark.read.format("statestore").option("path", checkpoint).load().limit(1).collect()
    if len(found) != 1:
        message = "the state store is empty"
        raise RuntimeError(message)
    return {}


def main(argv: list[str]) -> int:
    orders = json.loads(Path(argv[0]).read_text())
    {"through_spark": through_spark, "own_store": own_store}[orders["what"]](orders)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
