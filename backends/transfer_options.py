"""Limits and guarantees of a copy, whichever backend makes it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from .options import OptionGroup, option, parse_bool, parse_duration


def parse_whole(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise ValueError("not a whole number") from error


def _positive(text: str) -> int:
    value = parse_whole(text)
    if value < 1:
        raise ValueError("must be at least 1")
    return value


def _not_negative(text: str) -> int:
    value = parse_whole(text)
    if value < 0:
        raise ValueError("must not be negative")
    return value


def cpus() -> int:
    """CPUs that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, kw_only=True)
class TransferOptions(OptionGroup):
    """Options ``transfer.*``."""

    threads: int = option(
        "transfer.threads", 4, parse=_positive, help="Files in flight at once in the sdk, stream and local backends."
    )
    retries: int = option(
        "transfer.retries", 3, parse=_not_negative, help="Further attempts after a transient failure of a file."
    )
    stall_timeout: float = option(
        "transfer.stall-timeout",
        10.0,
        parse=parse_duration,
        shown="10s",
        help="A transfer that moves no byte for so long is failed or started again.",
    )
    connect_timeout: float = option(
        "transfer.connect-timeout", 5.0, parse=parse_duration, shown="5s", help="Limit for opening a connection."
    )
    deadline: float | None = option("transfer.deadline", None, parse=parse_duration, help="Limit for a whole batch.")
    verify: bool = option(
        "transfer.verify",
        True,
        parse=parse_bool,
        shown="true",
        help="Compute and compare checksums; sizes are compared always.",
    )
    fsync: bool = option(
        "transfer.fsync",
        False,
        parse=parse_bool,
        shown="false",
        help="Flush each file and its directory to the disk before it counts as copied.",
    )
