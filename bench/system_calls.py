"""System calls of a contender, counted by ``strace`` in a run of its own that is not timed."""

from __future__ import annotations

import dataclasses
import re
import shutil
from pathlib import Path

from .contenders import Contender, Plan
from .sample import Recorder, Sample, Skipped
from .trial import Conditions, try_once

PART = "system calls"
_TIMEOUT = 300.0
# "100.00    0.105060           9     11305       304 total"; the errors may be missing.
_TOTAL = re.compile(r"^\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)\s+(?:\d+\s+)?total$", re.MULTILINE)


def missing() -> str | None:
    return None if shutil.which("strace") else "strace is not installed"


def total_of(summary: str) -> int | None:
    """The calls of all processes in what ``strace -c`` writes; None: it has no total."""
    found = _TOTAL.search(summary)
    return int(found[1]) if found else None


def count(contender: Contender, plan: Plan, sample: Sample, cpu: int | None) -> Sample:
    """Run it traced. The sample keeps the number of calls alone: tracing makes every call slow."""
    summary = plan.scratch / "strace.txt"
    summary.unlink(missing_ok=True)
    traced = dataclasses.replace(contender, command=lambda plan: _traced(summary, contender.command(plan)))
    done = try_once(traced, plan, sample, Conditions(cpu, timeout=_TIMEOUT))
    calls = total_of(summary.read_text()) if summary.is_file() else None
    failed = done.failed or (None if calls else "strace wrote no total")
    return dataclasses.replace(sample, system_calls=calls or 0, failed=failed)


def _traced(summary: Path, command: list[str]) -> list[str]:
    return ["strace", "-f", "-c", "-o", str(summary), "--", *command]


def measure_one(scenario: str, contenders: list[Contender], plan: Plan, cpu: int | None, recorder: Recorder) -> None:
    """One traced run of each contender."""
    reason = missing()
    if reason:
        recorder.skipped(Skipped(PART, scenario, "all", reason))
        return
    size = sum(each.size for each in plan.objects)
    for contender in contenders:
        sample = Sample(PART, scenario, contender.name, 0, bytes=size, files=len(plan.objects))
        recorder.sample(count(contender, plan, sample, cpu))
