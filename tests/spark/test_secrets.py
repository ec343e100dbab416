from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import psutil
import pytest

from statelift.backends.errors import OptionError, UsageError
from statelift.backends.options import Configuration
from statelift.backends.s3_options import S3Options
from statelift.transfer.demo.s3_server import S3Server
from statelift.transfer.spark import open_state, options_from, restore

from .conftest import Saved

pytestmark = pytest.mark.spark


def _command_lines(spark: Any) -> list[str]:
    """Of the driver's Java process, the executors and their Python workers."""
    driver = psutil.Process(spark.sparkContext._gateway.proc.pid)
    found: list[str] = []
    for process in (driver, *driver.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            found += process.cmdline()
    return found


def test_secrets_reach_the_tasks_and_nothing_else(
    spark: Any, saved: Saved, settings: Configuration, s3: S3Server, event_log: Path
) -> None:
    from pyspark import cloudpickle

    uri, secret = saved.uri, s3.secret_key.encode()

    def read(_: Any) -> Any:
        with open_state(uri, 0, 1, settings) as state:
            yield os.environ["STATELIFT_S3_SECRET_KEY"], state.count()

    rows = restore(spark, uri, 1, configuration=settings).collect()
    assert len(rows) == 1
    found = spark.sparkContext.parallelize([0], 1).mapPartitions(read).collect()
    assert found == [(s3.secret_key, len(saved.rows))]
    assert secret not in cloudpickle.dumps(read)
    words = _command_lines(spark)
    assert any("pyspark.daemon" in word for word in words)
    assert not [word for word in words if s3.secret_key in word]
    logs = [path.read_bytes() for path in event_log.rglob("*") if path.is_file()]
    assert any(b"SparkListenerTaskEnd" in log for log in logs)
    assert not [log for log in logs if secret in log]


def test_options_come_from_the_session(spark: Any, local_dir: str) -> None:
    conf = {
        "spark.statelift.s3.endpoint": "http://ours:9000",
        "spark.hadoop.fs.s3a.endpoint": "http://theirs:9000",
        "spark.hadoop.fs.s3a.endpoint.region": "eu-north-1",
    }
    for key, value in conf.items():
        spark.conf.set(key, value)
    try:
        options = options_from(spark, **{"s3.path-style-access": False}).of(S3Options)
    finally:
        for key in conf:
            spark.conf.unset(key)
    assert (options.endpoint, options.region, options.path_style) == ("http://ours:9000", "eu-north-1", False)


def test_an_unknown_key_of_the_session_is_refused(spark: Any) -> None:
    spark.conf.set("spark.statelift.s3.endpiont", "http://localhost:9000")
    try:
        with pytest.raises(OptionError, match=r"did you mean spark\.statelift\.s3\.endpoint"):
            options_from(spark)
    finally:
        spark.conf.unset("spark.statelift.s3.endpiont")


def test_a_connect_session_is_refused_with_the_remedy() -> None:
    from pyspark.errors import PySparkAttributeError

    class Connect:
        """As ``pyspark.sql.connect.session.SparkSession``, whose package is not installed here."""

        @property
        def sparkContext(self) -> Any:
            raise PySparkAttributeError(
                errorClass="JVM_ATTRIBUTE_NOT_SUPPORTED", messageParameters={"attr_name": "sparkContext"}
            )

    with pytest.raises(UsageError, match="Spark Connect"):
        options_from(Connect())  # type: ignore[arg-type]
