"""Requests grow where a store works long for each, and only there; every byte arrives either way."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statelift.backends.checksums import crc64nvme
from statelift.backends.closeables import CloseableRegistry
from statelift.backends.options import Configuration
from statelift.backends.request import CopyRequest
from statelift.backends.wire import WireFileSystem
from statelift.backends.wire.range_size import RangeSize
from statelift.transfer.demo.s3_server import S3Server
from statelift.transfer.objects import Objects

from ..servers import fault_actions as actions
from ..servers.fault import FaultServer, Rule

PART = 5 << 20
MIB = 1 << 20
SECONDS = st.floats(0.0, 100.0)


def test_it_balances_waiting_and_receiving() -> None:
    size = RangeSize(8 * MIB)
    size.answered(8 * MIB, waited=0.4, received=0.1)
    assert size.bytes == 8 * MIB, "one answer is no evidence"
    size.answered(8 * MIB, waited=0.4, received=0.1)
    assert size.bytes == 32 * MIB


def test_a_store_that_begins_soon_is_asked_for_parts() -> None:
    size = RangeSize(8 * MIB)
    for _ in range(100):
        size.answered(8 * MIB, waited=0.03, received=0.08)
    assert size.bytes == 8 * MIB


@given(st.lists(st.tuples(st.integers(0, 1 << 40), SECONDS, SECONDS)))
def test_it_only_grows_and_has_a_limit(answers: list[tuple[int, float, float]]) -> None:
    size, before = RangeSize(PART), PART
    for count, waited, received in answers:
        size.answered(count, waited, received)
        assert before <= size.bytes <= 32 * PART
        before = size.bytes


@pytest.mark.timeout(60)
@pytest.mark.parametrize("fault", [None, actions.reset(after=PART + 1000), actions.flip(PART + 7)])
def test_ranges_are_joined_at_a_slow_store(
    s3: S3Server, bucket: str, configuration: Configuration, tmp_path: Path, fault
) -> None:
    data = random.Random(1).randbytes(30 * PART + 77)
    with Objects(configuration) as objects:
        objects.write(f"s3://{bucket}/large", data)
    with FaultServer(s3.endpoint) as server:
        options = {"s3.endpoint": server.endpoint, "wire.part-size": PART, "s3.connection.max": 2}
        wire = WireFileSystem(configuration.with_arguments(options))
        server.add(Rule("GET */large*", actions.delay(0.7), times=2))
        if fault is not None:
            server.add(Rule("GET */large*", fault, after=3))
        request = CopyRequest(f"s3://{bucket}/large", str(tmp_path / "x"), len(data), crc64nvme=crc64nvme(data))
        wire.copy_files([request], CloseableRegistry())
        wire.close()
        sizes = [each.range for each in server.requests]
    assert (tmp_path / "x").read_bytes() == data
    assert len(sizes) < 20, sizes
