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
    """Sizes and counts of one run: by default about a quarter of an hour on 2 cores, by the time of its parts.

    Args:
        scratch: an empty directory on the disk that targets are written to.
        parts: what is run where the user does not say.
        rounds: of the main scenarios; ``few_rounds`` of the others.
        state_bytes: of the state that is recovered on one CPU; ``spark_bytes`` through Spark.
        thorough: run every scenario, and count system calls, in runs of their own.
        s3a: fetch Hadoop's S3 client for Spark's own state store.
    """

    scratch: Path
    quick: bool = False
    parts: tuple[str, ...] = ("recovery", "copying", "spark", "savepoint", "reuse", "growth", "neighbour")
    rounds: int = 3
    few_rounds: int = 1
    large: Shape = field(default_factory=lambda: Shape(16, 64 * MIB))
    small: Shape = field(default_factory=lambda: Shape(2000, 64 << 10))
    huge: Shape = field(default_factory=lambda: Shape(1, 2 * GIB))
    state_bytes: int = GIB
    spark_bytes: int = 256 * MIB
    growth_counts: tuple[int, ...] = (1_000, 10_000)
    growth_sizes: tuple[int, ...] = (GIB, 2 * GIB)
    growth_connections: tuple[int, ...] = (1, 4, 16)
    thorough: bool = False
    s3a: bool = False

    @property
    def cpu(self) -> int:
        """The CPU of contenders."""
        return usable_cpus()[0]

    @property
    def server_cpu(self) -> int:
        return usable_cpus()[1]

    @classmethod
    def short(cls, scratch: Path) -> Settings:
        """``--quick``: the main scenarios with a quarter of the bytes, one round. Under 3 minutes."""
        return cls(
            scratch,
            quick=True,
            parts=("recovery", "copying", "savepoint", "reuse"),
            rounds=1,
            large=Shape(4, 64 * MIB),
            small=Shape(500, 64 << 10),
            huge=Shape(1, 512 * MIB),
            state_bytes=256 * MIB,
            spark_bytes=64 * MIB,
            growth_counts=(1_000, 2_000),
            growth_sizes=(256 * MIB, 512 * MIB),
        )

    @classmethod
    def long(cls, scratch: Path) -> Settings:
        """``--full``: every scenario, growth as far as 100,000 files and 8 GiB. About 25 minutes."""
        return cls(
            scratch,
            thorough=True,
            growth_counts=(1_000, 10_000, 100_000),
            growth_sizes=(GIB, 2 * GIB, 4 * GIB, 8 * GIB),
            growth_connections=(1, 2, 4, 8, 16),
        )
