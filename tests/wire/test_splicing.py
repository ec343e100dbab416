"""Bytes that move within the kernel are the right ones, also after a reset; nothing verifies them."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from statelift.backends.closeables import CloseableRegistry
from statelift.backends.errors import CopyFailed, NoSpace
from statelift.backends.options import Configuration
from statelift.backends.request import CopyRequest
from statelift.backends.wire import WireFileSystem
from statelift.backends.wire.splicing import SUPPORTED
from statelift.transfer.demo.s3_server import S3Server

from ..servers.disks import small_disk
from ..servers.fault import FaultServer, Rule
from ..servers.fault_actions import reset

MIB = 1 << 20
pytestmark = pytest.mark.skipif(not SUPPORTED, reason="no splice here")
SPLICING = {"wire.splice": True, "transfer.verify": False, "wire.part-size": "5mb"}


def test_spliced_files_are_whole(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    data = {f"{size}": random.randbytes(size) for size in (0, 1, 100_000, 17 * MIB + 3)}
    for name, content in data.items():
        (s3.root / bucket / name).write_bytes(content)
    with FaultServer(s3.endpoint) as server:
        server.add(Rule("GET *", action=reset(after=70_000), times=2, after=1))
        file_system = WireFileSystem(Configuration({**s3.options, **SPLICING, "s3.endpoint": server.endpoint}))
        requests = [CopyRequest(f"s3://{bucket}/{name}", str(tmp_path / name)) for name in data]
        before = len(os.listdir("/dev/fd"))
        report = file_system.copy_files(requests, CloseableRegistry())
        file_system.close()
        # The server's own ends, in this process, close when their threads notice.
        deadline = time.monotonic() + 10
        while len(os.listdir("/dev/fd")) > before and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(os.listdir("/dev/fd")) <= before
    assert {file.verified for file in report.files} == {"size"}
    assert {name: (tmp_path / name).read_bytes() == content for name, content in data.items()} == dict.fromkeys(
        data, True
    )


def test_a_full_disk_is_the_disk_s_error(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    (s3.root / bucket / "k").write_bytes(bytes(8 * MIB))
    with small_disk(tmp_path / "small", 4 * MIB) as small:
        file_system = WireFileSystem(Configuration({**s3.options, **SPLICING}))
        with pytest.raises(CopyFailed) as caught:
            file_system.copy_files([CopyRequest(f"s3://{bucket}/k", str(small / "k"))], CloseableRegistry())
        file_system.close()
        assert isinstance(caught.value.errors[0], NoSpace)
        assert not os.listdir(small)
