"""What multipart uploads and multipart copies share: parts as jobs, an identifier, an end."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from ..checksums import from_text
from ..errors import (
    BackendError,
    IntegrityError,
    SourceNotFound,
    Throttled,
    TransferError,
    UsageError,
)
from ..request import CopyRequest, locate
from .answers import complete_document, elements
from .exchange import Order
from .journal import Orphan, abort_orphan, is_unknown_upload
from .response import Head

if TYPE_CHECKING:
    from .engine import Engine
    from .schedule import Job


class Step:
    """A job that is one call of a coroutine function."""

    def __init__(self, transfer: ToObject, run: Callable[[], Awaitable[None]]) -> None:
        self._transfer = transfer
        self._run = run
        self.weight = transfer.weight
        self.order = transfer.number
        self.budget = transfer.engine.budget()

    @property
    def transfer(self) -> ToObject:
        return self._transfer

    @property
    def stale(self) -> bool:
        return self._transfer.ended

    async def run(self) -> None:
        await self._run()


class ToObject:
    """A transfer whose destination is an object, written whole or in parts.

    Attributes:
        ended: published or failed; jobs that are left have nothing to do.
    """

    def __init__(self, engine: Engine, request: CopyRequest) -> None:
        self.engine = engine
        self.request = request
        self.target = locate(request.destination)
        # Unknown sizes come first: they may be large.
        self.weight = request.expected if request.expected is not None else 1 << 62
        self.number = engine.number()
        self.ended = False
        self._intent = 0
        self._unanswered: list[tuple[int, Orphan]] = []
        self._completing = False
        self._started = time.monotonic()
        self._upload_id: str | None = None
        self._parts: list[tuple[str, str | None]] = []
        self._left = 0

    def add(self, run: Callable[[], Awaitable[None]]) -> None:
        self.engine.schedule.add(Step(self, run))

    def order(self, method: str, query: dict[str, str] | None = None) -> Order:
        """A request to the destination."""
        return Order(method, self.target.bucket, self.target.key, query or {})

    def encryption(self) -> dict[str, str]:
        """Headers of server-side encryption, where it is configured."""
        options = self.engine.client.access.options
        if options.sse_type == "none":
            return {}
        headers = {"x-amz-server-side-encryption": options.sse_type}
        if options.sse_type == "aws:kms" and options.sse_kms_key_id:
            headers["x-amz-server-side-encryption-aws-kms-key-id"] = options.sse_kms_key_id
        return headers

    async def _delete(self) -> None:
        """Remove the object that we just made and that is wrong."""
        with contextlib.suppress(TransferError):
            await self.engine.client.ask(self.order("DELETE"))

    # Multipart.

    async def start_parts(self, count: int, run_part: Callable[[int], Awaitable[None]], *, checksum: bool) -> None:
        """Create the upload, note it in the journal, schedule its parts."""
        order = self.order("POST", {"uploads": ""})
        order.headers.update(self.encryption())
        if checksum:
            order.headers["x-amz-checksum-algorithm"] = "CRC64NVME"
            order.headers["x-amz-checksum-type"] = "FULL_OBJECT"
        intent, since = self.engine.journal.intend(self.target.bucket, self.target.key), time.time()
        try:
            _, body = await self.engine.client.ask(order)
            upload_id = elements(body).get("UploadId")
            if not upload_id:
                raise BackendError(f"{self.request.destination}: the store gave no upload id", transient=True)
        except TransferError as error:
            if error.transient and not isinstance(error, Throttled):
                # The store may have begun an upload whose name we shall never hear.
                self._unanswered.append((intent, Orphan(self.target.bucket, self.target.key, None, since)))
                self.engine.holds_parts(self)
            else:
                self.engine.journal.ended(intent)
            raise
        self.engine.journal.began(intent, upload_id)
        self._intent = intent
        self._upload_id = upload_id
        self.engine.holds_parts(self)
        self._parts = [("", None)] * count
        self._left = count
        for index in range(count):
            self.add(lambda index=index: run_part(index))  # type: ignore[misc]

    def part_order(self, index: int) -> Order:
        return self.order("PUT", {"partNumber": str(index + 1), "uploadId": self._upload_id or ""})

    def part_done(self, index: int, etag: str, checksum: str | None) -> None:
        if self.ended:
            return
        self._parts[index] = (etag, checksum)
        self._left -= 1
        if self._left == 0:
            self.add(self._complete)

    async def _complete(self) -> None:
        order = self.order("POST", {"uploadId": self._upload_id or ""})
        order.body = complete_document(self._parts)
        order.patience = self.engine.patience
        checksum = self.whole_checksum()
        if checksum is not None:
            order.headers["x-amz-checksum-crc64nvme"] = checksum
            order.headers["x-amz-checksum-type"] = "FULL_OBJECT"
        try:
            head, body = await self.engine.client.ask(order)
            answer = elements(body)
        except TransferError as error:
            if not (self._completing and is_unknown_upload(error)):
                self._completing = True
                raise
            # It was completed, perhaps by us, and the answer was lost.
            head = await self._look_for_ours()
            answer = {"ETag": head.headers["etag"]}
        if not answer.get("ETag"):
            raise BackendError(f"{self.request.destination}: the store did not confirm the upload", transient=True)
        self._closed()
        await self._abort_unanswered()
        await self.completed(head, answer)

    async def _look_for_ours(self) -> Head:
        """The head of the object, where it is the one made of our parts.

        The ETag of an object in parts is the MD5 of its parts' MD5s, unless it is encrypted with a key
        of KMS; the store's checksum tells as well.

        Raises:
            BackendError: it is not, or nobody can tell.
        """
        order = self.order("HEAD")
        order.headers["x-amz-checksum-mode"] = "ENABLED"
        with contextlib.suppress(SourceNotFound):
            head, _ = await self.engine.client.ask(order)
            etag, checksum = head.headers.get("etag", ""), self.whole_checksum()
            has_our_sum = checksum is not None and head.headers.get("x-amz-checksum-crc64nvme") == checksum
            if etag.strip('"') == _joined_etag(self._parts) or has_our_sum:
                return head
        raise BackendError(
            f"{self.request.destination}: the store knows the multipart upload no more, and no object made of its parts"
        )

    def _closed(self) -> None:
        """The store holds no parts of ours any more."""
        self.engine.journal.ended(self._intent)
        self._upload_id = None
        self.engine.holds_parts(self)

    async def _abort_unanswered(self) -> None:
        """Abort uploads that began though we never heard of it. What fails stays in the journal."""
        while self._unanswered:
            intent, orphan = self._unanswered.pop()
            with contextlib.suppress(TransferError):
                await abort_orphan(self.engine.client, orphan)
                self.engine.journal.ended(intent)

    def whole_checksum(self) -> str | None:
        """Base64 CRC64NVME of the object, where the parts carried theirs."""
        return None

    async def completed(self, _head: Head, answer: dict[str, str]) -> None:
        """The object is there.

        Args:
            answer: the elements of the store's answer.
        """

    async def abort(self) -> None:
        """Have the store forget the parts of a failed upload. What cannot be aborted stays in the journal."""
        upload_id, self._upload_id = self._upload_id, None
        if upload_id is not None:
            await abort_orphan(self.engine.client, Orphan(self.target.bucket, self.target.key, upload_id, 0.0))
            self.engine.journal.ended(self._intent)
        await self._abort_unanswered()

    @property
    def is_open(self) -> bool:
        """Whether the store holds parts of it, or may."""
        return self._upload_id is not None or bool(self._unanswered)

    # Failures.

    def recover(self, _job: Job, _error: TransferError) -> bool:
        return False

    def fail(self, error: TransferError) -> None:
        self.ended = True
        self.engine.failed(self.request, error)


def _joined_etag(parts: list[tuple[str, str | None]]) -> str | None:
    """The ETag that a store gives an object made of these parts, where theirs are MD5s."""
    try:
        digests = b"".join(bytes.fromhex(etag.strip('"')) for etag, _ in parts)
    except ValueError:
        return None
    return f"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(parts)}"


def confirmed(subject: str, promised: int | None, text: str | None) -> bool:
    """Whether the store computed the same CRC64NVME; False where it says nothing.

    Raises:
        IntegrityError: it computed another.
    """
    if promised is None or not text or "-" in text:
        return False
    try:
        found = from_text(text)
    except UsageError:
        return False
    if found != promised:
        stored = base64.b64encode(found.to_bytes(8, "big")).decode()
        raise IntegrityError(f"{subject}: the store computed CRC64NVME {stored}, which is not the file's")
    return True
