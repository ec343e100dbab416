"""Options from a Spark session: resolved once on the driver, found again without secrets on executors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...backends.errors import UsageError
from ...backends.options import Configuration, OptionGroup, option
from ..file_systems import load_declarations

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError("must be at least 1")
    return value


@dataclass(frozen=True, kw_only=True)
class LocalStateOptions(OptionGroup):
    """Options ``state.local-*``: where an executor keeps the state it has restored."""

    directory: Path = option(
        "state.local-dir",
        Path("statelift"),
        parse=Path,
        help="Directory for restored state; a relative one is below the executor's own directory and gone with it.",
    )
    versions: int = option(
        "state.local-versions", 2, parse=_positive, help="Restored checkpoints kept per range of key groups."
    )


def spark_context(spark: SparkSession) -> SparkContext:
    """The session's context.

    Raises:
        UsageError: the session is a Spark Connect client, which has none.
    """
    from pyspark.errors import PySparkException

    try:
        return spark.sparkContext
    except (AttributeError, PySparkException) as error:
        raise UsageError(
            "a Spark Connect session has no SparkContext, through which tasks get their secrets",
            remedy="run the driver program in a classic session: SparkSession.builder.master(...)",
        ) from error


def options_from(spark: SparkSession, **arguments: object) -> Configuration:
    """The configuration of a session, for use on the driver and, pickled, in its tasks.

    Sources, first wins: ``arguments`` (dotted keys, given as ``**{"s3.endpoint": ...}``), the
    Spark conf's ``spark.statelift.<key>``, its ``spark.hadoop.fs.s3a.*``, the driver's environment.

    Secrets that are set in any of them travel to the Python workers of this session's later jobs as
    environment variables (`SparkContext.environment`): not in the pickle, not in a command line,
    not in the event log.

    Raises:
        OptionError: a key that no option has.
        UsageError: a Spark Connect session.
    """
    load_declarations()
    context = spark_context(spark)
    configuration = Configuration(arguments, spark=_conf(spark, context))
    share_secrets(spark, configuration)
    return configuration


def share_secrets(spark: SparkSession, configuration: Configuration) -> None:
    """Give a configuration's secrets to the Python workers of this session's later jobs."""
    spark_context(spark).environment.update(configuration.secrets())


def _conf(spark: SparkSession, context: SparkContext) -> Mapping[str, str]:
    """The context's conf, and over it what was set in the session since."""
    session = spark.conf.getAll
    return {**dict(context.getConf().getAll()), **(session() if callable(session) else session)}
