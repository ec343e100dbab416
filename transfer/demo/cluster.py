"""A small real Spark cluster on this machine, for the demo and the tests, that leaves nothing behind.

``local-cluster`` starts a master, workers and executors as processes of their own. Spark keeps
their directories below ``SPARK_HOME``; here that is a directory of links to the installed one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...backends.errors import BackendUnavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER = "local-cluster[2,1,1024]"
_EXIT_TIMEOUT = 20.0

_CONF = {
    "spark.executor.memory": "700m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    # Short jobs on few cores: the second compiler and the parallel collector cost more than they save.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    # A session keeps its classes in a directory of the working directory otherwise.
    "spark.sql.artifact.isolation.enabled": "false",
}


@contextmanager
def local_cluster(
    directory: Path, *, master: str = MASTER, conf: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A Spark session on a cluster of this machine, until the block ends.

    Args:
        directory: for everything that Spark writes; the caller removes it.
        conf: further configuration.

    Raises:
        BackendUnavailable: PySpark or Java is missing, or Spark does not start; its last lines are told.
    """
    _require_java()
    home = _linked_home(directory / "spark")
    (directory / "tmp").mkdir()
    everything = {
        **_CONF,
        **_all_executors(master),
        "spark.executorEnv.TMPDIR": str(directory / "tmp"),
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        **(conf or {}),
    }
    environment = {
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(directory / "local"),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    with warnings.catch_warnings():
        # PySpark 4 warns of pandas 3, once per use.
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"pyspark\..*")
        with _environment(environment):
            gateway = _launch(directory / "spark.log", master, everything)
        try:
            with _environment(environment):
                session = _session(gateway, master, everything)
            yield session
        finally:
            _stop(gateway)


def _all_executors(master: str) -> dict[str, str]:
    """Have the first job wait for every executor: else the early one gets all tasks."""
    if not master.startswith("local-cluster["):
        return {}
    executors, cores, _ = (int(each) for each in master.removeprefix("local-cluster[").rstrip("]").split(","))
    return {"spark.cores.max": str(executors * cores), "spark.scheduler.minRegisteredResourcesRatio": "1.0"}


def _require_java() -> None:
    try:
        import pyspark  # noqa: F401
    except ImportError as error:
        raise BackendUnavailable("PySpark is not installed", remedy="pip install 'statelift[demo]'") from error
    home = os.environ.get("JAVA_HOME")
    program = os.path.join(home, "bin", "java") if home else "java"
    if shutil.which(program) is None:
        raise BackendUnavailable(
            f"Java is not there: {program} does not run",
            remedy="install Java 17 (Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME",
        )


def _linked_home(home: Path) -> Path:
    """A Spark home whose ``work`` directory is ours."""
    from pyspark.find_spark_home import _find_spark_home

    home.mkdir(parents=True)
    for entry in os.scandir(_find_spark_home()):
        if entry.name != "work":
            (home / entry.name).symlink_to(entry.path)
    return home


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _launch(log: Path, master: str, conf: Mapping[str, str]) -> Any:
    from pyspark import SparkConf
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    spark_conf = SparkConf(loadDefaults=False).setMaster(master).setAll(list(conf.items()))
    with log.open("wb") as output:
        try:
            return launch_gateway(conf=spark_conf, popen_kwargs={"stdout": output, "stderr": output})
        except PySparkRuntimeError as error:
            raise _did_not_start(log) from error


def _did_not_start(log: Path) -> BackendUnavailable:
    tail = log.read_text(errors="replace")[-800:].strip()
    return BackendUnavailable(f"Spark did not start: {tail}", remedy="Spark 4 needs Java 17 or later")


def _session(gateway: Any, master: str, conf: Mapping[str, str]) -> SparkSession:
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    jvm_conf = SparkConf(_jvm=gateway.jvm).setMaster(master).setAppName("statelift").setAll(list(conf.items()))
    return SparkSession(SparkContext(conf=jvm_conf, gateway=gateway))


def _stop(gateway: Any) -> None:
    """Stop the session, the gateway and its Java process, and wait until the process has gone.

    After an interrupted call any of it may fail, except that Java ends when its standard input
    does. Executors end with it: they are its children.
    """
    import psutil
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    process: subprocess.Popen[bytes] = gateway.proc
    executors = psutil.Process(process.pid).children(recursive=True)
    context = SparkContext._active_spark_context
    for stop in (context.stop if context else None, gateway.shutdown, process.stdin.close if process.stdin else None):
        with contextlib.suppress(Exception):
            if stop:
                stop()
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None
    try:
        process.wait(_EXIT_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    _, alive = psutil.wait_procs(executors, _EXIT_TIMEOUT)
    for each in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
