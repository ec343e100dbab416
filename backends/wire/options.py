"""Options ``s3.connection.max`` and ``wire.*``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..errors import OptionError
from ..options import OptionGroup, option, parse_bool, parse_duration, parse_size

MIB = 1 << 20
#: S3 refuses smaller parts but the last, and more than 10,000 of them (AWS, "Multipart upload limits").
SMALLEST_PART = 5 * MIB
MOST_PARTS = 10_000
#: What a TLS connection keeps in this process: OpenSSL's state and undecrypted records.
TLS_CONNECTION_MEMORY = 400 << 10
PLAIN_CONNECTION_MEMORY = 8 << 10


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError("must be at least 1")
    return value


def _positive_size(text: str) -> int:
    value = parse_size(text)
    if value < 1:
        raise ValueError("must be at least 1 byte")
    return value


def _part(text: str) -> int:
    value = parse_size(text)
    if not SMALLEST_PART <= value <= 5 << 30:
        raise ValueError("must be between 5mb and 5gb")
    return value


def _percent(text: str) -> float:
    value = float(text.strip().removesuffix("%"))
    if not 0 < value <= 100_000:
        raise ValueError("must be a percentage of one CPU, above 0")
    return value


@dataclass(frozen=True, kw_only=True)
class WireOptions(OptionGroup):
    """How the in-process engine uses the network, the CPU and memory.

    Memory above the interpreter is 1.25 times ``buffer-size`` (one shared buffer, whatever the
    number of files), 0.4 MiB per connection over TLS or 8 KiB over HTTP, and about 1 KiB per
    request that waits.
    """

    connections: int = option(
        "s3.connection.max",
        64,
        parse=_positive,
        help="Connections per process at most; as many are opened as keep the CPU busy.",
        hadoop=("fs.s3a.connection.maximum",),
    )
    part_size: int = option(
        "wire.part-size", 8 * MIB, parse=_part, shown="8mb", help="Larger objects are copied in ranges of this size."
    )
    buffer_size: int = option(
        "wire.buffer-size", MIB, parse=_positive_size, shown="1mb", help="Bytes read and written at once."
    )
    memory: int = option(
        "wire.memory.max",
        64 * MIB,
        parse=_positive_size,
        shown="64mb",
        help="Limits the connections so that buffers and connections stay below it.",
    )
    bandwidth: int | None = option("wire.bandwidth.max", None, parse=_positive_size, help="Bytes per second at most.")
    cpu_limit: float | None = option("wire.cpulimit", None, parse=_percent, help="Percent of one CPU at most.")
    host_limits: bool = option(
        "wire.host-limits",
        False,
        parse=parse_bool,
        shown="false",
        help="Whether s3.connection.max, wire.bandwidth.max and wire.cpulimit hold for all processes of this host.",
    )
    state_directory: Path | None = option(
        "wire.state-directory",
        None,
        parse=Path,
        shown="statelift-<uid> in the temporary directory",
        help="Local directory of the upload journal and of the limits that processes share.",
    )
    retry_time: float = option(
        "wire.retry-time",
        60.0,
        parse=parse_duration,
        shown="60s",
        help="Limit for the retries of one part, counted anew after worthwhile progress.",
    )
    minimum_rate: int = option(
        "wire.minimum-rate",
        1024,
        parse=parse_size,
        shown="1kb",
        help="Bytes per second; a part slower than this over transfer.stall-timeout goes to another connection.",
    )
    sign_payload: bool = option(
        "wire.sign-payload",
        False,
        parse=parse_bool,
        shown="false",
        help="Sign a SHA-256 over what is uploaded, for stores that insist on it.",
    )
    splice: bool = option(
        "wire.splice",
        False,
        parse=parse_bool,
        shown="false",
        help="Move bytes within the kernel where nothing verifies them: needs http:// and transfer.verify=false.",
    )

    def __post_init__(self) -> None:
        if self.buffer_size > self.memory // 2:
            raise OptionError("wire.buffer-size must be at most half of wire.memory.max")

    def connection_limit(self, *, tls: bool) -> int:
        """Connections that ``s3.connection.max`` and ``wire.memory.max`` allow."""
        each = TLS_CONNECTION_MEMORY if tls else PLAIN_CONNECTION_MEMORY
        return max(1, min(self.connections, (self.memory - self.buffer_size * 5 // 4) // each))

    def part_size_for(self, size: int) -> int:
        """The size of parts with which an object of ``size`` has at most 10,000."""
        part = self.part_size
        while -(-size // part) > MOST_PARTS:
            part *= 2
        return part
