"""No multipart upload outlives the process that began it, however that ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from statelift.backends.closeables import CloseableRegistry
from statelift.backends.errors import CopyFailed
from statelift.backends.options import Configuration
from statelift.backends.request import CopyRequest
from statelift.backends.s3_access import S3Access
from statelift.backends.s3_options import S3Options
from statelift.backends.wire import WireFileSystem
from statelift.backends.wire.journal import Journal, abandoned

CHILD = """
import json, sys, time
from statelift.backends.closeables import CloseableRegistry
from statelift.backends.options import Configuration
from statelift.backends.request import CopyRequest
from statelift.backends.wire import WireFileSystem
options, source, destination = json.loads(sys.argv[1])
def moved(request, count):
    print("moved", flush=True)
    time.sleep(60)
WireFileSystem(Configuration(options, environ={})).copy_files(
    [CopyRequest(source, destination)], CloseableRegistry(), progress=moved)
"""


def uploads(configuration: Configuration, bucket: str) -> list[dict[str, Any]]:
    access = S3Access(configuration.of(S3Options))
    found = access.client().list_multipart_uploads(Bucket=bucket).get("Uploads", [])
    access.close()
    return list(found)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "large"
    path.write_bytes(os.urandom(1 << 20) * 12)
    return path


def test_the_next_start_aborts_what_a_killed_process_left(
    moto_s3: Any, moto_bucket: str, tmp_path: Path, large: Path
) -> None:
    import json

    options = {**moto_s3.options, "wire.part-size": "5mb", "wire.state-directory": str(tmp_path / "journal")}
    configuration = Configuration(options, environ={})
    given = json.dumps([options, str(large), f"s3://{moto_bucket}/killed"])
    child = subprocess.Popen([sys.executable, "-c", CHILD, given], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"moved\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert [each["Key"] for each in uploads(configuration, moto_bucket)] == ["killed"]
    file_system = WireFileSystem(configuration)
    file_system.copy_files([CopyRequest(str(large), f"s3://{moto_bucket}/next")], CloseableRegistry())
    file_system.close()
    assert uploads(configuration, moto_bucket) == []
    assert list((tmp_path / "journal" / "uploads").iterdir()) == []


def test_a_failed_upload_is_aborted_at_once(
    moto_configuration: Configuration, moto_bucket: str, tmp_path: Path, large: Path
) -> None:
    configuration = moto_configuration.with_arguments(
        {"wire.part-size": "5mb", "wire.state-directory": str(tmp_path / "journal")}
    )
    file_system = WireFileSystem(configuration)
    with pytest.raises(CopyFailed):
        file_system.copy_files([CopyRequest(str(large), f"s3://{moto_bucket}/wrong", crc64nvme=1)], CloseableRegistry())
    file_system.close()
    assert uploads(configuration, moto_bucket) == []


def test_a_journal_is_its_process_s_while_it_lives(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "store")
    ended = journal.intend("b", "done")
    journal.began(ended, "1")
    journal.ended(ended)
    journal.intend("b", "unknown")
    journal.began(journal.intend("b", "known"), "2")
    with abandoned(tmp_path, "store") as found:
        assert found == {}
    journal.close()
    with (next(iter(tmp_path.iterdir()))).open("a") as file:
        file.write('{"n": 7, "buck')
    with abandoned(tmp_path, "other") as found:
        assert found == {}
    with abandoned(tmp_path, "store") as found:
        ((_, orphans),) = found.items()
    assert [(each.key, each.upload_id) for each in orphans] == [("unknown", None), ("known", "2")]
    assert all(abs(each.since - time.time()) < 60 for each in orphans)
