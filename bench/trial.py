"""One contender's run at one plan: fresh target, measured child, result verified before it counts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from .contenders import CONTENDERS, Contender, Plan
from .data import empty, wrong_files
from .measure import Usage, run
from .memory_limit import MemoryLimit
from .rounds import order
from .sample import Recorder, Sample, Skipped


@dataclasses.dataclass(frozen=True)
class Conditions:
    """Where and under what limits contenders run."""

    cpu: int | None
    timeout: float = 180.0
    memory: MemoryLimit | None = None


def available(names: Sequence[str], part: str, scenario: str, direction: str, recorder: Recorder) -> list[Contender]:
    """The contenders of these names that can run here; the others are recorded as skipped."""
    found = []
    for name in names:
        contender = CONTENDERS[name]
        reason = contender.missing()
        if reason is None and direction not in contender.directions:
            reason = f"does no {direction}"
        if reason:
            recorder.skipped(Skipped(part, scenario, name, reason))
        else:
            found.append(contender)
    return found


def try_once(
    contender: Contender,
    plan: Plan,
    sample: Sample,
    conditions: Conditions,
    *,
    watch: AbstractContextManager[object] | None = None,
) -> Sample:
    """Run it; the sample says what it cost, or why it does not count.

    Args:
        watch: entered for the time of the run alone.
    """
    target = _prepare(plan)
    command = contender.command(plan)
    try:
        with watch or nullcontext():
            usage = run(
                command,
                cpu=conditions.cpu,
                env=plan.server.environment(),
                timeout=conditions.timeout,
                memory=conditions.memory,
                traffic=plan.server.traffic,
            )
        failed = why_failed(usage, conditions) or (wrong_files(target, plan.objects) if target else None)
        return dataclasses.replace(sample.with_usage(usage), failed=failed)
    except OSError as error:
        return dataclasses.replace(sample, failed=f"{type(error).__name__}: {error.strerror}")
    finally:
        if target:
            empty(target)


def _prepare(plan: Plan) -> Path | None:
    """An empty target; None where the server keeps no files to look at."""
    if plan.direction == "download":
        return empty(plan.directory)
    return empty(plan.server.bucket / plan.prefix) if plan.server.keeps_files else None


def why_failed(usage: Usage, conditions: Conditions) -> str | None:
    if usage.exit == 0:
        return None
    if usage.exit == -9:
        killed = "killed: out of memory" if conditions.memory else "killed"
        return killed if usage.wall < conditions.timeout else f"not done within {conditions.timeout:g} s"
    last = usage.tail.splitlines()[-1] if usage.tail else ""
    return f"exit {usage.exit}: {last}"


def interleave(rounds: Mapping[str, int], one: Callable[[str, int], Sample], recorder: Recorder) -> None:
    """Rounds of every contender, in changing order; one that failed twice is not tried again.

    Args:
        rounds: how many of them each contender takes part in, from the first on.
    """
    failures: dict[str, int] = {}
    for number in range(max(rounds.values(), default=0)):
        for name in order(list(rounds), number):
            if number >= rounds[name] or failures.get(name, 0) >= 2:
                continue
            sample = one(name, number)
            if sample.failed:
                failures[name] = failures.get(name, 0) + 1
            recorder.sample(sample)
