"""TLS over a non-blocking socket, in memory: few large reads of the socket, not two for each record.

OpenSSL alone asks the kernel for 5 bytes and then for the rest of each 16 KiB record; its
read-ahead cannot be reached from Python's ``ssl``, but a ``MemoryBIO`` that is filled by 256 KiB
at a time does the same.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from pathlib import Path
from typing import Any

_READ = 256 << 10
_SEND = 256 << 10


def make_context(ca_bundle: Path | None) -> ssl.SSLContext:
    """Verifies certificates and host names against the system's authorities or those of ``ca_bundle``."""
    context = ssl.create_default_context(cafile=str(ca_bundle) if ca_bundle else None)
    context.set_alpn_protocols(["http/1.1"])
    return context


class Tls:
    """One side of a TLS connection; methods raise ``BlockingIOError`` as the socket's do.

    Args:
        host: name that the peer must prove; None: this is the server's side.
        session: to resume.
    """

    def __init__(
        self,
        plain: socket.socket,
        context: ssl.SSLContext,
        host: str | None = None,
        session: ssl.SSLSession | None = None,
    ) -> None:
        self._socket = plain
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(
            self._incoming, self._outgoing, server_side=host is None, server_hostname=host, session=session
        )
        self._scratch = memoryview(bytearray(0))
        self._unsent = memoryview(b"")
        self._ended = False

    @property
    def session(self) -> ssl.SSLSession | None:
        """To resume by on another connection; TLS 1.3 has it after the first answer."""
        return self._object.session

    @property
    def undecrypted(self) -> int:
        """Bytes that have come and are not a whole record yet, at most a record after `receive` fell short."""
        return self._incoming.pending

    def handshake(self, scratch: memoryview) -> bool:
        """Go on with the handshake. Returns whether it is complete.

        Raises:
            ssl.SSLError: the peer cannot be trusted or speaks no TLS.
            BlockingIOError: it must be called again.
        """
        while True:
            try:
                self._object.do_handshake()
            except ssl.SSLWantReadError:
                self.flush()
                self._fill(scratch)
                if self._ended:
                    raise ConnectionResetError("closed during the TLS handshake") from None
            except ssl.SSLError:
                # The alert tells the peer why.
                with contextlib.suppress(OSError):
                    self.flush()
                raise
            else:
                self.flush()
                return True

    def receive(self, buffer: memoryview, scratch: memoryview) -> int:
        """Decrypt into ``buffer`` until it is full or the socket is empty. Returns 0 at the end.

        A result below the buffer's length means that the socket was empty.
        """
        count = self._decrypt(buffer, 0)
        while count < len(buffer) and not self._ended:
            try:
                self._fill(scratch)
            except BlockingIOError:
                break
            count = self._decrypt(buffer, count)
        if count == 0 and not self._ended:
            raise BlockingIOError
        return count

    def _decrypt(self, buffer: memoryview, count: int) -> int:
        size = len(buffer)
        read: Any = self._object.read
        try:
            while count < size:
                got: Any = read(size - count, buffer[count:])
                if got == 0:
                    self._ended = True
                    break
                count += got
        except ssl.SSLWantReadError:
            pass
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            self._ended = True
        return count

    def _fill(self, scratch: memoryview) -> None:
        count = self._socket.recv_into(scratch[:_READ])
        if count:
            self._incoming.write(scratch[:count])
        else:
            self._incoming.write_eof()
            self._ended = True

    def send(self, data: memoryview) -> int:
        """Encrypt and send. What was encrypted counts as sent; `flush` first where a call has raised."""
        self.flush()
        count = self._object.write(data[:_SEND])
        with contextlib.suppress(BlockingIOError):
            self.flush()
        return count

    def flush(self) -> None:
        """Send what is encrypted.

        Raises:
            BlockingIOError: some is left.
        """
        while True:
            if not len(self._unsent):
                if not self._outgoing.pending:
                    return
                self._unsent = memoryview(self._outgoing.read())
            sent = self._socket.send(self._unsent)
            self._unsent = self._unsent[sent:]
