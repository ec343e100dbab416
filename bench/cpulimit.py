"""Whether ``s3.s5cmd.cpulimit`` holds: ``python -m statelift.bench.cpulimit``.

A child that would use a whole CPU is limited, by the ``cpulimit`` program where it is installed and
by the thread that stands in for it, and its CPU time is read from the kernel. A share further than
15 % from the wanted one fails the run.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil

from ..s5cmd_integration.child import start_child
from ..s5cmd_integration.cpulimit import CpuLimit, DutyCycle, ProgramLimit

TOLERANCE = 0.15
_SPIN = [sys.executable, "-SE", "-c", "while True: pass"]
_WARM_UP = 1.0


@dataclass(frozen=True, slots=True)
class Share:
    """What one limited child used, in percent of one CPU; ``own`` is what the limiter itself used."""

    how: str
    wanted: int
    used: float
    own: float

    @property
    def holds(self) -> bool:
        return abs(self.used / self.wanted - 1) <= TOLERANCE


def limiters() -> dict[str, Callable[[int, float], CpuLimit]]:
    """The ways to limit that this machine has, by name."""
    found: dict[str, Callable[[int, float], CpuLimit]] = {"psutil": DutyCycle}
    program = shutil.which("cpulimit")
    if program is not None:
        found["cpulimit"] = lambda pid, percent: ProgramLimit(program, pid, percent)
    return found


def measure(how: str, wanted: int, *, seconds: float) -> Share:
    """Limit a spinning child and look at what it uses.

    Args:
        seconds: how long, after a second that lets the limiter settle.
    """
    child = start_child(_SPIN)
    limit = limiters()[how](child.pid, wanted)
    try:
        time.sleep(_WARM_UP)
        began, used, own = time.monotonic(), _cpu_time(psutil.Process(child.pid)), _limiters_time(child.pid)
        time.sleep(seconds)
        took = time.monotonic() - began
        used, own = _cpu_time(psutil.Process(child.pid)) - used, _limiters_time(child.pid) - own
    finally:
        child.kill()
        limit.stop()
        child.wait()
    return Share(how, wanted, 100 * used / took, 100 * own / took)


def _cpu_time(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _limiters_time(limited: int) -> float:
    """CPU time of this process and of its children but the limited one."""
    this = psutil.Process()
    return _cpu_time(this) + sum(_cpu_time(child) for child in this.children() if child.pid != limited)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="per measurement")
    parser.add_argument("--percent", type=int, nargs="+", default=[50], help="of one CPU")
    given = parser.parse_args(arguments)
    shares = [measure(how, wanted, seconds=given.seconds) for how in limiters() for wanted in given.percent]
    print(f"{'limiter':<10}{'wanted':>8}{'used':>8}{'limiter itself':>16}")
    for each in shares:
        mark = "" if each.holds else "  off by more than 15 %"
        print(f"{each.how:<10}{each.wanted:>7}%{each.used:>7.1f}%{each.own:>15.1f}%{mark}")
    return 0 if all(each.holds for each in shares) else 1


if __name__ == "__main__":
    sys.exit(main())
