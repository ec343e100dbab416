"""What a restore leaves to a busy neighbour on its CPU, with and without a limit on the restore."""

from __future__ import annotations

import dataclasses
import time

from .contenders import CONTENDERS, Plan
from .rounds import order
from .sample import Recorder, Sample
from .servers import Server, Servers
from .settings import Settings
from .spinner import Neighbour, neighbour
from .trial import Conditions, available, try_once

PART = "neighbour"
LIMITS = (25, 50, 75, 100)
NAMES = ("s5cmd, through statelift", "wire")


def measure(settings: Settings, recorder: Recorder, servers: Servers) -> None:
    with servers.serving() as server:
        names = [each.name for each in available(NAMES, PART, "a restore", "download", recorder)]
        plan = Plan(
            "download", server, server.objects(settings.large), settings.scratch / "target", settings.scratch, "-"
        )
        with neighbour(settings.scratch, cpu=settings.cpu) as busy:
            for number in range(settings.few_rounds):
                for limit in LIMITS:
                    for name in order(names, number):
                        recorder.sample(_one(name, limit, number, plan, settings, busy))


def _one(name: str, limit: int, number: int, plan: Plan, settings: Settings, busy: Neighbour) -> Sample:
    scenario = f"{plan.direction} {settings.large}, limit {limit} %"
    shape = settings.large
    sample = Sample(PART, scenario, name, number, bytes=shape.bytes, files=shape.count, at=float(limit))
    limited = dataclasses.replace(plan, server=_limited(plan.server, limit))
    watch = _Watch(busy)
    done = try_once(CONTENDERS[name], limited, sample, Conditions(settings.cpu), watch=watch)
    return dataclasses.replace(done, phases={**done.phases, "kept": round(watch.kept, 3)})


def _limited(server: Server, limit: int) -> Server:
    """The same server, reached by clients that keep to so many percent of a CPU; 100 is no limit."""
    if limit >= 100:
        return server
    return dataclasses.replace(
        server, more={"STATELIFT_S3_S5CMD_CPULIMIT": str(limit), "STATELIFT_WIRE_CPULIMIT": str(limit)}
    )


class _Watch:
    """The share of its own speed that the neighbour has while the block runs."""

    def __init__(self, busy: Neighbour) -> None:
        self._busy = busy
        self.kept = 0.0

    def __enter__(self) -> None:
        self._before, self._started = self._busy.count(), time.monotonic()

    def __exit__(self, *_error: object) -> None:
        rate = (self._busy.count() - self._before) / (time.monotonic() - self._started)
        self.kept = rate / self._busy.alone
