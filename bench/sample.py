"""One line of the results: a contender's run in a round of a scenario."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .measure import Usage

RESULTS = Path(__file__).parent / "results"
LINES = RESULTS / "samples.jsonl"
#: Quick figures are to look at, not to keep.
QUICK_LINES = RESULTS / "quick" / "samples.jsonl"


@dataclass(frozen=True)
class Sample:
    """One run.

    Args:
        part: chapter of the report: ``copy``, ``recovery``, ``growth`` ...
        scenario: what was to be done; ratios are taken within one scenario and round.
        contender: who did it.
        bytes: payload of the scenario; ``files``: their number.
        received: bytes that came from the server, ``sent``: that went to it; 0 where it does not count.
        seconds: what the contender's own clock says, without start-up, where it has one.
        phases: seconds of its phases, and further numbers that it told.
        failed: why the run does not count, or None.
        at: x in a growth plot.
        system_calls: of all its processes, where a traced run counted them.
    """

    part: str
    scenario: str
    contender: str
    round: int
    bytes: int = 0
    files: int = 0
    wall: float = 0.0
    user: float = 0.0
    system: float = 0.0
    peak: int = 0
    received: int = 0
    sent: int = 0
    seconds: float | None = None
    phases: dict[str, Any] = field(default_factory=dict)
    failed: str | None = None
    at: float | None = None
    system_calls: int = 0

    @property
    def cpu(self) -> float:
        return self.user + self.system

    def with_usage(self, usage: Usage) -> Sample:
        return dataclasses.replace(
            self,
            wall=round(usage.wall, 4),
            user=round(usage.user, 4),
            system=round(usage.system, 4),
            peak=usage.peak,
            received=usage.received,
            sent=usage.sent,
            seconds=usage.said.get("seconds"),
            phases={key: value for key, value in usage.said.items() if key != "seconds"},
        )


@dataclass(frozen=True)
class Skipped:
    """A contender or part that could not run here, and why."""

    part: str
    scenario: str
    contender: str
    reason: str


class Recorder:
    """Appends to the results file as samples come, so that an interrupted run keeps what it has."""

    def __init__(self, path: Path, run: dict[str, object]) -> None:
        self._path = path
        self.id = str(run["run"])
        path.parent.mkdir(parents=True, exist_ok=True)
        self._append({"type": "run", **run})

    def sample(self, sample: Sample) -> None:
        self._append({"type": "sample", "run": self.id, **dataclasses.asdict(sample)})
        print(_told(sample), flush=True)

    def skipped(self, skipped: Skipped) -> None:
        self._append({"type": "skipped", "run": self.id, **dataclasses.asdict(skipped)})
        print(f"  {skipped.part}: {skipped.scenario}: {skipped.contender} skipped: {skipped.reason}", flush=True)

    def _append(self, record: dict[str, object]) -> None:
        with self._path.open("a") as lines:
            lines.write(json.dumps(record) + "\n")


class Silent(Recorder):
    """Keeps nothing: for runs that do not count."""

    def __init__(self) -> None:
        self.id = ""

    def sample(self, sample: Sample) -> None:
        pass

    def skipped(self, skipped: Skipped) -> None:
        pass


def _told(sample: Sample) -> str:
    start = f"  {sample.part}: {sample.scenario} #{sample.round} {sample.contender:<24}"
    if sample.failed:
        return f"{start} FAILED: {sample.failed}"
    if sample.system_calls:
        return f"{start} {sample.system_calls} system calls"
    return f"{start} {sample.wall:7.2f} s, CPU {sample.cpu:6.2f} s, {sample.peak / 2**20:6.0f} MiB"


@dataclass
class Results:
    """What a results file holds: for each part, the newest run that has it."""

    runs: list[dict[str, Any]]
    samples: list[Sample]
    skipped: list[Skipped]

    def of(self, part: str) -> list[Sample]:
        return [sample for sample in self.samples if sample.part == part]

    def scenarios(self, part: str) -> list[str]:
        return list(dict.fromkeys(sample.scenario for sample in self.of(part)))


def read(path: Path) -> Results:
    records = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    newest = {record["part"]: record["run"] for record in records if record["type"] == "sample"}
    for record in records:
        if record["type"] == "skipped":
            newest.setdefault(record["part"], record["run"])
    kept = [each for each in records if each["type"] != "run" and newest[each["part"]] == each["run"]]
    runs = [record for record in records if record["type"] == "run" and record["run"] in set(newest.values())]
    return Results(
        runs,
        list(_made(Sample, (each for each in kept if each["type"] == "sample"))),
        list(_made(Skipped, (each for each in kept if each["type"] == "skipped"))),
    )


def _made(cls: type[Any], records: Iterable[dict[str, Any]]) -> Iterable[Any]:
    names = {each.name for each in dataclasses.fields(cls)}
    return (cls(**{key: value for key, value in record.items() if key in names}) for record in records)
