"""Which multipart uploads this process has begun, on local disk, so that none is orphaned by SIGKILL.

One file per batch, locked while its process lives (flock). A line is added before an upload is
created, one when its identifier is known, one when it has ended. Whoever finds an unlocked file
aborts what it names and removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ..errors import SourceNotFound, TransferError
from .answers import elements
from .client import Client
from .exchange import Order

_SUFFIX = ".uploads"
_CLOCK_SKEW = 5.0


@dataclass(frozen=True, slots=True)
class Orphan:
    """An upload that its process did not end.

    Args:
        upload_id: None where the process died between asking for it and knowing it.
        since: when it was asked for, seconds since the epoch.
    """

    bucket: str
    key: str
    upload_id: str | None
    since: float


class Journal:
    """The file of one batch; made by the first upload.

    Args:
        store: names the endpoint and account, so that nobody asks one store about another's uploads.
    """

    def __init__(self, directory: Path, store: str) -> None:
        self._directory = directory
        self._store = store
        self._path: Path | None = None
        self._fd = -1
        self._count = 0
        self._open: set[int] = set()

    def intend(self, bucket: str, key: str) -> int:
        """Note that an upload is about to be created. Returns its number here."""
        self._make()
        self._count += 1
        self._open.add(self._count)
        self._write({"n": self._count, "bucket": bucket, "key": key, "since": time.time()})
        return self._count

    def began(self, number: int, upload_id: str) -> None:
        self._write({"n": number, "id": upload_id})

    def ended(self, number: int) -> None:
        """Completed or aborted."""
        self._open.discard(number)
        self._write({"n": number, "ended": True})

    def _make(self) -> None:
        if self._fd >= 0:
            return
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = self._directory / f"{os.getpid()}-{secrets.token_hex(4)}{_SUFFIX}"
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        self._write({"store": self._store})

    def _write(self, record: dict[str, object]) -> None:
        if self._fd >= 0:
            os.write(self._fd, (json.dumps(record) + "\n").encode())

    def close(self) -> None:
        """Remove the file, unless uploads are left that the next start must abort."""
        if self._fd < 0:
            return
        if self._path is not None and not self._open:
            with contextlib.suppress(OSError):
                self._path.unlink()
        os.close(self._fd)
        self._fd = -1


@contextlib.contextmanager
def abandoned(directory: Path, store: str) -> Iterator[dict[Path, list[Orphan]]]:
    """Journals of dead processes for this store, locked within the block; `Path.unlink` those that are dealt with."""
    held: list[int] = []
    found: dict[Path, list[Orphan]] = {}
    try:
        for path in sorted(directory.glob(f"*{_SUFFIX}")) if directory.is_dir() else ():
            fd = _lock(path)
            if fd is None:
                continue
            held.append(fd)
            orphans = _read(path, store)
            if orphans is not None:
                found[path] = orphans
        yield found
    finally:
        for fd in held:
            os.close(fd)


def _lock(path: Path) -> int | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


def _read(path: Path, store: str) -> list[Orphan] | None:
    """What a journal names; None: it is another store's. A line cut short by the kill is skipped."""
    orphans: dict[int, Orphan] = {}
    for line in path.read_text(errors="replace").splitlines():
        try:
            record = json.loads(line)
            if "store" in record:
                if record["store"] != store:
                    return None
            elif "ended" in record:
                orphans.pop(record["n"], None)
            elif "id" in record:
                before = orphans[record["n"]]
                orphans[record["n"]] = Orphan(before.bucket, before.key, str(record["id"]), before.since)
            else:
                orphans[record["n"]] = Orphan(record["bucket"], record["key"], None, float(record["since"]))
        except (ValueError, KeyError, TypeError):
            continue
    return list(orphans.values())


async def abort_abandoned(client: Client, directory: Path, store: str) -> None:
    """Abort what dead processes left in this store, and remove their journals.

    Raises:
        TransferError: the store refused; the journal stays for another time.
    """
    with abandoned(directory, store) as found:
        for path, orphans in found.items():
            for orphan in orphans:
                await abort_orphan(client, orphan)
            with contextlib.suppress(OSError):
                path.unlink()


async def abort_orphan(client: Client, orphan: Orphan) -> None:
    """Abort one upload, or where its identifier never came, what may be it.

    Raises:
        TransferError: the store refused.
    """
    for upload_id in await _identifiers(client, orphan):
        await _abort(client, orphan, upload_id)


async def _identifiers(client: Client, orphan: Orphan) -> list[str]:
    """The orphan's upload id; where it died unknown, those of its very key that began after it was asked for."""
    if orphan.upload_id is not None:
        return [orphan.upload_id]
    query = {"uploads": "", "prefix": orphan.key}
    try:
        _, body = await client.ask(Order("GET", orphan.bucket, "", query))
    except TransferError as error:
        # rclone's answer for a bucket without uploads.
        if is_unknown_upload(error):
            return []
        raise
    found = []
    for block in re.findall(rb"<Upload>.*?</Upload>", body, re.DOTALL):
        each = elements(block)
        if each.get("Key") == orphan.key and _began(each.get("Initiated", "")) >= orphan.since - _CLOCK_SKEW:
            found.append(each.get("UploadId", ""))
    return [upload_id for upload_id in found if upload_id]


def _began(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0


async def _abort(client: Client, orphan: Orphan, upload_id: str) -> None:
    try:
        await client.ask(Order("DELETE", orphan.bucket, orphan.key, {"uploadId": upload_id}))
    except TransferError as error:
        # Already gone is what is wanted.
        if not is_unknown_upload(error):
            raise


def is_unknown_upload(error: TransferError) -> bool:
    """Whether the store says that there is no such upload: completed or aborted before."""
    return isinstance(error, SourceNotFound) or "NoSuchUpload" in str(error)
