"""Key groups: Spark's own ``pmod(hash(key), max_parallelism)``, as a Spark expression and in Python.

Rows are routed by the expression, so that no Python function runs per row; `spark_hash` computes
the same number where there is no Spark. RocksDB keys start with the key group as two bytes,
big-endian, so that a range of key groups is a range of keys.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ...backends.errors import UsageError
from ..handles import KeyGroupRange

if TYPE_CHECKING:
    from pyspark.sql import Column

Scalar: TypeAlias = str | bytes | int | bool | float | None
#: A key of one column, or of several as a tuple.
Key: TypeAlias = "Scalar | tuple[Scalar, ...]"

PREFIX_BYTES = 2
MAX_PARALLELISM = 1 << 15
SPARK_SEED = 42
_MASK = 0xFFFFFFFF
_PREFIX = struct.Struct(">H")


def prefix_of(key_group: int) -> bytes:
    """The first bytes of every RocksDB key of a key group."""
    return _PREFIX.pack(key_group)


def key_bounds(key_groups: KeyGroupRange) -> tuple[bytes, bytes]:
    """First RocksDB key of a range of key groups, and the first one behind it."""
    return prefix_of(key_groups.first), prefix_of(key_groups.last + 1)


def key_groups_between(smallest: bytes, largest: bytes) -> KeyGroupRange:
    """The key groups from one RocksDB key to another, both inclusive.

    Raises:
        UsageError: a key has no prefix.
    """
    if min(len(smallest), len(largest)) < PREFIX_BYTES:
        raise UsageError(f"a key without a key group: {min(smallest, largest, key=len)!r}")
    return KeyGroupRange(_PREFIX.unpack_from(smallest)[0], _PREFIX.unpack_from(largest)[0])


def check_max_parallelism(max_parallelism: int) -> int:
    """The number itself.

    Raises:
        UsageError: it is not between 1 and 32768.
    """
    if not 1 <= max_parallelism <= MAX_PARALLELISM:
        raise UsageError(f"max_parallelism {max_parallelism} is not between 1 and {MAX_PARALLELISM}")
    return max_parallelism


def key_group_expression(columns: str | Column | Sequence[str | Column], max_parallelism: int) -> Column:
    """The key group of each row, as a column of integers.

    Args:
        columns: the key's columns, by name or as expressions.
    """
    from pyspark.sql import functions

    several = list(columns) if isinstance(columns, (list, tuple)) else [columns]
    modulus = functions.lit(check_max_parallelism(max_parallelism))
    column: Column = functions.pmod(functions.hash(*several), modulus)
    return column


def subtask_expression(
    columns: str | Column | Sequence[str | Column], max_parallelism: int, *, parallelism: int
) -> Column:
    """The subtask that owns each row, to be given to ``DataFrame.repartitionById`` (Spark 4)."""
    from pyspark.sql import functions

    key_group = key_group_expression(columns, max_parallelism).cast("long")
    column: Column = functions.floor(key_group * parallelism / functions.lit(max_parallelism)).cast("int")
    return column


def key_group_of(key: Key, max_parallelism: int) -> int:
    """The key group of a key, equal to `key_group_expression`'s for the same value."""
    return spark_hash(key) % max_parallelism


def encode_key(key: str | bytes | int) -> bytes:
    """A single key as bytes: text as UTF-8, whole numbers as 8 bytes that sort like the numbers.

    Raises:
        UsageError: a number of more than 64 bits.
    """
    if isinstance(key, bytes):
        return key
    if isinstance(key, str):
        return key.encode()
    if not -(1 << 63) <= key < 1 << 63:
        raise UsageError(f"{key} has more than 64 bits")
    return struct.pack(">Q", key + (1 << 63))


def spark_hash(value: Key, seed: int = SPARK_SEED) -> int:
    """Spark's ``hash(value)``: Murmur3_x86_32, seed 42, as a signed 32-bit number.

    A Python ``int`` is a ``bigint`` and a ``float`` a ``double``, as Spark infers them; for an
    ``int`` column use `spark_hash_int`. A tuple is the hash of several columns. Null leaves the
    seed as it is. Strings and bytes differ from the published Murmur3 in the last bytes that do
    not fill a word: Spark mixes each of them in as a signed word of its own
    (``Murmur3_x86_32.hashUnsafeBytes``).

    Raises:
        UsageError: a number of more than 64 bits, or a type that has no hash here.
    """
    if isinstance(value, tuple):
        for each in value:
            seed = spark_hash(each, seed)
        return seed
    if value is None:
        return seed
    if isinstance(value, bool):
        return spark_hash_int(int(value), seed)
    if isinstance(value, int):
        return _hash_long(value, seed)
    if isinstance(value, float):
        return _hash_double(value, seed)
    return _hash_bytes(encode_key(value), seed) if isinstance(value, (str, bytes)) else _refuse(value)


def spark_hash_int(value: int, seed: int = SPARK_SEED) -> int:
    """Spark's ``hash`` of an ``int``, ``smallint``, ``tinyint`` or ``date`` column."""
    return _finish(_mix(seed & _MASK, value & _MASK), 4)


def _refuse(value: Any) -> int:
    raise UsageError(f"a {type(value).__name__} cannot be a key", remedy="str, bytes, int, bool, float or None")


def _hash_long(value: int, seed: int) -> int:
    if not -(1 << 63) <= value < 1 << 63:
        raise UsageError(f"{value} has more than 64 bits")
    return _finish(_mix(_mix(seed & _MASK, value & _MASK), value >> 32 & _MASK), 8)


def _hash_double(value: float, seed: int) -> int:
    # Spark hashes -0.0 as 0.0 and every NaN as Java's canonical one.
    bits = 0x7FF8 << 48 if value != value else struct.unpack(">q", struct.pack(">d", value + 0.0))[0]
    return _hash_long(bits, seed)


def _hash_bytes(data: bytes, seed: int) -> int:
    state = seed & _MASK
    words = len(data) // 4
    for word in struct.unpack_from(f"<{words}I", data):
        state = _mix(state, word)
    for byte in data[4 * words :]:
        state = _mix(state, byte if byte < 128 else byte | 0xFFFFFF00)
    return _finish(state, len(data))


def _mix(state: int, word: int) -> int:
    word = word * 0xCC9E2D51 & _MASK
    word = (word << 15 | word >> 17) & _MASK
    state ^= word * 0x1B873593 & _MASK
    state = (state << 13 | state >> 19) & _MASK
    return (state * 5 + 0xE6546B64) & _MASK


def _finish(state: int, length: int) -> int:
    state ^= length
    state = (state ^ state >> 16) * 0x85EBCA6B & _MASK
    state = (state ^ state >> 13) * 0xC2B2AE35 & _MASK
    state ^= state >> 16
    return state - (1 << 32) if state >> 31 else state
