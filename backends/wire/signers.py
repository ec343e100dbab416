"""Signers by region, for credentials that are asked for now and then and refreshed once when they expired."""

from __future__ import annotations

import time
from collections import deque

from ..s3_access import Credentials, S3Access
from .exchange import SLICE
from .loop import Loop, Task
from .signing import Signer

_CREDENTIALS_EVERY = 60.0
_CREDENTIALS_TIMEOUT = 60.0


class Signers:
    """The signers of one batch.

    Attributes:
        generation: changes when the credentials do.
    """

    def __init__(self, loop: Loop, access: S3Access) -> None:
        self.generation = 0
        self._loop = loop
        self._access = access
        self._signers: dict[str, Signer] = {}
        self._credentials: Credentials | None = None
        self._refreshed = False
        self._asked = 0.0
        self._asking = False
        self._parked: deque[Task] = deque()

    @property
    def anonymous(self) -> bool:
        """Whether requests go unsigned."""
        return self._credentials is None

    async def of(self, region: str) -> Signer:
        if time.monotonic() - self._asked > _CREDENTIALS_EVERY or not self._asked:
            await self._renew(refresh=False)
        if region not in self._signers:
            self._signers[region] = Signer(self._credentials, region)
        return self._signers[region]

    async def refresh(self, generation: int) -> bool:
        """Ask the chain anew, once a batch. Returns whether the credentials changed since ``generation``."""
        if generation == self.generation and not self._refreshed:
            self._refreshed = True
            await self._renew(refresh=True)
        return generation != self.generation

    async def _renew(self, *, refresh: bool) -> None:
        while self._asking:
            await self._loop.park(self._parked, SLICE)
            if not refresh and self._asked:
                return
        self._asking = True
        try:
            self._take(await self._credentials_now(refresh=refresh))
        finally:
            self._asking = False
            while self._parked:
                self._loop.unpark(self._parked)

    async def _credentials_now(self, *, refresh: bool) -> Credentials | None:
        access = self._access
        if not access.asks_chain:
            return access.credentials()
        return await self._loop.in_thread(lambda: access.credentials(refresh=refresh), timeout=_CREDENTIALS_TIMEOUT)

    def _take(self, found: Credentials | None) -> None:
        if not self._asked or found != self._credentials:
            self._credentials = found
            self.generation += 1
            self._signers.clear()
        self._asked = time.monotonic()
