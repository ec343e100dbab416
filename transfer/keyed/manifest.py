"""RocksDB's MANIFEST: which SST files make a database, read and written without RocksDB.

A MANIFEST is a log (32 KiB blocks of records: masked CRC32C, length, type) of version edits, each
a run of tagged varints and length-prefixed bytes. The numbers are those of RocksDB's
``db/log_format.h`` and ``db/version_edit.h`` (10.x). Anything that is not known for certain to be
harmless raises `UnknownManifest`, so that the caller takes a slower way that lets RocksDB decide.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from .coding import MalformedRecord, Reader, log, prefixed, records, varint

COMPARATOR = b"leveldb.BytewiseComparator"

# Tags of version edits.
_COMPARATOR, _LOG_NUMBER, _NEXT_FILE, _LAST_SEQUENCE = 1, 2, 3, 4
_COMPACT_CURSOR, _DELETED_FILE, _PREVIOUS_LOG, _MIN_LOG = 5, 6, 9, 10
_NEW_FILE, _MAX_COLUMN_FAMILY = 103, 203
_IGNORABLE = 1 << 13  # tags above it carry one length-prefixed field and may be skipped
_BLOB_ADDITION, _BLOB_GARBAGE, _HISTORY_LOW = _IGNORABLE + 2, _IGNORABLE + 3, _IGNORABLE + 6

# Tags of the fields that follow a new file.
_END, _MIN_LOG_OF_FILE, _OLDEST_BLOB = 1, 3, 4
_UNIQUE_ID, _EPOCH = 12, 13
_LAST_KNOWN_FIELD = 15
_MAX_SEQUENCE_RANGE_DELETION = ((1 << 56) - 1) << 8 | 0xF


class UnknownManifest(ValueError):
    """The MANIFEST is damaged, or holds something that this module does not know."""


@dataclass(frozen=True, slots=True)
class TableFile:
    """One SST file as the MANIFEST describes it.

    Args:
        smallest: first internal key: user key, then 8 bytes of sequence number and type.
        largest: last internal key.
        fields: (tag, bytes) of the further fields, kept as they are.
    """

    number: int
    level: int
    size: int
    smallest: bytes
    largest: bytes
    smallest_sequence: int
    largest_sequence: int
    fields: tuple[tuple[int, bytes], ...] = ()

    @property
    def name(self) -> str:
        return f"{self.number:06d}.sst"

    @property
    def first_key(self) -> bytes:
        return self.smallest[:-8]

    @property
    def last_key(self) -> bytes:
        return self.largest[:-8]

    @property
    def ends_before_last_key(self) -> bool:
        """Whether the file ends with a range deletion, whose end is exclusive."""
        return int.from_bytes(self.largest[-8:], "little") == _MAX_SEQUENCE_RANGE_DELETION

    @property
    def unique_id(self) -> str | None:
        """Identity of the file's content, whatever its number, in hexadecimal digits."""
        found = self._field(_UNIQUE_ID)
        return found.hex() if found and any(found) else None

    @property
    def epoch(self) -> int:
        """Order of the file's flush: among overlapping files of level 0 the larger is newer."""
        found = self._field(_EPOCH)
        return Reader(found).varint() if found else 0

    def _field(self, tag: int) -> bytes | None:
        return next((data for each, data in self.fields if each == tag), None)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files of a database with the default column family only, and its counters."""

    files: tuple[TableFile, ...]
    last_sequence: int
    next_file: int
    log_number: int = 0

    def only(self, names: Iterable[str]) -> Manifest:
        """The same database without the files that are not named."""
        kept = set(names)
        return replace(self, files=tuple(file for file in self.files if file.name in kept))


def read_manifest(directory: str) -> Manifest:
    """The MANIFEST that CURRENT names.

    Raises:
        UnknownManifest: it is damaged, or holds what this module does not know.
        OSError: a file is missing or cannot be read.
    """
    with open(os.path.join(directory, "CURRENT"), encoding="ascii", errors="replace") as current:
        name = current.read().strip()
    if not name.startswith("MANIFEST-") or "/" in name:
        raise UnknownManifest(f"CURRENT names {name!r}")
    with open(os.path.join(directory, name), "rb") as file:
        return parse(file.read())


def write_manifest(directory: str, manifest: Manifest) -> None:
    """Write MANIFEST and CURRENT for SST files that lie, or will lie, in ``directory``."""
    number = max([manifest.next_file, *(file.number + 1 for file in manifest.files)])
    name = f"MANIFEST-{number:06d}"
    _replace(os.path.join(directory, name), serialize(replace(manifest, next_file=number + 1)))
    _replace(os.path.join(directory, "CURRENT"), f"{name}\n".encode())


def _replace(path: str, data: bytes) -> None:
    # Never into a file that is there: it may be a hard link to the checkpoint's own.
    temporary = f"{path}.tmp"
    with open(temporary, "wb") as file:
        file.write(data)
    os.replace(temporary, path)


def compose(parts: Sequence[Manifest]) -> tuple[Manifest, list[dict[str, str]]]:
    """One database out of several.

    No key may lie in files of two parts, except in a file that both have, on the same level and
    with the same epoch; it is taken once. Then levels and epochs stay: files of one level overlap
    across parts as little as within them, and of the files that hold a key the order is kept.
    File numbers are given anew.

    Returns:
        the manifest, and for each part its files' new names by their old ones.

    Raises:
        UnknownManifest: a file that two parts have is not in the same place, or one has no identity.
    """
    files: dict[str, TableFile] = {}
    names: list[dict[str, str]] = []
    for part in parts:
        renamed: dict[str, str] = {}
        for file in part.files:
            if file.unique_id is None or not file.epoch:
                raise UnknownManifest(f"{file.name} has no unique id or no epoch")
            found = files.setdefault(file.unique_id, replace(file, number=len(files) + 1))
            if (found.level, found.epoch, found.size) != (file.level, file.epoch, file.size):
                raise UnknownManifest(f"{file.name} is in another place in another part")
            renamed[file.name] = found.name
        names.append(renamed)
    last_sequence = max((part.last_sequence for part in parts), default=0)
    return Manifest(tuple(files.values()), last_sequence, len(files) + 1), names


def parse(data: bytes) -> Manifest:
    """Decode the bytes of a MANIFEST.

    Raises:
        UnknownManifest: see the module.
    """
    state = _State()
    try:
        for record in records(data):
            state.apply(record)
    except MalformedRecord as error:
        raise UnknownManifest(str(error)) from error
    return state.manifest()


def serialize(manifest: Manifest) -> bytes:
    """Encode a MANIFEST that holds exactly this state, as RocksDB writes one when it starts anew."""
    header = bytearray(varint(_COMPARATOR) + prefixed(COMPARATOR))
    for tag, value in (
        (_LOG_NUMBER, manifest.log_number),
        (_PREVIOUS_LOG, 0),
        (_NEXT_FILE, manifest.next_file),
        (_MAX_COLUMN_FAMILY, 0),
        (_LAST_SEQUENCE, manifest.last_sequence),
    ):
        header += varint(tag) + varint(value)
    return log([bytes(header), *(_encode_file(file) for file in manifest.files)])


class _State:
    """The files and counters after the edits so far."""

    def __init__(self) -> None:
        self.files: dict[tuple[int, int], TableFile] = {}
        self.counters: dict[int, int] = {}

    def apply(self, edit: bytes) -> None:
        # RocksDB applies an edit's deletions before its additions: a move between levels has both.
        reader = Reader(edit)
        added: list[TableFile] = []
        while reader.left:
            tag = reader.varint()
            if tag == _NEW_FILE:
                added.append(_decode_file(reader))
            elif tag == _DELETED_FILE:
                level, number = reader.varint(), reader.varint()
                if self.files.pop((level, number), None) is None:
                    raise UnknownManifest(f"file {number} is deleted but was not there")
            else:
                self._other(tag, reader)
        self.files.update({(file.level, file.number): file for file in added})

    def _other(self, tag: int, reader: Reader) -> None:
        if tag in {_LOG_NUMBER, _NEXT_FILE, _LAST_SEQUENCE, _PREVIOUS_LOG, _MIN_LOG, _MAX_COLUMN_FAMILY}:
            self.counters[tag] = max(reader.varint(), self.counters.get(tag, 0))
        elif tag == _COMPARATOR:
            name = reader.bytes()
            if name != COMPARATOR:
                raise UnknownManifest(f"comparator {name!r}")
        elif tag == _COMPACT_CURSOR:
            reader.varint()
            reader.bytes()
        elif tag > _IGNORABLE and tag not in {_BLOB_ADDITION, _BLOB_GARBAGE, _HISTORY_LOW}:
            reader.bytes()
        else:
            raise UnknownManifest(f"tag {tag}")

    def manifest(self) -> Manifest:
        missing = {_LOG_NUMBER, _NEXT_FILE, _LAST_SEQUENCE} - self.counters.keys()
        if missing or self.counters.get(_MAX_COLUMN_FAMILY, 0):
            raise UnknownManifest(f"counters {sorted(missing)} are missing" if missing else "more column families")
        numbers = {number for _, number in self.files}
        if len(numbers) != len(self.files):
            raise UnknownManifest("a file is on two levels")
        files = sorted(self.files.values(), key=lambda file: (file.level, file.number))
        counters = self.counters
        return Manifest(tuple(files), counters[_LAST_SEQUENCE], counters[_NEXT_FILE], counters[_LOG_NUMBER])


def _decode_file(reader: Reader) -> TableFile:
    level, number, size = reader.varint(), reader.varint(), reader.varint()
    smallest, largest = reader.bytes(), reader.bytes()
    smallest_sequence, largest_sequence = reader.varint(), reader.varint()
    if min(len(smallest), len(largest)) < 8:
        raise UnknownManifest(f"file {number} has a short key")
    fields: list[tuple[int, bytes]] = []
    while (tag := reader.varint()) != _END:
        data = reader.bytes()
        if tag > _LAST_KNOWN_FIELD or tag == _OLDEST_BLOB:
            raise UnknownManifest(f"file {number} has field {tag}")
        if tag != _MIN_LOG_OF_FILE:
            fields.append((tag, data))
    return TableFile(number, level, size, smallest, largest, smallest_sequence, largest_sequence, tuple(fields))


def _encode_file(file: TableFile) -> bytes:
    numbers = b"".join(map(varint, (_NEW_FILE, file.level, file.number, file.size)))
    keys = prefixed(file.smallest) + prefixed(file.largest)
    sequences = varint(file.smallest_sequence) + varint(file.largest_sequence)
    fields = b"".join(varint(tag) + prefixed(data) for tag, data in file.fields)
    return numbers + keys + sequences + fields + varint(_END)
