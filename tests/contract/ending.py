"""The contract, part three: how a copy ends that is cancelled, late, or one of two."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from statelift.backends.closeables import CloseableRegistry
from statelift.backends.errors import CopyCancelled, CopyFailed, DeadlineExceeded
from statelift.backends.options import Configuration
from statelift.backends.paths_copying import PathsCopyingFileSystem
from statelift.backends.request import CopyRequest

from ..servers.proxy import SlowProxy
from .copying import uploads
from .places import MIB, BucketPlace, LocalPlace, Pair, make_bytes
from .suite import ENDS_WITHIN, Running, Suite, children, descriptors, threads, wait_until


class Ending(Suite):
    """Cancellation, deadlines, reuse, and what is left behind."""

    @contextmanager
    def mid_copy(
        self, file_system: PathsCopyingFileSystem, pair: Pair, slow: SlowProxy, requests: list[CopyRequest]
    ) -> Iterator[Running]:
        """A copy that has begun and cannot end by itself."""
        running = Running()
        if pair.kind == "local":
            # Nothing slows a disk down: the first bytes hold their thread until the registry is closed.
            def hold(request: CopyRequest, count: int) -> None:
                running.moved.set()
                with running.held:
                    running.held.wait_for(lambda: running.registry.closed, 20)

            running.start(file_system, requests, progress=hold)
            assert running.moved.wait(20)
        else:
            slow.rate = 200.0 if pair.kind == "remote" else float(MIB)
            running.start(file_system, requests)
            slow.wait_until_moved(1 if pair.kind == "remote" else MIB // 2)
        try:
            yield running
        finally:
            running.close()
            slow.rate = None
            running.join(60)

    def test_closing_the_registry_ends_the_copy(
        self,
        slow_file_system: PathsCopyingFileSystem,
        slow: SlowProxy,
        pair: Pair,
        here: LocalPlace,
        there: BucketPlace,
        configuration: Configuration,
    ) -> None:
        size = 24 * MIB
        requests = [pair.put(f"from-{n}", make_bytes(size), to=f"to-{n}", size=size) for n in range(3)]
        before = children()
        with self.mid_copy(slow_file_system, pair, slow, requests) as running:
            running.close("enough")
            assert running.join(20) < ENDS_WITHIN
        assert isinstance(running.error, CopyCancelled), repr(running.error)
        assert running.error.reason == "enough"
        assert wait_until(lambda: children() <= before)
        assert here.staged() == []
        assert not {f"to-{n}" for n in range(3)} & pair.destination.names()
        assert uploads(configuration, there) == []

    def test_a_cancelled_instance_copies_again(
        self, slow_file_system: PathsCopyingFileSystem, slow: SlowProxy, pair: Pair
    ) -> None:
        size = 8 * MIB
        requests = [pair.put("from", make_bytes(size), to="to", size=size)]
        with self.mid_copy(slow_file_system, pair, slow, requests) as running:
            pass
        assert isinstance(running.error, CopyCancelled)
        self.copy(slow_file_system, requests)
        assert pair.destination.get("to") == make_bytes(size)

    def test_a_closed_registry_is_refused_at_once(self, file_system: PathsCopyingFileSystem, pair: Pair) -> None:
        registry = CloseableRegistry()
        registry.close("closed before")
        with pytest.raises(CopyCancelled, match="closed before"):
            file_system.copy_files([pair.put("from", b"new", to="to")], registry)
        assert pair.destination.get("to") is None

    def test_one_copy_is_cancelled_and_another_one_of_the_same_instance_is_not(
        self, slow_file_system: PathsCopyingFileSystem, slow: SlowProxy, pair: Pair
    ) -> None:
        size = 6 * MIB
        requests = [pair.put(f"from-{n}", make_bytes(size, n), to=f"to-{n}", size=size) for n in range(2)]
        with self.mid_copy(slow_file_system, pair, slow, requests[:1]) as cancelled:
            other = Running().start(slow_file_system, requests[1:])
            cancelled.close()
            slow.rate = None
            other.join(60)
        assert isinstance(cancelled.error, CopyCancelled)
        assert other.error is None
        assert pair.destination.get("to-1") == make_bytes(size, 1)
        assert pair.destination.get("to-0") is None

    def test_a_deadline_ends_the_batch(
        self, slow_file_system: PathsCopyingFileSystem, slow: SlowProxy, pair: Pair, here: LocalPlace
    ) -> None:
        if pair.kind == "remote":
            slow.rate = 200.0
        size = 24 * MIB
        requests = [pair.put(f"from-{n}", make_bytes(size), to=f"to-{n}", size=size) for n in range(3)]
        started = time.monotonic()
        failure = self.copy_fails(
            slow_file_system, requests, DeadlineExceeded, deadline=1.0, progress=lambda *_: time.sleep(0.6)
        )
        assert time.monotonic() - started < 10
        assert {error.request for error in failure.errors} == set(requests)
        assert isinstance(failure.errors[0], TimeoutError)
        assert here.staged() == []
        assert not {f"to-{n}" for n in range(3)} & pair.destination.names()

    def test_a_deadline_that_is_kept_changes_nothing(self, file_system: PathsCopyingFileSystem, pair: Pair) -> None:
        self.copy(file_system, [pair.put("from", b"new", to="to")], deadline=60.0)
        assert pair.destination.get("to") == b"new"

    def test_two_threads_use_one_instance(self, file_system: PathsCopyingFileSystem, pair: Pair) -> None:
        data = {f"{n}": make_bytes(100_000, n) for n in range(20)}
        requests = [pair.put(f"from-{name}", content, to=f"to-{name}") for name, content in data.items()]
        both = [Running().start(file_system, half) for half in (requests[::2], requests[1::2])]
        for running in both:
            running.join(60)
            assert running.error is None
        assert {name: pair.destination.get(f"to-{name}") for name in data} == data

    def test_two_copies_into_one_file_leave_one_of_them(self, file_system: PathsCopyingFileSystem, pair: Pair) -> None:
        data = [make_bytes(3 * MIB, n) for n in range(2)]
        requests = [pair.put(f"from-{n}", content, to="to") for n, content in enumerate(data)]
        for running in [Running().start(file_system, [request]) for request in requests]:
            running.join(60)
            assert running.error is None
        assert pair.destination.get("to") in data

    def test_a_closed_instance_opens_again(self, file_system: PathsCopyingFileSystem, pair: Pair) -> None:
        file_system.close()
        self.copy(file_system, [pair.put("from", b"1", to="to")])
        file_system.close()
        file_system.close()
        self.copy(file_system, [pair.put("from", b"2", to="to")])
        assert pair.destination.get("to") == b"2"

    def test_errors_of_progress_are_not_swallowed_nor_do_they_hang(
        self, file_system: PathsCopyingFileSystem, pair: Pair
    ) -> None:
        def broken(request: CopyRequest, count: int) -> None:
            raise KeyError("broken progress")

        with pytest.raises((CopyFailed, KeyError)) as caught:
            self.copy(file_system, [pair.put("from", make_bytes(MIB), to="to")], progress=broken)
        assert "broken progress" in str(caught.value)

    def test_no_thread_and_no_descriptor_is_left(
        self, configuration: Configuration, pair: Pair, nothing_left: None
    ) -> None:
        requests = [pair.put(f"from-{n}", make_bytes(100_000), to=f"to-{n}") for n in range(10)]

        def use() -> None:
            with self.opened(configuration) as file_system:
                self.copy(file_system, requests)
                with pytest.raises(CopyFailed):
                    self.copy(file_system, [pair.request("none", to="none")])
            gc.collect()

        # Once for what packages keep for the life of the process.
        use()
        threads_before, descriptors_before = threads(), descriptors()
        for _ in range(3):
            use()
        assert wait_until(lambda: threads() <= threads_before), threads() - threads_before
        assert wait_until(lambda: len(descriptors()) <= len(descriptors_before)), (
            sorted(descriptors()),
            sorted(descriptors_before),
        )
