"""Batches and cancellation: every request ends in exactly one way, and no worker outlives the call."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statelift.backends.batch import BatchPolicy, largest_first, run_batch
from statelift.backends.closeables import CloseableRegistry
from statelift.backends.errors import (
    BackendError,
    ConnectionFailed,
    CopyCancelled,
    CopyFailed,
    DeadlineExceeded,
    NoSpace,
    SourceNotFound,
    TransferError,
)
from statelift.backends.report import CopiedFile
from statelift.backends.request import CopyRequest


def requests(count: int) -> list[CopyRequest]:
    return [CopyRequest(f"s3://b/{n}", f"/nowhere/{n}", size=n) for n in range(count)]


def policy(**arguments: object) -> BatchPolicy:
    return BatchPolicy(**{"backend": "test", "workers": 3, **arguments})  # type: ignore[arg-type]


def done(request: CopyRequest, _: CloseableRegistry) -> CopiedFile:
    return CopiedFile(request, "test", request.expected or 0, 0.0)


outcomes = st.lists(st.sampled_from(["ok", "missing", "broken", "bug", "flaky"]), max_size=25)


@settings(deadline=None, max_examples=60)
@given(outcomes, st.booleans(), st.integers(1, 6))
def test_every_request_ends_in_exactly_one_way(kinds: list[str], fail_fast: bool, workers: int) -> None:
    batch = requests(len(kinds))
    tries: dict[str, int] = {}

    def copy_one(request: CopyRequest, registry: CloseableRegistry) -> CopiedFile:
        tries[request.source] = tries.get(request.source, 0) + 1
        match kinds[int(request.source.rpartition("/")[2])]:
            case "missing":
                raise SourceNotFound("missing")
            case "broken":
                raise BackendError("broken")
            case "bug":
                raise ZeroDivisionError
            case "flaky" if tries[request.source] == 1:
                raise BackendError("flaky", transient=True)
        return done(request, registry)

    before = threading.active_count()
    settled = policy(workers=workers, fail_fast=fail_fast, retries=1)
    failed: list[CopyRequest | None] = []
    try:
        finished = list(run_batch(batch, copy_one, settled, CloseableRegistry()).files)
    except CopyFailed as error:
        finished = list(error.done)
        failed = [each.request for each in error.errors]
        assert all(each.backend == "test" for each in error.errors)
    assert threading.active_count() == before
    ended = [file.request for file in finished] + failed
    assert len(ended) == len({id(each) for each in ended})
    bad = {"missing", "broken", "bug"}
    if not fail_fast or "missing" not in kinds:
        assert len(ended) == len(batch)
        assert len(failed) == sum(kind in bad for kind in kinds)
    elif "missing" in kinds:
        assert failed


def test_the_largest_go_first_and_the_unknown_before_them() -> None:
    unknown = CopyRequest("s3://b/u", "/u")
    assert [each.size for each in largest_first([*requests(3), unknown])] == [None, 2, 1, 0]


def test_one_slow_file_holds_back_no_other() -> None:
    release = threading.Event()

    def copy_one(request: CopyRequest, registry: CloseableRegistry) -> CopiedFile:
        if request.size == 9:
            assert release.wait(20), "the other eight waited for this one"
        elif request.size == 0:
            release.set()
        return done(request, registry)

    assert len(run_batch(requests(10), copy_one, policy(workers=2), CloseableRegistry()).files) == 10


def test_a_full_disk_ends_the_batch_even_without_fail_fast() -> None:
    ran = []

    def copy_one(request: CopyRequest, _: CloseableRegistry) -> CopiedFile:
        ran.append(request)
        raise NoSpace("full")

    with pytest.raises(CopyFailed) as caught:
        run_batch(requests(50), copy_one, policy(workers=1, fail_fast=False), CloseableRegistry())
    assert len(ran) == 1
    assert isinstance(caught.value.errors[0], NoSpace)


def test_a_transient_error_that_stays_is_the_files_error() -> None:
    tries = []

    def copy_one(request: CopyRequest, _: CloseableRegistry) -> CopiedFile:
        tries.append(request)
        raise ConnectionFailed("refused")

    with pytest.raises(CopyFailed, match="refused"):
        run_batch(requests(1), copy_one, policy(retries=2), CloseableRegistry())
    assert len(tries) == 3


def wait_for_the_end(request: CopyRequest, registry: CloseableRegistry) -> CopiedFile:
    registry.wait(60)
    return done(request, registry)


def test_a_deadline_fails_what_is_unfinished() -> None:
    begun = time.monotonic()
    with pytest.raises(CopyFailed) as caught:
        run_batch(requests(5), wait_for_the_end, policy(deadline=0.1998765), CloseableRegistry())
    assert time.monotonic() - begun < 20
    assert {type(each) for each in caught.value.errors} == {DeadlineExceeded}
    assert all(str(each).endswith("was not copied within 0.2 s") for each in caught.value.errors)
    assert len(caught.value.errors) == 5


def test_closing_from_another_thread_ends_it_with_the_reason() -> None:
    registry = CloseableRegistry()
    threading.Timer(0.2, registry.close, ["enough"]).start()
    with pytest.raises(CopyCancelled) as caught:
        run_batch(requests(5), wait_for_the_end, policy(), registry)
    assert caught.value.reason == "enough"
    with pytest.raises(CopyCancelled):
        run_batch(requests(5), done, policy(), registry)


def test_an_empty_batch_is_no_batch() -> None:
    assert run_batch([], done, policy(), CloseableRegistry()).files == ()


def test_closing_runs_everything_once_youngest_first_with_no_lock_held() -> None:
    registry = CloseableRegistry()
    order: list[int] = []

    def first() -> None:
        order.append(1)
        registry.close()  # would deadlock under a lock

    with registry.registered(first), registry.registered(lambda: order.append(2)):
        registry.close("why")
        registry.close("again")
    assert order == [2, 1]
    assert registry.reason == "why"
    with pytest.raises(CopyCancelled), registry.registered(lambda: order.append(3)):
        pytest.fail("a closed registry took another closeable")
    with pytest.raises(CopyCancelled):
        registry.wait(60)


def test_a_child_closes_with_its_parent_and_not_the_other_way_round() -> None:
    parent = CloseableRegistry()
    with parent.child() as child:
        child.close()
    assert not parent.closed
    with parent.child() as child:
        parent.close("parent")
        assert child.closed
        assert child.reason == "parent"


def test_what_was_unregistered_is_not_called() -> None:
    registry = CloseableRegistry()
    with registry.registered(lambda: pytest.fail("called after its block")):
        pass
    registry.close()
    assert registry.closed


def test_distinct_causes_are_told_once_each_and_the_first_first() -> None:
    errors: list[TransferError] = [SourceNotFound("root"), *[BackendError("again") for _ in range(9)]]
    failure = CopyFailed(errors)
    assert [str(each) for each in failure.distinct()] == ["root", "again"]
    assert str(failure).index("root") < str(failure).index("again")
    assert failure.shared
    assert not failure.transient
