"""One restore as a process: ``python -m statelift.bench.restoring METHOD CHECKPOINT SUBTASK PARALLELISM INTO``.

Prints one JSON line with the seconds of each phase. ``METHODS`` holds the ways of the original,
which bring every file to every subtask and clip afterwards, and this project's.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ..backends.closeables import CloseableRegistry
from ..backends.errors import BackendError
from ..backends.options import Configuration
from ..backends.report import CopiedFile, CopyReport, Progress
from ..transfer.checkpoint.layout import CheckpointLocation
from ..transfer.downloader import Download, StateDownloader
from ..transfer.handles import InMemoryHandle
from ..transfer.keyed.plan import PartPlan, RestorePlan
from ..transfer.strategy import Plan
from .job_state import VALUE, key_group_of_row, key_of, value_of


@dataclass(frozen=True)
class Method:
    """A way of restoring.

    Args:
        backend: that copies, or None for the bare program `s5cmd`.
        everything: bring every file of the checkpoint, as the original did, not only those needed.
    """

    name: str
    backend: str | None
    options: dict[str, object] = field(default_factory=dict)
    everything: bool = True


METHODS = {
    each.name: each
    for each in (
        Method("stream, one by one", "stream", {"stream.parallel": 1}),
        Method("stream, parallel", "stream"),
        Method("sdk", "sdk", {"sdk.client": "classic"}),
        Method("sdk, CRT", "sdk", {"sdk.client": "crt"}),
        Method("s5cmd, as the original", None),
        Method("s5cmd, through statelift", "s5cmd", everything=False),
        Method("wire", "wire", everything=False),
    )
}


class BareS5cmd(StateDownloader):
    """Downloads as the original did: one `s5cmd run` for all files, success is its exit code."""

    def download(
        self,
        location: CheckpointLocation,
        downloads: Sequence[Download],
        closeables: CloseableRegistry,
        *,
        progress: Progress | None = None,
        deadline: float | None = None,
        strategy: Plan | None = None,
    ) -> CopyReport:
        inline = [each for each in downloads if isinstance(each.handle, InMemoryHandle)]
        files = [each for each in downloads if not isinstance(each.handle, InMemoryHandle)]
        report = super().download(location, inline, closeables, progress=progress, deadline=deadline, strategy=strategy)
        requests = [_request(location, each) for each in files]
        _run_s5cmd([(request.source, request.destination) for request in requests])
        done = [CopiedFile(request, "s5cmd", request.size or 0, 0.0) for request in requests]
        return CopyReport((*report.files, *done), report.seconds)


def _request(location: CheckpointLocation, download: Download) -> Any:
    from ..backends.request import CopyRequest

    source = location.resolve(download.handle)  # type: ignore[arg-type]
    return CopyRequest(source.uri, download.path, size=source.size)


def _run_s5cmd(pairs: Sequence[tuple[str, str]]) -> None:
    from .programs import find_s5cmd

    lines = "".join(f"cp {shlex.quote(source)} {shlex.quote(destination)}\n" for source, destination in pairs)
    command = [find_s5cmd() or "s5cmd", "-r", "0", "run"]
    done = subprocess.run(command, input=lines.encode(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
    if done.returncode:
        raise BackendError(f"s5cmd ended with {done.returncode}: {done.stderr.decode(errors='replace')[-200:]}")


def with_everything(plan: RestorePlan) -> RestorePlan:
    """The same restore, but every file of every part is brought."""

    def whole(part: PartPlan) -> PartPlan:
        files = tuple(dataclasses.replace(file, needed=True, reason="every file") for file in part.files)
        return dataclasses.replace(part, files=files)

    return dataclasses.replace(plan, parts=tuple(whole(part) if len(part.wanted) else part for part in plan.parts))


class Phases:
    """Seconds of each phase, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - started


def restore_once(method: Method, checkpoint: str, subtask: int, parallelism: int, into: str) -> dict[str, object]:
    """Restore, open, read. Returns the phases in seconds and the bytes."""
    from ..transfer.checkpoint.store import CheckpointStore
    from ..transfer.file_systems import FileSystems, load_declarations
    from ..transfer.handles import key_groups_of
    from ..transfer.keyed.database import KeyedState
    from ..transfer.keyed.restore import plan_restore, restore

    import_clients()
    phases = Phases()
    load_declarations()
    configuration = Configuration(_with_s5cmd(method))
    with FileSystems(configuration, backend=method.backend or "stream") as systems:
        with phases("plan"):
            with CheckpointStore(configuration) as store:
                location, metadata = store.read(checkpoint)
            plan = plan_restore(metadata.states, key_groups_of(subtask, parallelism, metadata.max_parallelism))
            plan = with_everything(plan) if method.everything else plan
        downloader = StateDownloader(systems) if method.backend else BareS5cmd(systems)
        directory, report = restore(plan, location, into, downloader, CloseableRegistry())
    with phases("open"):
        state = KeyedState.open(directory)
    with phases("first read"):
        _read_first(state)
    state.close()
    for name, seconds in report.seconds.items():
        shown = "clip" if name == "straighten" else name
        phases.seconds[shown] = phases.seconds.get(shown, 0.0) + seconds
    rounded = {name: round(seconds, 4) for name, seconds in phases.seconds.items()}
    return {**rounded, "seconds": round(sum(phases.seconds.values()), 4), "bytes": report.bytes, "files": report.files}


def import_clients() -> None:
    """Load what a long-lived Python has loaded already: it is no part of a recovery."""
    for name in ("boto3.session", "botocore.session", "rocksdict"):
        importlib.import_module(name)


def _with_s5cmd(method: Method) -> dict[str, object]:
    from .programs import find_s5cmd

    return {**method.options, **({"s3.s5cmd.path": find_s5cmd()} if method.backend == "s5cmd" else {})}


def _read_first(state: Any) -> None:
    """One row of the subtask, compared with what the job wrote."""
    number = next(number for number in range(1 << 20) if key_group_of_row(number) in state.key_groups)
    found = state.get(key_of(number), key_group=key_group_of_row(number))
    if found != value_of(number) or len(found) != VALUE:
        raise BackendError(f"row {number} is wrong")


def main(argv: list[str]) -> int:
    method, checkpoint, subtask, parallelism, into = argv
    print(json.dumps(restore_once(METHODS[method], checkpoint, int(subtask), int(parallelism), into)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
