"""How often and how long is tried again, whatever the server does; and that all of a bucket wait together."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statelift.backends.closeables import CloseableRegistry
from statelift.backends.errors import AccessDenied, ConnectionFailed, CopyFailed, StalledTransfer, Throttled
from statelift.backends.options import Configuration
from statelift.backends.request import CopyRequest
from statelift.backends.wire import WireFileSystem
from statelift.backends.wire.retry import WORTH, Budget, Throttle
from statelift.transfer.demo.s3_server import S3Server

from ..servers import fault_actions as actions
from ..servers.fault import FaultServer, Rule

MIB = 1 << 20
RESET = ConnectionFailed("reset")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr("statelift.backends.wire.retry.time.monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_failures_without_progress_are_counted(retries: int) -> None:
    budget = Budget(retries, 60)
    delays = [budget.delay(RESET) for _ in range(retries + 1)]
    assert delays[-1] is None
    assert all(delay is not None and 0 < delay <= 5 for delay in delays[:-1])


def test_a_permanent_error_is_not_tried_again() -> None:
    assert Budget(3, 60).delay(AccessDenied("no")) is None


def test_progress_of_a_few_bytes_renews_nothing() -> None:
    budget = Budget(3, 60)
    for attempt in range(4):
        budget.progressed(100)
        assert (budget.delay(RESET) is None) == (attempt == 3)


def test_worthwhile_progress_begins_a_new_row_and_each_asks_for_more() -> None:
    budget = Budget(1, 60)
    assert budget.delay(RESET) is not None
    budget.progressed(WORTH)
    assert budget.delay(RESET) is not None
    budget.progressed(WORTH)
    assert budget.delay(RESET) is None


def test_time_ends_a_row_however_few_its_failures(clock: list[float]) -> None:
    budget = Budget(100, 60)
    assert budget.delay(RESET) is not None
    clock[0] += 59
    assert budget.delay(StalledTransfer("stood still")) is not None
    clock[0] += 2
    assert budget.delay(RESET) is None


def test_a_failure_long_after_another_has_time_of_its_own(clock: list[float]) -> None:
    budget = Budget(3, 60)
    assert budget.delay(RESET) is not None
    clock[0] += 600
    budget.progressed(100 * MIB)
    assert budget.delay(RESET) is not None


def test_a_store_that_asks_to_slow_down_is_asked_more_often() -> None:
    budget = Budget(2, 60)
    assert [budget.delay(Throttled("slow down")) is None for _ in range(7)] == [False] * 6 + [True]


@given(
    st.integers(0, 5),
    st.integers(1, 64 * MIB),
    st.lists(st.tuples(st.integers(0, 8 * MIB), st.sampled_from([RESET, Throttled("slow")])), max_size=200),
)
@settings(deadline=None)
def test_attempts_are_bounded_by_the_size_of_the_part(
    retries: int, size: int, history: list[tuple[int, ConnectionFailed | Throttled]]
) -> None:
    """Whatever moves between failures: a part of ``size`` bytes has few rows, and each few attempts."""
    budget, left, granted = Budget(retries, 1e9), size, 0
    for moved, error in history:
        budget.progressed(min(moved, left))
        left -= min(moved, left)
        if budget.delay(error) is None:
            break
        granted += 1
    rows = math.floor(math.log2(size / WORTH + 1)) + 1
    assert granted <= rows * retries * 4


@given(st.integers(0, 4), st.lists(st.integers(0, WORTH - 1), min_size=6, max_size=6))
@settings(deadline=None)
def test_less_than_is_worth_it_never_buys_an_attempt(retries: int, moves: list[int]) -> None:
    budget, granted = Budget(retries, 60), 0
    for moved in moves:
        budget.progressed(moved * WORTH // max(1, sum(moves)) // 2)
        if budget.delay(RESET) is None:
            break
        granted += 1
    assert granted == retries


def test_a_throttle_holds_the_longest_pause_and_ends(clock: list[float]) -> None:
    throttle = Throttle()
    assert throttle.pause() == 0
    throttle.slow_down(0.5, retry_after=3.0)
    throttle.slow_down(0.5)
    assert 3.0 <= throttle.pause() <= 3.2
    clock[0] += 3.1
    assert throttle.pause() == 0
    throttle.slow_down(0.5, retry_after=1e9)
    assert throttle.pause() <= 30.2


@pytest.mark.parametrize("size", [300_000, 3 * MIB], ids=["small", "larger than is worth a row"])
@pytest.mark.parametrize("retries", [0, 2])
def test_a_server_that_resets_after_a_few_bytes_is_given_up(
    s3: S3Server, bucket: str, tmp_path: Path, retries: int, size: int
) -> None:
    (s3.root / bucket / "key").write_bytes(random.randbytes(size))
    with FaultServer(s3.endpoint) as server:
        server.add(Rule("GET *", actions.reset(after=100), times=None))
        options = {**s3.options, "s3.endpoint": server.endpoint, "transfer.retries": retries}
        file_system = WireFileSystem(Configuration(options, environ={}))
        request = CopyRequest(f"s3://{bucket}/key", str(tmp_path / "to" / "file"), size=size)
        with pytest.raises(CopyFailed) as caught:
            file_system.copy_files([request], CloseableRegistry())
        file_system.close()
    assert isinstance(caught.value.errors[0], ConnectionFailed)
    assert len(server.requests) == retries + 1
    # Each attempt went on where the one before had ended.
    assert len({each.range for each in server.requests}) == retries + 1


def test_a_server_that_brings_much_before_each_reset_is_used_to_the_end(
    s3: S3Server, bucket: str, tmp_path: Path
) -> None:
    data = random.randbytes(6 * MIB)
    (s3.root / bucket / "key").write_bytes(data)
    with FaultServer(s3.endpoint) as server:
        server.add(Rule("GET *", actions.reset(after=2 * MIB), times=2))
        options = {**s3.options, "s3.endpoint": server.endpoint, "transfer.retries": 1}
        file_system = WireFileSystem(Configuration(options, environ={}))
        request = CopyRequest(f"s3://{bucket}/key", str(tmp_path / "file"), size=len(data))
        file_system.copy_files([request], CloseableRegistry())
        file_system.close()
    assert (tmp_path / "file").read_bytes() == data
    assert len(server.requests) == 3
