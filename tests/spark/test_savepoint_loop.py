"""A Spark driver whose loop takes coordinated checkpoints, stopped with a savepoint over HTTP and resumed from it."""

from __future__ import annotations

import json
import time
import urllib.request
from typing import Any

import pytest

from statelift.backends.options import Configuration
from statelift.transfer.checkpoint.coordinator import Coordinator
from statelift.transfer.checkpoint.store import CheckpointStore
from statelift.transfer.demo.events import add, begin
from statelift.transfer.savepoint.job import Ending
from statelift.transfer.savepoint.loop import CheckpointLoop
from statelift.transfer.savepoint.service import SavepointService
from statelift.transfer.spark import coordinated_checkpoint

from .test_job import MAX_PARALLELISM, frame, packed, sums, values

pytestmark = pytest.mark.spark


def stop(service: SavepointService) -> None:
    request = urllib.request.Request(
        f"{service.url}/jobs/billing/stop",
        data=json.dumps({"type": "native"}).encode(),
        headers={"Authorization": f"Bearer {service.token}"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 202


def wait_until_wanted(loop: CheckpointLoop) -> None:
    ends = time.monotonic() + 30
    while not loop.wanted:
        assert time.monotonic() < ends
        time.sleep(0.01)


def test_a_spark_loop_is_stopped_with_a_savepoint(
    spark: Any, settings: Configuration, bucket: str, tmp_path: Any
) -> None:
    directory = f"s3://{bucket}/savepoints"
    batches = [sums(0, 500), sums(400, 600), sums(0, 50, each=3)]
    rounds: list[Ending] = []
    with CheckpointStore(settings) as store:
        coordinator = Coordinator(f"s3://{bucket}/job", store)
        coordinator.start()
        loop = CheckpointLoop(coordinator, directory=directory, name="billing", configuration=settings)
        with loop.serving(lingers=0) as service:
            for ending in loop:
                if len(rounds) == 1:
                    stop(service)
                    wait_until_wanted(loop)
                coordinated_checkpoint(
                    spark,
                    frame(spark, batches[len(rounds)]),
                    add if rounds else begin,
                    coordinator,
                    key="key",
                    parallelism=2,
                    max_parallelism=MAX_PARALLELISM,
                    configuration=settings,
                )
                rounds.append(ending)
        coordinator.close()
        [savepoint] = store.others(directory)
    assert rounds[-1] is Ending.SUSPEND
    assert len(rounds) == 3, "who asks within a round gets the next one"
    assert values(settings, str(savepoint), 3, tmp_path) == packed(*batches)
