"""Which backend copies which file, and what happens when it cannot.

The only module that names implementations. Each is imported when it is first needed, so that a
missing optional package costs nothing until its backend is asked for.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from ..backends.closeables import CloseableRegistry
from ..backends.errors import BackendUnavailable, TransferError, UnsupportedCopy
from ..backends.options import Configuration, OptionGroup, option
from ..backends.paths_copying import PathsCopyingFileSystem
from ..backends.report import CopyReport, Progress
from ..backends.request import CopyRequest, Location, locate
from ..backends.transfer_options import TransferOptions
from .copying import Group, copy_groups

AUTO = "auto"
STREAM = "stream"
_IMPLEMENTATIONS = {
    "local": ("..backends.local", "LocalFileSystem"),
    "s5cmd": ("..s5cmd_integration", "S5cmdFileSystem"),
    "wire": ("..backends.wire", "WireFileSystem"),
    "sdk": ("..backends.sdk", "SdkFileSystem"),
    STREAM: ("..backends.stream", "StreamFileSystem"),
}
#: Further modules that declare options.
_DECLARING = (
    "..backends.s3_options",
    "..backends.wire.options",
    "..s5cmd_integration.options",
    ".keyed.options",
    ".spark.options",
    ".uploader",
)
#: What pip installs for a backend's optional packages.
_EXTRAS = {"s5cmd": "s5cmd", "sdk": "crt", STREAM: "s3fs"}


def backend_names() -> tuple[str, ...]:
    """What ``transfer.backend`` accepts."""
    return (AUTO, *_IMPLEMENTATIONS)


def load_declarations() -> None:
    """Import every module that declares options, so that `Configuration` knows them."""
    for module in (*(module for module, _ in _IMPLEMENTATIONS.values()), *_DECLARING):
        try:
            importlib.import_module(module, __package__)
        except ModuleNotFoundError as error:
            # A backend may be left out of an installation; what it needs may not.
            if error.name != importlib.util.resolve_name(module, __package__):
                raise


def _backend(text: str) -> str:
    if text not in backend_names():
        nearest = difflib.get_close_matches(text, backend_names(), n=1, cutoff=0.0)[0]
        raise ValueError(f"no such backend; did you mean {nearest}? One of {', '.join(backend_names())}")
    return text


@dataclass(frozen=True, kw_only=True)
class SelectionOptions(OptionGroup):
    """Option ``transfer.backend``."""

    backend: str = option(
        "transfer.backend",
        AUTO,
        parse=_backend,
        help="auto, or the backend that copies whatever it can: local, s5cmd, wire, sdk, stream.",
    )


class FileSystems:
    """Every backend behind one ``copy``.

    ``auto`` takes for each pair the first that can copy it: local (local pairs only), s5cmd where
    ``s3.s5cmd.path`` is set, wire, sdk, stream; one whose package is missing is passed over. A
    backend asked for by name copies what it can; of the rest, local pairs go through local and
    everything else through stream.

    Args:
        backend: a backend's name or ``auto``; None reads the option ``transfer.backend``.

    Raises:
        OptionError: there is no such backend.
        BackendUnavailable: a backend asked for by name cannot run here.
    """

    def __init__(self, configuration: Configuration, *, backend: str | None = None) -> None:
        if backend is not None:
            configuration = configuration.with_arguments({"transfer.backend": backend})
        self.configuration = configuration
        self.backend: str = configuration.of(SelectionOptions).backend
        self._deadline = configuration.of(TransferOptions).deadline
        self._reset()
        if self.backend != AUTO:
            self._get(self.backend)

    def _reset(self) -> None:
        self._lock = threading.RLock()
        self._made: dict[str, PathsCopyingFileSystem] = {}
        self._candidates: dict[str, PathsCopyingFileSystem | None] = {}
        self._order = self._preference()

    def __getstate__(self) -> dict[str, Any]:
        return {"configuration": self.configuration, "backend": self.backend, "_deadline": self._deadline}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _get(self, name: str) -> PathsCopyingFileSystem:
        with self._lock:
            if name not in self._made:
                self._made[name] = _make(name, self.configuration)
            return self._made[name]

    @property
    def fallback(self) -> PathsCopyingFileSystem:
        """The backend that copies bytes between any two file systems."""
        return self._get(STREAM)

    def _preference(self) -> list[str]:
        if self.backend != AUTO:
            return list(dict.fromkeys([self.backend, "local", STREAM]))
        s5cmd = ["s5cmd"] if _has_s5cmd(self.configuration) else []
        return ["local", *s5cmd, "wire", "sdk", STREAM]

    def _candidate(self, name: str) -> PathsCopyingFileSystem | None:
        """A backend, made when a pair first gets as far as it; None where it cannot run."""
        if name not in self._candidates:
            try:
                self._candidates[name] = self._get(name)
            except BackendUnavailable as error:
                if self._must_run(error):
                    raise
                self._candidates[name] = None
        return self._candidates[name]

    def _must_run(self, error: TransferError) -> bool:
        """Whether a backend failed to run that was asked for, by name or by the path of its program."""
        return isinstance(error, BackendUnavailable) and error.backend in {self.backend, "s5cmd"}

    def choose(self, source: str, destination: str) -> PathsCopyingFileSystem:
        """The backend for a pair.

        Raises:
            UnsupportedCopy: no backend can copy it.
        """
        for candidate in map(self._candidate, self._order):
            if candidate is not None and candidate.can_copy_paths(source, destination):
                return candidate
        raise UnsupportedCopy(f"no backend can copy {source} to {destination}")

    def copy(
        self,
        requests: Sequence[CopyRequest],
        closeables: CloseableRegistry | None = None,
        *,
        progress: Progress | None = None,
        deadline: float | None = None,
        fail_fast: bool = True,
    ) -> CopyReport:
        """Copy all requests, each by the backend chosen for it.

        Requests are grouped by backend and remote file system; groups run side by side. A file
        whose native copy failed for a reason that streams need not share is streamed afterwards.

        Args:
            closeables: closing it, from any thread, ends the copy.
            progress: called with a request and the bytes that arrived, negative where they are copied again.
            deadline: seconds from now, by default the option ``transfer.deadline``.
            fail_fast: end the batch at the first failure that every other way of copying would share.

        Raises:
            CopyFailed: at least one request failed; root causes first, ``done`` complete.
            CopyCancelled: ``closeables`` was closed.
        """
        closeables = closeables or CloseableRegistry()
        closeables.check()
        deadline = self._deadline if deadline is None else deadline
        ends = None if deadline is None else time.monotonic() + deadline
        groups, refused = self._grouped(requests)
        return copy_groups(
            groups,
            refused,
            closeables,
            fallback=lambda: self.fallback,
            keep=self._must_run,
            progress=progress,
            ends=ends,
            fail_fast=fail_fast,
        )

    def _grouped(self, requests: Sequence[CopyRequest]) -> tuple[list[Group], list[TransferError]]:
        groups: dict[tuple[str, str], Group] = {}
        refused: list[TransferError] = []
        for request in requests:
            try:
                backend = self.choose(request.source, request.destination)
            except UnsupportedCopy as error:
                error.request = request
                refused.append(error)
                continue
            key = backend.name, _remote(request).authority
            group = groups.get(key)
            if group is None:
                group = groups[key] = Group(backend, [])
            group.requests.append(request)
        return list(groups.values()), refused

    def close(self) -> None:
        """Release every backend's pools and connections; the next copy makes new ones."""
        with self._lock:
            for backend in self._made.values():
                backend.close()


def _remote(request: CopyRequest) -> Location:
    source = locate(request.source)
    return locate(request.destination) if source.is_local else source


def _make(name: str, configuration: Configuration) -> PathsCopyingFileSystem:
    module, kind = _IMPLEMENTATIONS[name]
    try:
        found = getattr(importlib.import_module(module, __package__), kind, None)
        if found is None:
            raise BackendUnavailable(f"the backend {name} is not part of this version", backend=name)
        made: PathsCopyingFileSystem = found(configuration)
    except BackendUnavailable as error:
        error.backend = name
        raise
    except ImportError as error:
        remedy = f"pip install 'statelift[{_EXTRAS[name]}]'" if name in _EXTRAS else None
        raise BackendUnavailable(f"the backend {name} cannot run: {error}", remedy=remedy, backend=name) from error
    return made


def _has_s5cmd(configuration: Configuration) -> bool:
    """Whether ``s3.s5cmd.path`` is set."""
    from ..s5cmd_integration.options import S5cmdOptions

    return any(configuration.has(each) for name, each in S5cmdOptions.declarations() if name == "path")
