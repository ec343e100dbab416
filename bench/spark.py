"""Recovery through Spark on two single-core executors, and by Spark's own RocksDB state store."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import job_state, recovery
from .data import size_text
from .job_state import VALUE
from .moto import moto_server
from .programs import find_s5cmd
from .sample import Recorder, Sample, Skipped
from .servers import BUCKET, REGION, Server, Servers
from .settings import Settings

PART = "spark"
_TIMEOUT = 600
OWN = "Spark's own state store"


def measure(settings: Settings, recorder: Recorder, servers: Servers) -> None:
    if shutil.which(os.path.join(os.environ.get("JAVA_HOME", ""), "bin", "java")) is None and not shutil.which("java"):
        recorder.skipped(Skipped(PART, "through Spark", "all", "Java is not installed"))
        return
    with servers.serving() as server:
        _through_spark(settings, recorder, server)
    _own_store(settings, recorder, f"{OWN}, local directory", {})
    _own_store_on_s3(settings, recorder)


def _through_spark(settings: Settings, recorder: Recorder, server: Server) -> None:
    scenario = f"1 to 2 on two executors, {size_text(settings.spark_bytes)} of state"
    job = job_state.build(server.bucket, settings.scratch, size=settings.spark_bytes, parallelism=1)
    orders: dict[str, Any] = {
        "what": "through_spark",
        "scratch": str(_scratch(settings)),
        "methods": recovery.available(scenario, recorder),
        "rounds": settings.few_rounds,
        "checkpoint": f"s3://{BUCKET}/{job.checkpoint}",
        "parallelism": 2,
        "s5cmd": find_s5cmd(),
    }
    for found in _session(orders, settings, server.environment(), scenario, recorder):
        recorder.sample(_sample(scenario, found, settings.spark_bytes))


def _own_store(settings: Settings, recorder: Recorder, name: str, more: dict[str, Any]) -> None:
    orders = {
        "what": "own_store",
        "scratch": str(_scratch(settings)),
        "rows": settings.spark_bytes // VALUE,
        "value": VALUE,
        "rounds": settings.few_rounds,
        "name": name,
        **more,
    }
    scenario = _own_scenario(settings)
    for found in _session(orders, settings, dict(os.environ), scenario, recorder):
        recorder.sample(_sample(scenario, found, settings.spark_bytes))


def _own_scenario(settings: Settings) -> str:
    return f"1 to 1 in one process, {size_text(settings.spark_bytes)} of state"


def _own_store_on_s3(settings: Settings, recorder: Recorder) -> None:
    name = f"{OWN}, S3A"
    reason = _no_s3a(settings)
    if reason:
        recorder.skipped(Skipped(PART, _own_scenario(settings), name, reason))
        return
    with moto_server(settings.scratch / "moto", cpu=settings.server_cpu) as server:
        conf = {
            "spark.jars.packages": f"org.apache.hadoop:hadoop-aws:{_hadoop_version()}",
            "spark.hadoop.fs.s3a.endpoint": server.endpoint,
            "spark.hadoop.fs.s3a.endpoint.region": REGION,
            "spark.hadoop.fs.s3a.access.key": server.access_key,
            "spark.hadoop.fs.s3a.secret.key": server.secret_key,
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.connection.expect.continue": "false",
        }
        _own_store(settings, recorder, name, {"conf": conf, "location": f"s3a://{BUCKET}/own-checkpoint"})


def _no_s3a(settings: Settings) -> str | None:
    if not settings.s3a and not _has_hadoop_aws():
        return "hadoop-aws is not there; python -m statelift.bench --s3a fetches it, 0.7 GB, from Maven Central"
    return None if importlib.util.find_spec("moto") else "moto is not installed"


def _has_hadoop_aws() -> bool:
    """Whether an earlier ``--s3a`` left it in Ivy's cache, where Spark looks first."""
    return any(Path.home().glob(f".ivy2*/jars/org.apache.hadoop_hadoop-aws-{_hadoop_version()}.jar"))


def _hadoop_version() -> str:
    """The version of the Hadoop client that this PySpark brings."""
    spec = importlib.util.find_spec("pyspark")
    places = spec.submodule_search_locations or () if spec else ()
    jars = (jar for place in places for jar in Path(place, "jars").glob("hadoop-client-api-*.jar"))
    return next((jar.stem.removeprefix("hadoop-client-api-") for jar in jars), "3.4.1")


def _scratch(settings: Settings) -> Path:
    path = settings.scratch / "spark"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    return path


def _sample(scenario: str, found: dict[str, Any], size: int) -> Sample:
    return Sample(
        PART,
        scenario,
        found["method"],
        found["round"],
        bytes=size,
        wall=round(found.get("wall", 0.0), 3),
        user=round(found.get("cpu", 0.0), 3),
        received=int(found.get("bytes", 0)),
        failed=found.get("failed"),
    )


def _session(
    orders: dict[str, Any], settings: Settings, environment: dict[str, str], scenario: str, recorder: Recorder
) -> Iterator[dict[str, Any]]:
    """The results that a session prints, as they come."""
    path = settings.scratch / "orders.json"
    path.write_text(json.dumps(orders))
    kept = {name: os.environ[name] for name in ("JAVA_HOME", "HOME") if name in os.environ}
    child = subprocess.Popen(
        [sys.executable, "-m", "statelift.bench.spark_session", str(path)],
        env={**environment, **kept},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, err = child.communicate(timeout=_TIMEOUT)
    except subprocess.TimeoutExpired:
        child.terminate()
        out, err = child.communicate()
    yield from (json.loads(line) for line in out.splitlines() if line.startswith("{"))
    if child.returncode:
        reason = (err.strip().splitlines() or ["no word"])[-1]
        recorder.skipped(Skipped(PART, scenario, "the session", f"ended with {child.returncode}: {reason[:200]}"))
