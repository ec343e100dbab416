"""One real cluster for all Spark tests, and a checkpoint to restore."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from statelift.backends.options import Configuration
from statelift.transfer.checkpoint.layout import CheckpointLocation
from statelift.transfer.demo.cluster import local_cluster
from statelift.transfer.demo.s3_server import S3Server
from statelift.transfer.file_systems import load_declarations
from statelift.transfer.spark import complete_checkpoint, encode_snapshot, open_state

MAX_PARALLELISM = 16
ROWS = 4000

load_declarations()


@pytest.fixture(scope="session")
def cluster_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="session")
def event_log(cluster_directory: Path) -> Path:
    directory = cluster_directory / "events"
    directory.mkdir()
    return directory


@pytest.fixture(scope="session")
def spark(cluster_directory: Path, event_log: Path) -> Iterator[Any]:
    """A session on two executors of two cores."""
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": event_log.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.sql.shuffle.partitions": "2",
    }
    with local_cluster(cluster_directory, master="local-cluster[2,2,1024]", conf=conf) as session:
        yield session


@pytest.fixture
def local_dir() -> str:
    """A directory for restored state that no other test has used, below each executor's own."""
    return f"state-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def settings(configuration: Configuration, local_dir: str) -> Configuration:
    """Reaches `s3`; SST files are not inlined, however small."""
    return configuration.with_arguments(
        {"state.local-dir": local_dir, "state.inline-threshold": "0", "state.rocksdb.compression": "none"}
    )


@dataclass(frozen=True)
class Saved:
    """A checkpoint at parallelism 1, and the rows in it."""

    uri: str
    base: str
    rows: dict[bytes, bytes]
    objects: Path


def save(configuration: Configuration, bucket: str, root: Path, disk: Path) -> Saved:
    rows = {b"key-%06d" % number: os.urandom(256) for number in range(ROWS)}
    location = CheckpointLocation(f"s3://{bucket}/job", 1)
    with open_state(None, 0, 1, configuration, max_parallelism=MAX_PARALLELISM, root=disk) as state:
        for key, value in rows.items():
            state.put(key, value)
        handle = state.snapshot_to(location).handle
    complete_checkpoint(
        location,
        [encode_snapshot(handle, 1)],
        configuration=configuration,
        parallelism=1,
        max_parallelism=MAX_PARALLELISM,
    )
    return Saved(location.directory, location.base, rows, root / bucket / "job")


@pytest.fixture
def saved(settings: Configuration, bucket: str, s3: S3Server, tmp_path: Path) -> Saved:
    return save(settings, bucket, s3.root, tmp_path / "disk")
