"""Event loops for the worker threads of a batch: one each, none shared, none left behind.

fsspec runs all of a process on one loop in one daemon thread, which does not survive a fork. A
lane is a loop inside the thread that waits for it: no hand-over per chunk, and nothing is alive
between batches that a forked child could inherit.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from .closeables import CloseableRegistry

T = TypeVar("T")
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER on, for 0 s (socket(7))
#: Opens the client of a lane in the lane's loop.
OpenClient = Callable[[], Awaitable[Any]]


class _Loop(asyncio.SelectorEventLoop):
    """A loop that knows its connections."""

    def __init__(self) -> None:
        super().__init__()
        self._connections: weakref.WeakSet[asyncio.BaseTransport] = weakref.WeakSet()

    async def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        transport, protocol = await super().create_connection(*args, **kwargs)
        self._connections.add(transport)
        return transport, protocol

    def sever(self) -> None:
        """Drop all connections with what they still have to send: closing alone would wait for that."""
        for transport in list(self._connections):
            if isinstance(transport, asyncio.Transport):
                with contextlib.suppress(OSError, AttributeError):
                    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                # One that has ended has no loop any more (asyncio's own AttributeError).
                with contextlib.suppress(AttributeError):
                    transport.abort()


class Lane:
    """One event loop with a client of its own, for one thread at a time."""

    def __init__(self, open_client: OpenClient) -> None:
        self._open_client = open_client
        self._client: Any = None
        self._loop = _Loop()

    async def client(self) -> Any:
        """The client of this lane, made when it is first asked for."""
        if self._client is None:
            self._client = await self._open_client()
        return self._client

    def run(self, work: Callable[[], Coroutine[Any, Any, T]], registry: CloseableRegistry) -> T:
        """Run to the end, or until the registry is closed.

        Raises:
            CopyCancelled: the registry was closed.
        """
        registry.check()
        task = self._loop.create_task(work())
        try:
            with registry.registered(lambda: self._loop.call_soon_threadsafe(task.cancel)):
                return self._loop.run_until_complete(task)
        except asyncio.CancelledError:
            registry.check()
            raise
        finally:
            if not task.done():
                # The registry was closed before the task began.
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    self._loop.run_until_complete(task)

    def sever(self) -> None:
        """Drop the client's connections, in mid-request if need be; the next request makes new ones."""
        self._loop.sever()

    def close(self) -> None:
        try:
            if self._client is not None:
                self._loop.run_until_complete(self._close_client())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()

    async def _close_client(self) -> None:
        await self._client.close()
        self._loop.sever()
        # Transports end one turn of the loop after they are told to.
        await asyncio.sleep(0)


class Lanes:
    """The lanes of one batch, by thread."""

    def __init__(self, open_client: OpenClient) -> None:
        self._open_client = open_client
        self._lock = threading.Lock()
        self._lanes: dict[int, Lane] = {}

    def own(self) -> Lane:
        """The calling thread's lane."""
        thread = threading.get_ident()
        with self._lock:
            if thread not in self._lanes:
                self._lanes[thread] = Lane(self._open_client)
            return self._lanes[thread]

    def close(self) -> None:
        """Close all lanes; their threads have ended."""
        lanes = list(self._lanes.values())
        self._lanes.clear()
        if lanes:
            # In a thread of its own: the caller's may have a running loop (a notebook's has).
            thread = threading.Thread(target=_close, args=(lanes,), name="statelift-stream-close")
            thread.start()
            thread.join()


def _close(lanes: list[Lane]) -> None:
    for lane in lanes:
        lane.close()
