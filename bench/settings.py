"""How large a benchmark is: the usual size, and the quick one."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from .data import Shape
from .machine import usable_cpus

MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True)
class Settings:
    """Sizes and counts of one run.

    Args:
        scratch: an empty directory on the disk that targets are written to.
        rounds: counted rounds of the main scenarios; ``few_rounds`` of the others.
        warm_ups: rounds before, that do not count.
        s3a: fetch Hadoop's S3 client for Spark's own state store.
    """

    scratch: Path
    quick: bool = False
    rounds: int = 5
    few_rounds: int = 3
    warm_ups: int = 1
    large: Shape = field(default_factory=lambda: Shape(16, 64 * MIB))
    small: Shape = field(default_factory=lambda: Shape(2000, 64 << 10))
    huge: Shape = field(default_factory=lambda: Shape(1, 2 * GIB))
    state_bytes: int = GIB
    growth_counts: tuple[int, ...] = (1_000, 10_000, 100_000)
    growth_sizes: tuple[int, ...] = (GIB, 2 * GIB, 4 * GIB, 8 * GIB)
    growth_connections: tuple[int, ...] = (1, 2, 4, 8, 16)
    s3a: bool = False

    @property
    def cpu(self) -> int:
        """The CPU of contenders."""
        return usable_cpus()[0]

    @property
    def server_cpu(self) -> int:
        return usable_cpus()[1]

    @classmethod
    def small_sized(cls, scratch: Path) -> Settings:
        """For `--quick`: the same shapes of work, a quarter of the bytes, two rounds."""
        return cls(
            scratch=scratch,
            quick=True,
            rounds=2,
            few_rounds=1,
            warm_ups=0,
            large=Shape(4, 64 * MIB),
            small=Shape(500, 64 << 10),
            huge=Shape(1, 512 * MIB),
            state_bytes=256 * MIB,
            growth_counts=(1_000, 5_000),
            growth_sizes=(256 * MIB, 512 * MIB),
            growth_connections=(1, 4, 16),
        )
