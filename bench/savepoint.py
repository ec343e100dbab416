"""Savepoints of a job's state on one endpoint: copied by the store, through the client, and as Parquet.

``python -m statelift.bench --only savepoint`` measures; this module run by itself takes one
savepoint: ``python -m statelift.bench.savepoint METHOD CHECKPOINT TARGET SCRATCH``.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from ..backends.options import Configuration
from ..transfer.checkpoint.store import CheckpointStore
from ..transfer.downloader import StateDownloader
from ..transfer.file_systems import FileSystems
from ..transfer.handles import KeyGroupRange
from ..transfer.keyed.restore import plan_restore, restore
from ..transfer.savepoint.taking import SavepointType, savepoint
from . import job_state
from .data import size_text
from .job_state import MAX_PARALLELISM, Job, wrong_state
from .measure import run
from .sample import Recorder, Sample
from .servers import BUCKET, Server, Servers
from .settings import Settings
from .trial import Conditions, interleave, why_failed

PART = "savepoint"
_TARGET = "savepoint"


@dataclass(frozen=True)
class Method:
    """A way of taking a savepoint; ``moves`` is whether bytes of the state pass through the client."""

    type: SavepointType
    backend: str
    moves: bool


METHODS = {
    "native": Method(SavepointType.NATIVE, "auto", moves=False),
    "native, through the client": Method(SavepointType.NATIVE, "stream", moves=True),
    "canonical": Method(SavepointType.CANONICAL, "auto", moves=True),
}


def measure(settings: Settings, recorder: Recorder, servers: Servers) -> None:
    """One subtask's state; every savepoint is restored and compared with what the job wrote."""
    job = job_state.build(servers.root / BUCKET, settings.scratch, size=settings.state_bytes, parallelism=1)
    with servers.serving(keeping=True) as server:
        scenario = f"{size_text(settings.state_bytes)} of state, one endpoint"

        def one(name: str, number: int) -> Sample:
            return take_with(name, scenario, number, job, settings, server)

        interleave(dict.fromkeys(METHODS, settings.few_rounds), one, recorder)


def take_with(name: str, scenario: str, number: int, job: Job, settings: Settings, server: Server) -> Sample:
    target = server.bucket / _TARGET
    shutil.rmtree(target, ignore_errors=True)
    sample = Sample(PART, scenario, name, number, bytes=settings.state_bytes)
    command = [sys.executable, "-m", "statelift.bench.savepoint", name]
    command += [f"s3://{BUCKET}/{job.checkpoint}", f"s3://{BUCKET}/{_TARGET}", str(settings.scratch)]
    conditions = Conditions(settings.cpu)
    usage = run(command, cpu=conditions.cpu, env=server.environment(), timeout=conditions.timeout)
    failed = why_failed(usage, conditions) or _wrong(name, usage.said, job, settings, server)
    return dataclasses.replace(sample.with_usage(usage), failed=failed)


def _wrong(name: str, said: dict[str, object], job: Job, settings: Settings, server: Server) -> str | None:
    if not METHODS[name].moves and said.get("bytes_moved") != 0:
        return f"{said.get('bytes_moved')} bytes passed through the client"
    into = settings.scratch / "restored"
    whole = KeyGroupRange(0, MAX_PARALLELISM - 1)
    configuration = Configuration(environ={})
    try:
        with CheckpointStore(configuration) as store, FileSystems(configuration) as systems:
            location, metadata = store.read(str(server.bucket / _TARGET))
            restore(plan_restore(metadata.states, whole), location, into, StateDownloader(systems))
        return wrong_state(into, job, whole)
    except Exception as error:
        return f"does not restore: {type(error).__name__}: {error}"
    finally:
        shutil.rmtree(into, ignore_errors=True)


def main(argv: Sequence[str]) -> int:
    name, checkpoint, target, scratch = argv
    method = METHODS[name]
    configuration = Configuration({"transfer.backend": method.backend})
    report = savepoint(checkpoint, target, configuration, type=method.type, scratch=scratch)
    figures = {"seconds": report.seconds, "bytes_moved": report.copy.bytes_moved, "methods": report.copy.methods}
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
