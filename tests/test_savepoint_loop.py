"""A driver's loop of checkpoints that serves savepoints and ends with one."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from statelift.backends.errors import CheckpointError, UsageError
from statelift.transfer.savepoint.job import Ending
from statelift.transfer.savepoint.loop import CheckpointLoop
from statelift.transfer.savepoint.service import SavepointService

from .test_coordinator import restorable
from .test_savepoint import LOCAL, rows_of
from .test_savepoint_service import TOKEN, Running

_PATIENCE = 30.0


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    made = Running(tmp_path)
    yield made
    made.close()


@pytest.fixture
def loop(running: Running, tmp_path: Path) -> CheckpointLoop:
    return CheckpointLoop(running.coordinator, directory=str(tmp_path / "savepoints"), configuration=LOCAL)


def ask(service: SavepointService, method: str, path: str, body: object = None, token: str = TOKEN) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(service.url.removeprefix("http://"), timeout=_PATIENCE)
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    try:
        connection.request(method, path, data, {"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


class Client(threading.Thread):
    """Somebody who asks, while the driver's loop runs in the test's own thread."""

    def __init__(self, work: Any, *words: object) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._words = words
        self.result: Any = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self._work(*self._words)
        except BaseException as error:
            self.error = error

    def outcome(self) -> Any:
        self.join(_PATIENCE)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error
        return self.result


def end_of(service: SavepointService, request: str) -> dict[str, Any]:
    ends = time.monotonic() + _PATIENCE
    while time.monotonic() < ends:
        status, document = ask(service, "GET", f"/jobs/job/savepoints/{request}")
        assert status == 200
        if document["status"]["id"] != "IN_PROGRESS":
            return document
        time.sleep(0.02)
    raise AssertionError("the savepoint does not end")


def test_a_loop_serves_savepoints_and_a_stop_ends_it(running: Running, loop: CheckpointLoop, tmp_path: Path) -> None:
    """What the module's docstring shows, with a client that does all that one can."""

    def client(service: SavepointService) -> tuple[str, str]:
        assert ask(service, "POST", "/jobs/unknown/savepoints", {})[0] == 404
        assert ask(service, "POST", "/jobs/job/savepoints", {}, token="wrong-token-0123456789")[0] == 401
        assert ask(service, "POST", "/jobs/job/savepoints", b"{")[0] == 400
        first = ask(service, "POST", "/jobs/job/savepoints", {"type": "native"})[1]["request-id"]
        second = ask(service, "POST", "/jobs/job/savepoints", {"type": "canonical"})[1]["request-id"]
        taken = [end_of(service, each) for each in (first, second)]
        assert [each["status"]["id"] for each in taken] == ["COMPLETED", "COMPLETED"]
        assert end_of(service, first) == taken[0], "a status may be asked for again"
        stop = ask(service, "POST", "/jobs/job/stop", {"type": "native"})[1]["request-id"]
        last = end_of(service, stop)
        return taken[0]["operation"]["location"], last["operation"]["location"]

    rounds = []
    with loop.serving(token=TOKEN) as service:
        asking = Client(client, service)
        for ending in loop:
            running.state.put(b"round-%06d" % len(rounds), b"x")
            rounds.append(ending)
            running.checkpoint(ending)
        assert loop.stopped
    first, last = asking.outcome()
    assert rounds[-1] is Ending.SUSPEND
    assert set(rounds[:-1]) == {Ending.NONE}
    assert restorable(running.base) == [len(rounds)], "all that savepoints held was let go of"
    assert rows_of(last, LOCAL, tmp_path / "last", parallelism=2) == running.rows()
    assert set(rows_of(first, LOCAL, tmp_path / "first", parallelism=1)) < set(running.rows())


@pytest.mark.parametrize(("drain", "ending"), [(False, Ending.SUSPEND), (True, Ending.DRAIN)])
def test_a_loop_goes_on_where_the_last_savepoint_fails(
    running: Running, loop: CheckpointLoop, tmp_path: Path, drain: bool, ending: Ending
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "_metadata").write_bytes(b"?")
    rounds: list[Ending] = []
    stopping = [Client(lambda: loop.job.stop_with_savepoint(str(tmp_path / "taken"), drain=drain))]
    for each in loop:
        if ending in rounds and len(stopping) == 1:
            with pytest.raises(CheckpointError, match="there is a snapshot already"):
                stopping[0].outcome()
            stopping.append(Client(lambda: loop.job.stop_with_savepoint(str(tmp_path / "free"), drain=drain)))
        rounds.append(each)
        running.checkpoint(each)
        assert len(rounds) < 10_000
    report = stopping[1].outcome()
    assert [each for each in rounds if each is not Ending.NONE] == [ending, ending]
    assert report.metadata.checkpoint_id == len(rounds)
    assert list(loop) == [], "a loop that was stopped does not begin again"


def wanted(loop: CheckpointLoop) -> None:
    ends = time.monotonic() + _PATIENCE
    while not loop.wanted:
        assert time.monotonic() < ends
        time.sleep(0.005)


def test_a_round_without_a_checkpoint_leaves_those_who_ask_waiting(
    running: Running, loop: CheckpointLoop, tmp_path: Path
) -> None:
    asking = Client(loop.job.savepoint, str(tmp_path / "sp"))
    wanted(loop)
    rounds = iter(loop)
    for _ in range(3):
        next(rounds)
    assert loop.wanted
    running.checkpoint(next(rounds))
    next(rounds)
    assert asking.outcome().metadata.checkpoint_id == 1
    assert not loop.wanted


def test_a_loop_that_breaks_tells_those_who_wait_and_ends_its_service(
    running: Running, loop: CheckpointLoop, tmp_path: Path
) -> None:
    def broken() -> None:
        with loop.serving(token=TOKEN) as service:
            clients.append(Client(ask, service, "POST", "/jobs/job/stop", {}))
            for _ in loop:
                wanted(loop)
                raise RuntimeError("no input")

    clients: list[Client] = []
    direct = Client(loop.job.savepoint, str(tmp_path / "sp"))
    with pytest.raises(RuntimeError, match="no input"):
        broken()
    with pytest.raises(CheckpointError, match="ended before its next checkpoint"):
        direct.outcome()
    with pytest.raises(UsageError, match="has ended"):
        loop.job.savepoint(str(tmp_path / "sp"))
    with pytest.raises(UsageError, match="has ended"):
        list(loop)
    assert not (tmp_path / "sp").exists()


def test_nobody_needs_to_read_the_end(running: Running, loop: CheckpointLoop) -> None:
    def client(service: SavepointService) -> int:
        return ask(service, "POST", "/jobs/job/stop", {})[0]

    with loop.serving(token=TOKEN, lingers=0.1) as service:
        asking = Client(client, service)
        for ending in loop:
            running.checkpoint(ending)
    assert asking.outcome() == 202
    assert loop.stopped
