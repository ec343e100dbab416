from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest

from statelift.backends.errors import BackendError, CheckpointError, CheckpointNotFound, UsageError
from statelift.backends.options import Configuration
from statelift.transfer.checkpoint.coordinator import Coordinator
from statelift.transfer.checkpoint.layout import CheckpointLocation
from statelift.transfer.checkpoint.store import CheckpointStore
from statelift.transfer.demo.events import add, begin
from statelift.transfer.spark import (
    TaskState,
    checkpoint,
    complete_checkpoint,
    coordinated_checkpoint,
    encode_snapshot,
    open_state,
    restore,
)
from statelift.transfer.strategy import ClaimMode

pytestmark = pytest.mark.spark

MAX_PARALLELISM = 16
Sums = dict[bytes, tuple[int, int, bytes]]


def sums(first: int, last: int, *, each: int = 1) -> Sums:
    return {b"key-%06d" % number: (each, number * each, b"receipt-%d" % number) for number in range(first, last)}


def frame(spark: Any, rows: Sums) -> Any:
    schema = "key binary, count long, total long, receipt binary"
    return spark.createDataFrame([(bytearray(key), *value) for key, value in rows.items()], schema)


def values(configuration: Configuration, uri: str, parallelism: int, root: Any) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for subtask in range(parallelism):
        with open_state(uri, subtask, parallelism, configuration, root=root) as state:
            found.update((key, value) for _, key, value in state.items())
    return found


def packed(*several: Sums) -> dict[bytes, bytes]:
    found: Sums = {}
    for rows in several:
        for key, (count, total, receipt) in rows.items():
            old_count, old_total, _ = found.get(key, (0, 0, b""))
            found[key] = old_count + count, old_total + total, receipt
    return {key: struct.pack(">qq", count, total) + receipt for key, (count, total, receipt) in found.items()}


def test_a_job_goes_on_from_its_checkpoint_at_any_parallelism(
    spark: Any, settings: Configuration, bucket: str, tmp_path: Any
) -> None:
    base = f"s3://{bucket}/job"
    common: dict[str, Any] = {"key": "key", "max_parallelism": MAX_PARALLELISM, "configuration": settings}
    first, second, third = sums(0, 3000), sums(2900, 3100, each=2), sums(0, 50)
    one = checkpoint(spark, frame(spark, first), begin, base, 1, parallelism=1, **common)
    two = checkpoint(spark, frame(spark, second), add, base, 2, parallelism=1, previous=1, **common)
    three = checkpoint(spark, frame(spark, third), add, base, 3, parallelism=3, previous=2, **common)
    assert one.bytes_uploaded > 0
    assert two.bytes_uploaded < one.bytes_uploaded / 2 < two.bytes
    assert (one.parallelism, two.parallelism, three.parallelism) == (1, 1, 3)
    assert values(settings, f"{base}/chk-1", 2, tmp_path) == packed(first)
    assert values(settings, f"{base}/chk-2", 1, tmp_path) == packed(first, second)
    assert values(settings, f"{base}/chk-3", 2, tmp_path) == packed(first, second, third)
    with pytest.raises(CheckpointError, match="exists already"):
        checkpoint(spark, frame(spark, first), begin, base, 1, parallelism=1, **common)
    with pytest.raises(CheckpointNotFound):
        checkpoint(spark, frame(spark, first), add, base, 9, parallelism=1, previous=8, **common)
    with pytest.raises(UsageError, match="max_parallelism 32 is not 16"):
        checkpoint(
            spark,
            frame(spark, first),
            add,
            base,
            9,
            key="key",
            parallelism=1,
            max_parallelism=32,
            previous=3,
            configuration=settings,
        )


def test_a_retried_attempt_counts_once(spark: Any, settings: Configuration, bucket: str, tmp_path: Any) -> None:
    """The first attempt uploads its files and dies: only the second one's are in the checkpoint."""
    location = CheckpointLocation(f"s3://{bucket}/job", 1)
    rows = sums(0, 500)

    def dying(state: TaskState, batches: Iterator[Any]) -> None:
        import os
        import signal

        from pyspark import TaskContext

        begin(state, batches)
        if TaskContext.get().attemptNumber() == 0:
            state.snapshot_to(location)
            os.kill(os.getpid(), signal.SIGKILL)

    checkpoint(
        spark,
        frame(spark, rows),
        dying,
        location.base,
        1,
        key="key",
        parallelism=2,
        max_parallelism=MAX_PARALLELISM,
        configuration=settings,
    )
    assert values(settings, location.directory, 1, tmp_path) == packed(rows)


def test_an_error_of_the_users_function_is_told(spark: Any, settings: Configuration, bucket: str) -> None:
    def wrong(_: TaskState, __: Iterator[Any]) -> None:
        raise ValueError("no such currency: XYZ")

    base = f"s3://{bucket}/job"
    with pytest.raises(BackendError, match="ValueError: no such currency: XYZ") as caught:
        checkpoint(spark, frame(spark, sums(0, 10)), wrong, base, 1, key="key", parallelism=1, configuration=settings)
    assert "\n" not in str(caught.value)
    with CheckpointStore(settings) as store:
        assert store.latest(base) is None


def test_a_checkpoint_needs_every_subtask(settings: Configuration, bucket: str, tmp_path: Any) -> None:
    location = CheckpointLocation(f"s3://{bucket}/job", 1)
    with open_state(None, 0, 2, settings, max_parallelism=MAX_PARALLELISM, root=tmp_path) as state:
        handle = state.snapshot_to(location).handle
    common: dict[str, Any] = {"configuration": settings, "parallelism": 2, "max_parallelism": MAX_PARALLELISM}
    with pytest.raises(CheckpointError, match="1 snapshots do not make up 2 subtasks"):
        complete_checkpoint(location, [encode_snapshot(handle, 2)], **common)
    with CheckpointStore(settings) as store:
        assert not store.objects.exists(location.metadata)


def test_a_coordinator_completes_subsumes_and_starts_full_from_anothers_checkpoint(
    spark: Any, settings: Configuration, bucket: str, tmp_path: Any
) -> None:
    base, other = f"s3://{bucket}/coordinated", f"s3://{bucket}/other"
    common: dict[str, Any] = {"key": "key", "max_parallelism": MAX_PARALLELISM, "configuration": settings}
    first, second, third = sums(0, 3000), sums(2900, 3100, each=2), sums(0, 50)

    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    checkpoint(spark, frame(spark, first), begin, other, 4, parallelism=1, **common)
    with CheckpointStore(settings) as store:
        coordinator = Coordinator(base, store)
        coordinator.start()
        restored = coordinator.restore(f"{other}/chk-4", ClaimMode.NO_CLAIM)
        one = coordinated_checkpoint(
            spark, frame(spark, second), add, coordinator, parallelism=2, previous=restored, **common
        )
        two = coordinated_checkpoint(spark, frame(spark, third), add, coordinator, parallelism=2, **common)
        with pytest.raises(BackendError, match="ZeroDivisionError"):
            coordinated_checkpoint(spark, frame(spark, third), fail, coordinator, parallelism=2, **common)
        coordinator.close()
        assert [each.checkpoint_id for each in store.list(base)] == [two.location.checkpoint_id]
        assert [each.checkpoint_id for each in store.list(other)] == [4]
    assert one.bytes_uploaded > two.bytes_uploaded
    assert values(settings, str(two.location), 1, tmp_path) == packed(first, second, third)


def objects_below(store: CheckpointStore, base: str) -> set[str]:
    return {each.uri for each in store.objects.list(base + "/")}


@pytest.mark.parametrize("mode", ClaimMode)
def test_the_claim_mode_decides_about_a_foreign_checkpoints_files(
    spark: Any, settings: Configuration, bucket: str, tmp_path: Any, mode: ClaimMode
) -> None:
    base, other = f"s3://{bucket}/claiming", f"s3://{bucket}/claimed"
    common: dict[str, Any] = {"key": "key", "max_parallelism": MAX_PARALLELISM, "configuration": settings}
    first, second, third = sums(0, 3000), sums(2900, 3100, each=2), sums(0, 50)

    def rewrite(state: TaskState, batches: Iterator[Any]) -> None:
        add(state, batches)
        state.compact()

    state_bytes = checkpoint(spark, frame(spark, first), begin, other, 4, parallelism=1, **common).bytes
    with CheckpointStore(settings) as store:
        shared = {each for each in objects_below(store, other) if "/shared/" in each}
        coordinator = Coordinator(base, store, background_deletes=False)
        coordinator.start()
        restored = coordinator.restore(f"{other}/chk-4", mode)
        restore(spark, str(restored.location), 1, configuration=settings, claim=mode.name)
        one = coordinated_checkpoint(
            spark, frame(spark, second), add, coordinator, parallelism=1, previous=restored, **common
        )
        newest = coordinator.latest
        assert newest is not None
        named = {newest.location.resolve(file.handle).uri for file in newest.metadata.states[0].shared}
        assert (named >= shared, bool(named & shared)) == (
            (False, False) if mode is ClaimMode.NO_CLAIM else (True, True)
        )
        assert (one.bytes_uploaded > state_bytes) == (mode is ClaimMode.NO_CLAIM)
        assert newest.metadata.kind == ("full" if mode is ClaimMode.NO_CLAIM else "incremental")
        assert objects_below(store, other) >= shared, "the new checkpoint still needs them"
        two = coordinated_checkpoint(spark, frame(spark, third), rewrite, coordinator, parallelism=1, **common)
        coordinator.close()
        left = objects_below(store, other)
        assert left >= {*shared, f"{other}/chk-4/_metadata"} if mode is not ClaimMode.CLAIM else not left
    assert values(settings, str(two.location), 1, tmp_path) == packed(first, second, third)


def test_a_foreign_checkpoint_that_no_coordinator_restored_is_not_referenced(
    spark: Any, settings: Configuration, bucket: str
) -> None:
    common: dict[str, Any] = {"key": "key", "max_parallelism": MAX_PARALLELISM, "configuration": settings}
    base, other = f"s3://{bucket}/job", f"s3://{bucket}/other"
    checkpoint(spark, frame(spark, sums(0, 500)), begin, other, 1, parallelism=1, **common)
    with CheckpointStore(settings) as store:
        owner, taker = Coordinator(other, store), Coordinator(base, store)
        foreign = owner.start()
        taker.start()
        coordinated_checkpoint(spark, frame(spark, sums(0, 5)), add, taker, parallelism=1, previous=foreign, **common)
        newest = taker.latest
        assert newest is not None
        files = newest.metadata.states[0].shared
        assert files
        assert all(newest.location.resolve(file.handle).uri.startswith(base) for file in files)
        owner.close()
        taker.close()
