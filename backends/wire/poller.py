"""Which sockets are ready: edge-triggered epoll, or `selectors` where there is none."""

from __future__ import annotations

import contextlib
import select
import selectors

READ, WRITE, GONE = 1, 2, 4


class EpollPoller:
    """Edge-triggered: no system call for a wait."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._gone = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
        self._mask = select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET

    def add(self, fd: int) -> None:
        self._epoll.register(fd, self._mask)

    def remove(self, fd: int) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._epoll.unregister(fd)

    def want(self, fd: int, mask: int) -> None:
        pass

    def poll(self, timeout: float) -> list[tuple[int, int]]:
        found = []
        for fd, events in self._epoll.poll(timeout):
            mask = READ | WRITE | GONE if events & self._gone else 0
            mask |= READ if events & select.EPOLLIN else 0
            mask |= WRITE if events & select.EPOLLOUT else 0
            found.append((fd, mask))
        return found

    def close(self) -> None:
        self._epoll.close()


class SelectorPoller:
    """Where there is no epoll: registered while someone waits."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def add(self, fd: int) -> None:
        pass

    def remove(self, fd: int) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(fd)

    def want(self, fd: int, mask: int) -> None:
        self.remove(fd)
        events = (selectors.EVENT_READ if mask & READ else 0) | (selectors.EVENT_WRITE if mask & WRITE else 0)
        self._selector.register(fd, events)

    def poll(self, timeout: float) -> list[tuple[int, int]]:
        found = []
        for key, events in self._selector.select(timeout):
            self.remove(key.fd)
            mask = (READ if events & selectors.EVENT_READ else 0) | (WRITE if events & selectors.EVENT_WRITE else 0)
            found.append((key.fd, mask))
        return found

    def close(self) -> None:
        self._selector.close()


def make_poller() -> EpollPoller | SelectorPoller:
    """The best poller of this system."""
    return EpollPoller() if hasattr(select, "epoll") else SelectorPoller()
