"""A job on its driver: savepoints on request, stopping with one, and the same over HTTP."""

from __future__ import annotations

import http.client
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from statelift.backends.closeables import CloseableRegistry
from statelift.backends.errors import BackendError, CheckpointError, CopyCancelled, UsageError
from statelift.transfer.checkpoint.coordinator import CompletedCheckpoint, Coordinator
from statelift.transfer.checkpoint.store import CheckpointStore
from statelift.transfer.file_systems import FileSystems
from statelift.transfer.handles import KeyGroupRange
from statelift.transfer.keyed.database import KeyedState
from statelift.transfer.savepoint.job import Ending, Job
from statelift.transfer.savepoint.service import SavepointService
from statelift.transfer.uploader import StateUploader

from .test_coordinator import restorable
from .test_savepoint import LOCAL, MOST, rows_of

TOKEN = "a-token-of-enough-letters"


class Running:
    """A job of one subtask with real state and a real coordinator."""

    def __init__(self, directory: Path) -> None:
        self.base = directory / "job"
        self.store = CheckpointStore(LOCAL)
        self.systems = FileSystems(LOCAL)
        self.coordinator = Coordinator(str(self.base), self.store, background_deletes=False)
        self.coordinator.start()
        self.state = KeyedState.open(directory / "db", KeyGroupRange(0, MOST - 1), MOST, configuration=LOCAL)
        for number in range(1000):
            self.state.put(b"%06d" % number, os.urandom(50))
        self.endings: list[Ending] = []
        self.finished: list[bool] = []
        self.gate = threading.Event()
        self.gate.set()
        self.job = Job(
            self.coordinator,
            self.checkpoint,
            finish=self.finished.append,
            configuration=LOCAL,
            directory=str(directory / "savepoints"),
        )

    def checkpoint(self, ending: Ending = Ending.NONE) -> CompletedCheckpoint:
        assert self.gate.wait(30)
        self.endings.append(ending)
        pending = self.coordinator.trigger(1, MOST)
        handle = self.state.snapshot(pending.location, StateUploader(self.systems))
        done = self.coordinator.acknowledge(pending.checkpoint_id, 0, handle)
        assert done
        self.state.completed(pending.checkpoint_id)
        return done

    def rows(self) -> dict[bytes, bytes]:
        return {key: value for _, key, value in self.state.items()}

    def close(self) -> None:
        self.state.close()
        self.coordinator.close()
        self.systems.close()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    made = Running(tmp_path)
    yield made
    made.gate.set()
    made.close()


@pytest.mark.parametrize("kind", ["native", "canonical"])
def test_a_savepoint_of_a_running_job(running: Running, tmp_path: Path, kind: str) -> None:
    report = running.job.savepoint(str(tmp_path / "sp"), type=kind)
    assert running.job.ending is Ending.NONE
    assert report.metadata.checkpoint_id == 1
    running.checkpoint()
    assert restorable(running.base) == [2]
    assert rows_of(str(tmp_path / "sp"), LOCAL, tmp_path / "into", parallelism=2) == running.rows()


@pytest.mark.parametrize(("drain", "ending"), [(False, Ending.SUSPEND), (True, Ending.DRAIN)])
def test_stopping_with_a_savepoint(running: Running, tmp_path: Path, drain: bool, ending: Ending) -> None:
    running.job.stop_with_savepoint(str(tmp_path / "sp"), drain=drain)
    assert (running.job.ending, running.endings, running.finished) == (ending, [ending], [True])
    for again in (running.job.savepoint, running.job.stop_with_savepoint):
        with pytest.raises(UsageError, match="stopped"):
            again(str(tmp_path / "another"))
    assert not (tmp_path / "another").exists()


def test_a_job_goes_on_where_its_last_savepoint_fails(running: Running, tmp_path: Path) -> None:
    running.job.savepoint(str(tmp_path / "sp"))
    with pytest.raises(CheckpointError, match="there is a snapshot already"):
        running.job.stop_with_savepoint(str(tmp_path / "sp"))
    assert (running.job.ending, running.finished) == (Ending.NONE, [False])
    running.job.stop_with_savepoint(str(tmp_path / "other"))
    assert running.finished == [False, True]


def test_a_checkpoint_that_was_subsumed_at_once_is_taken_again(running: Running, tmp_path: Path) -> None:
    def overtaken(ending: Ending) -> CompletedCheckpoint:
        done = running.checkpoint(ending)
        if len(running.endings) == 1:
            running.checkpoint()
        return done

    job = Job(running.coordinator, overtaken, configuration=LOCAL)
    assert job.savepoint(str(tmp_path / "sp")).metadata.checkpoint_id == 3


def test_closing_the_registry_ends_a_savepoint(running: Running, tmp_path: Path) -> None:
    closeables = CloseableRegistry()
    closeables.close("enough")
    with pytest.raises(CopyCancelled):
        running.job.savepoint(str(tmp_path / "sp"), closeables=closeables)
    assert not (tmp_path / "sp").exists()


@pytest.fixture
def service(running: Running) -> Iterator[SavepointService]:
    with SavepointService(running.job, token=TOKEN) as made:
        yield made


Ask = Any


@pytest.fixture
def ask(service: SavepointService) -> Callable[..., tuple[int, Any]]:
    def asking(
        method: str, path: str, body: object = None, *, token: str | None = TOKEN, **headers: str
    ) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(service.url.removeprefix("http://"), timeout=20)
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        try:
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        return answer.status, json.loads(text) if answer.headers.get_content_type() == "application/json" else text

    return asking


def wait_for(ask: Ask, request_id: str) -> dict[str, Any]:
    ends = time.monotonic() + 30
    while time.monotonic() < ends:
        status, document = ask("GET", f"/jobs/job/savepoints/{request_id}")
        assert status == 200
        if document["status"]["id"] != "IN_PROGRESS":
            return document
        time.sleep(0.02)
    raise AssertionError("the savepoint does not end")


@pytest.mark.parametrize("kind", ["native", "canonical"])
def test_a_savepoint_over_http(ask: Ask, running: Running, tmp_path: Path, kind: str) -> None:
    running.gate.clear()
    status, answer = ask("POST", "/jobs/job/savepoints", {"type": kind, "target-directory": str(tmp_path / "sp")})
    assert (status, set(answer)) == (202, {"request-id"})
    progress = ask("GET", f"/jobs/job/savepoints/{answer['request-id']}")
    assert progress == (200, {"status": {"id": "IN_PROGRESS"}, "operation": {}})
    running.gate.set()
    document = wait_for(ask, answer["request-id"])
    assert document == {"status": {"id": "COMPLETED"}, "operation": {"location": str(tmp_path / "sp")}}
    assert rows_of(str(tmp_path / "sp"), LOCAL, tmp_path / "into", parallelism=1) == running.rows()


def test_the_smallest_request_is_native_and_goes_to_the_jobs_directory(
    ask: Ask, running: Running, tmp_path: Path
) -> None:
    _, answer = ask("POST", "/jobs/job/savepoints", {"type": "native"})
    location = wait_for(ask, answer["request-id"])["operation"]["location"]
    assert location == str(tmp_path / "savepoints" / f"savepoint-{answer['request-id']}")
    _, answer = ask("POST", "/jobs/job/savepoints")
    assert wait_for(ask, answer["request-id"])["status"]["id"] == "COMPLETED"
    assert running.store.read(location)[1].properties["savepoint.type"] == "native"


@pytest.mark.parametrize(("drain", "ending"), [(False, Ending.SUSPEND), (True, Ending.DRAIN)])
def test_stopping_over_http(ask: Ask, running: Running, tmp_path: Path, drain: bool, ending: Ending) -> None:
    status, answer = ask("POST", "/jobs/job/stop", {"target-directory": str(tmp_path / "sp"), "drain": drain})
    assert status == 202
    assert wait_for(ask, answer["request-id"])["status"]["id"] == "COMPLETED"
    assert (running.endings, running.finished) == ([ending], [True])
    assert ask("POST", "/jobs/job/stop", {})[0] == 409
    assert ask("POST", "/jobs/job/savepoints", {})[0] == 409


def test_a_failure_is_told_with_its_cause(ask: Ask, running: Running, tmp_path: Path) -> None:
    running.job.savepoint(str(tmp_path / "sp"))
    _, answer = ask("POST", "/jobs/job/stop", {"target-directory": str(tmp_path / "sp")})
    document = wait_for(ask, answer["request-id"])
    assert document["status"] == {"id": "FAILED"}
    assert "there is a snapshot already" in document["operation"]["failure-cause"]
    assert running.finished == [False]


def test_a_job_that_raises_anything_is_a_failure_too(running: Running, tmp_path: Path) -> None:
    def broken(_ending: Ending) -> CompletedCheckpoint:
        raise RuntimeError("no workers")

    from statelift.transfer.savepoint.requests import SavepointRequests

    job = Job(running.coordinator, broken)
    requests = SavepointRequests(job)
    asked = requests.savepoint(job, str(tmp_path / "sp"))
    requests.close()
    assert (asked.status, asked.failure) == ("FAILED", "RuntimeError: no workers")


@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN[:-1], TOKEN + "x", "ÿ"])
def test_without_the_token_nothing_is_answered(ask: Ask, running: Running, token: str | None) -> None:
    for method, path in (("POST", "/jobs/job/savepoints"), ("GET", "/jobs/job/savepoints/00"), ("GET", "/")):
        status, document = ask(method, path, {} if method == "POST" else None, token=token)
        assert status == 401
        assert document == {"errors": ["a bearer token is needed"]}
    assert running.endings == []


def test_a_token_is_made_where_none_is_given_and_never_shown(
    running: Running, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.DEBUG), SavepointService(running.job) as service:
        assert len(service.token) >= 32
        connection = http.client.HTTPConnection(service.url.removeprefix("http://"), timeout=20)
        connection.request("GET", f"/?token={service.token}", headers={"Authorization": f"Bearer {service.token}"})
        assert connection.getresponse().status == 404
        connection.close()
        shown = caplog.text + "".join(capfd.readouterr()) + repr(service)
        assert service.token not in shown
        assert service.url.startswith("http://127.0.0.1:")


def test_weak_tokens_are_refused(running: Running) -> None:
    for weak in ("", "short", "sixteen letters and a space"):
        with pytest.raises(UsageError):
            SavepointService(running.job, token=weak)


BAD = {
    "not JSON": b"{",
    "not an object": b"[]",
    "deep": b"[" * 60_000,
    "not text": b"\xff\xfe",
    "unknown key": {"kind": "native"},
    "drain where nothing stops": {"drain": True},
    "no such type": {"type": "binary"},
    "type of a wrong kind": {"type": 1},
    "empty target": {"target-directory": ""},
}


@pytest.mark.parametrize("body", BAD.values(), ids=BAD)
def test_bad_bodies_are_refused_cleanly(ask: Ask, running: Running, body: object) -> None:
    status, document = ask("POST", "/jobs/job/savepoints", body)
    assert status == 400
    assert len(document["errors"]) == 1
    assert running.endings == []


def test_drain_must_be_a_boolean(ask: Ask) -> None:
    assert ask("POST", "/jobs/job/stop", {"drain": "yes"})[0] == 400


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("POST", "/jobs/other/savepoints", 404),
        ("GET", "/jobs/job/savepoints/0123456789abcdef", 404),
        ("GET", "/jobs/job/savepoints/../../etc", 404),
        ("GET", "/jobs/job/savepoints", 405),
        ("GET", "/jobs/job/stop", 405),
        ("POST", "/jobs/job/savepoints/00", 405),
        ("PUT", "/jobs/job/savepoints", 501),
    ],
)
def test_wrong_paths_and_methods(ask: Ask, method: str, path: str, status: int) -> None:
    assert ask(method, path)[0] == status


def test_long_bodies_are_refused_unread(ask: Ask) -> None:
    assert ask("POST", "/jobs/job/savepoints", b"", **{"Content-Length": str(1 << 40)})[0] == 413
    assert ask("POST", "/jobs/job/savepoints", b"", **{"Content-Length": "-1"})[0] == 400
    assert ask("POST", "/jobs/job/savepoints", b"", **{"Transfer-Encoding": "chunked"})[0] == 411


def test_too_many_unfinished_requests_are_refused(ask: Ask, running: Running) -> None:
    running.gate.clear()
    answers = [ask("POST", "/jobs/job/savepoints", {})[0] for _ in range(33)]
    running.gate.set()
    assert answers == [202] * 32 + [429]


def test_closing_ends_idle_clients_and_savepoints(running: Running) -> None:
    before = threading.active_count()
    service = SavepointService(running.job, token=TOKEN)
    host, _, port = service.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=20) as idle:
        idle.sendall(b"POST /jobs/job/savepoints HTTP/1.1\r\n")
        time.sleep(0.1)
        started = time.monotonic()
        service.close()
        service.close()
        assert time.monotonic() - started < 8  # less than the server would wait for this client
    assert threading.active_count() <= before
    with pytest.raises(OSError):
        socket.create_connection((host, int(port)), timeout=5).close()


def test_closing_fails_what_has_not_begun(running: Running, tmp_path: Path) -> None:
    from statelift.transfer.savepoint.requests import SavepointRequests

    running.gate.clear()
    requests = SavepointRequests(running.job)
    asked = [requests.savepoint(running.job, str(tmp_path / f"sp-{number}")) for number in range(5)]
    threading.Timer(0.3, running.gate.set).start()
    requests.close()
    assert {each.status for each in asked} == {"FAILED"}
    assert not list(tmp_path.glob("sp-*"))


def test_jobs_need_names_of_their_own(running: Running) -> None:
    with pytest.raises(UsageError, match="one name"):
        SavepointService(running.job, running.job)


def test_a_target_is_needed_where_the_job_has_none(running: Running) -> None:
    from statelift.transfer.savepoint.requests import SavepointRequests

    job = Job(running.coordinator, running.checkpoint)
    requests = SavepointRequests(job)
    with pytest.raises(UsageError, match="no directory"):
        requests.savepoint(job, None)
    requests.close()


def test_failures_of_the_trigger_are_the_callers(running: Running, tmp_path: Path) -> None:
    def failing(_ending: Ending) -> CompletedCheckpoint:
        raise BackendError("a worker was lost")

    job = Job(running.coordinator, failing, finish=running.finished.append)
    with pytest.raises(BackendError, match="a worker was lost"):
        job.stop_with_savepoint(str(tmp_path / "sp"))
    assert running.finished == [False]
