"""Copies by wire through a fault server: what came of them, and what they may not leave behind."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from statelift.backends.checksums import crc64nvme
from statelift.backends.closeables import CloseableRegistry
from statelift.backends.errors import CopyFailed, TransferError
from statelift.backends.options import Configuration
from statelift.backends.report import CopyReport
from statelift.backends.request import CopyRequest
from statelift.backends.wire import WireFileSystem

from ..servers.fault import FaultServer

#: What a failed download must leave of the file that was there before.
OLD = b"what was there before"
LIMITS = {"transfer.stall-timeout": "1s", "transfer.connect-timeout": "5s", "transfer.retries": 2}


TRANSPORTS = ("http", "https")
#: Words of faults that take a second or more; tests/test_faults.py has one of each kind in the default run.
_TARDY = ("stall", "loris", "Retry-After", "503", "every byte")


def spread(faults: Iterable[str], shapes: Sequence[Any]) -> list[ParameterSet]:
    """(transport, fault, shape): each quick fault once, turn about; all combinations with the slow tests."""
    found = []
    for number, fault in enumerate(faults):
        for index, (shape, transport) in enumerate(itertools.product(shapes, TRANSPORTS)):
            slow = index != number % (len(shapes) * len(TRANSPORTS)) or any(word in fault for word in _TARDY)
            marks = pytest.mark.slow if slow else ()
            found.append(pytest.param(transport, fault, shape, marks=marks, id=f"{fault}-{shape}-{transport}"))
    return found


@dataclass
class Outcome:
    """A report, or the errors by the source of their request; and how long it took."""

    report: CopyReport | None
    errors: dict[str, TransferError]
    seconds: float

    @property
    def only_error(self) -> TransferError:
        (found,) = self.errors.values()
        return found


@dataclass
class Kit:
    """Makes copies through ``server``, and checks after each that nothing is left open.

    Args:
        options: reach the server behind it, and trust it.
        part_size: set past the option's own lower limit, so that small objects have many parts.
    """

    server: FaultServer
    options: dict[str, Any]
    state: Path
    part_size: int | None = None
    more: dict[str, Any] = field(default_factory=dict)

    def file_system(self) -> WireFileSystem:
        own = {"s3.endpoint": self.server.endpoint, "wire.state-directory": str(self.state)}
        made = WireFileSystem(Configuration({**self.options, **LIMITS, **own, **self.more}, environ={}))
        if self.part_size is not None:
            made.options = dataclasses.replace(made.options, part_size=self.part_size)
        return made

    def copy(self, requests: Sequence[CopyRequest]) -> Outcome:
        """Copy all; every failure is one error of the tree that names its object."""
        settle(_is_quiet)
        before = _descriptors()
        file_system, report, failed = self.file_system(), None, None
        started = time.monotonic()
        try:
            report = file_system.copy_files(requests, CloseableRegistry(), fail_fast=False)
        except CopyFailed as caught:
            failed = caught
        finally:
            seconds = time.monotonic() - started
            file_system.close()
        assert settle(lambda: self.server.open_connections == 0), f"{self.server.open_connections} connections are left"
        assert settle(lambda: _is_quiet() and _descriptors() <= before), f"{_descriptors()} instead of {before}"
        return Outcome(report, _by_source(failed), seconds)

    def upload(self, data: bytes, file: Path, destination: str, **request: Any) -> Outcome:
        """Upload a file of ``data``, and check the errors."""
        file.write_bytes(data)
        given = {"size": len(data), "crc64nvme": crc64nvme(data), **request}
        return self.copy([CopyRequest(str(file), destination, **given)])

    def download(self, files: dict[str, bytes], to: Path, **request: Any) -> Outcome:
        """Download objects onto older files: each is right, or is what it was, with an error that names the object.

        Args:
            files: by URI, what must arrive.
        """
        to.mkdir(parents=True, exist_ok=True)
        requests, names = [], {}
        for number, (uri, data) in enumerate(files.items()):
            names[uri] = to / f"{number:04}"
            names[uri].write_bytes(OLD)
            given = {"size": len(data), "crc64nvme": crc64nvme(data), **request}
            requests.append(CopyRequest(uri, str(names[uri]), **given))
        outcome = self.copy(requests)
        assert sorted(os.listdir(to)) == sorted(path.name for path in names.values()), "something else is left"
        for uri, path in names.items():
            found = path.read_bytes()
            assert found == (OLD if uri in outcome.errors else files[uri]), f"{uri}: {len(found)} wrong bytes"
        return outcome


def _by_source(failed: CopyFailed | None) -> dict[str, TransferError]:
    found: dict[str, TransferError] = {}
    for error in failed.errors if failed is not None else ():
        assert isinstance(error, TransferError)
        assert error.request is not None
        assert error.request.source not in found, "two errors of one request"
        assert error.backend == "wire"
        key = error.request.source, error.request.destination
        assert any(each.removeprefix("s3://") in str(error) for each in key), f"names no object: {error}"
        found[error.request.source] = error
    return found


def _is_quiet() -> bool:
    """Whether the fault server serves nobody: its own descriptors are those of its listener only."""
    return not any(thread.name.startswith("fault-") and thread.name[6:].isdigit() for thread in threading.enumerate())


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def settle(condition: Callable[[], object], seconds: float = 3.0) -> object:
    deadline = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return value


@contextlib.contextmanager
def serving(upstream: Any, state: Path, certificates: Any = None, **more: Any) -> Iterator[Kit]:
    """A kit in front of ``upstream``; ``certificates`` turn TLS on."""
    options = dict(upstream.options)
    if certificates is not None:
        options["s3.ca-bundle"] = str(certificates.authority)
    certificate = certificates.server if certificates is not None else None
    with FaultServer(upstream.endpoint, certificate=certificate) as server:
        yield Kit(server, options, state, more=more)
