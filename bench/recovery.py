"""Recovery of a job's state on one CPU: every method, at the same parallelism, scaled out, scaled in."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from ..transfer.handles import key_groups_of
from . import job_state
from .contenders import CONTENDERS
from .data import size_text
from .job_state import MAX_PARALLELISM, Job, wrong_state
from .measure import run
from .restoring import METHODS
from .sample import Recorder, Sample, Skipped
from .servers import BUCKET, Server, Servers
from .settings import Settings
from .trial import Conditions, interleave, why_failed

PART = "recovery"


@dataclass(frozen=True)
class Scenario:
    """A job that ran at ``before`` subtasks comes back at ``after``; one of these is restored."""

    job: Job
    after: int
    size: int
    distant: bool = True

    @property
    def name(self) -> str:
        store = "distant store" if self.distant else "store on this machine"
        return f"{self.job.parallelism} to {self.after}, {size_text(self.size)} of state, {store}"


def measure(settings: Settings, recorder: Recorder, servers: Servers) -> None:
    """From a store with S3's latency and rate per connection; the scale-out also without them."""
    bucket = servers.root / BUCKET
    jobs = {each: _build(settings, bucket, each) for each in (1, 2)}
    with servers.serving(slow=True) as server:
        # A run that does not count brings programs and packages into the page cache.
        restore_with("s5cmd, as the original", Scenario(jobs[1], 2, settings.state_bytes), 0, settings, server)
        for before, after in ((1, 2), (1, 1), (2, 1)):
            scenario = Scenario(jobs[before], after, settings.state_bytes)
            rounds = settings.rounds if (before, after) == (1, 2) else settings.few_rounds
            measure_one(scenario, settings, recorder, server, rounds)
    with servers.serving() as server:
        near = Scenario(jobs[1], 2, settings.state_bytes, distant=False)
        measure_one(near, settings, recorder, server, settings.few_rounds)


def _build(settings: Settings, bucket: Path, parallelism: int) -> Job:
    return job_state.build(bucket, settings.scratch, size=settings.state_bytes, parallelism=parallelism)


def available(scenario: str, recorder: Recorder) -> list[str]:
    """The methods whose programs and packages are here; the others are recorded as skipped."""
    found = []
    for name in METHODS:
        contender = CONTENDERS.get(name) or CONTENDERS["s5cmd"]
        reason = contender.missing()
        if reason:
            recorder.skipped(Skipped(PART, scenario, name, reason))
        else:
            found.append(name)
    return found


def measure_one(scenario: Scenario, settings: Settings, recorder: Recorder, server: Server, rounds: int) -> None:
    """All rounds of one scenario. Rounds take turns with the subtask that is restored."""

    def one(name: str, number: int) -> Sample:
        return restore_with(name, scenario, number, settings, server)

    interleave(dict.fromkeys(available(scenario.name, recorder), rounds), one, recorder)


def restore_with(name: str, scenario: Scenario, number: int, settings: Settings, server: Server) -> Sample:
    into = settings.scratch / "restored"
    shutil.rmtree(into, ignore_errors=True)
    subtask = number % scenario.after
    sample = Sample(PART, scenario.name, name, number, bytes=scenario.size)
    command = [sys.executable, "-m", "statelift.bench.restoring", name, f"s3://{BUCKET}/{scenario.job.checkpoint}"]
    command += [str(subtask), str(scenario.after), str(into / "state")]
    into.mkdir()
    conditions = Conditions(settings.cpu)
    usage = run(
        command,
        cpu=conditions.cpu,
        env=server.environment(),
        timeout=conditions.timeout,
        traffic=server.traffic,
    )
    failed = why_failed(usage, conditions) or _wrong(into / "state", scenario, subtask)
    shutil.rmtree(into, ignore_errors=True)
    return dataclasses.replace(sample.with_usage(usage), failed=failed)


def _wrong(directory: Path, scenario: Scenario, subtask: int) -> str | None:
    key_groups = key_groups_of(subtask, scenario.after, MAX_PARALLELISM)
    try:
        return wrong_state(directory, scenario.job, key_groups)
    except Exception as error:
        return f"does not open: {type(error).__name__}: {error}"
