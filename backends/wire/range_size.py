"""How many bytes one request asks for: more where a store takes longer to begin its answer than to send it."""

from __future__ import annotations

_MOST = 32


class RangeSize:
    """Learns from the answers of one batch.

    Small ranges share a connection's limited rate between many connections. But some stores work
    for every request in proportion to the object (rclone sums all of it for the ETag): there each
    further request costs more than it wins.

    Attributes:
        bytes: that a range should have.
    """

    def __init__(self, part: int) -> None:
        self.bytes = part
        self._most = part * _MOST
        self._before = 0.0

    def answered(self, count: int, waited: float, received: float) -> None:
        """Report one answer; two in a row must call for more.

        Args:
            count: its bytes.
            waited: seconds until its first byte, from the end of the request.
            received: seconds from there to its last byte.
        """
        balanced = count * waited / max(received, 1e-6)
        agreed, self._before = min(self._before, balanced), balanced
        while self.bytes * 2 <= min(agreed, self._most):
            self.bytes *= 2
