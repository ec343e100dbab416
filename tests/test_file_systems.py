"""Which backend copies what, what is streamed instead, and what a failure says."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from statelift.backends.batch import BatchPolicy, run_batch
from statelift.backends.closeables import CloseableRegistry
from statelift.backends.errors import (
    AccessDenied,
    BackendError,
    BackendUnavailable,
    ConnectionFailed,
    CopyCancelled,
    CopyFailed,
    DeadlineExceeded,
    IntegrityError,
    NoSpace,
    OptionError,
    SourceNotFound,
    StalledTransfer,
    TransferError,
    UnsupportedCopy,
)
from statelift.backends.options import Configuration
from statelift.backends.paths_copying import PathsCopyingFileSystem
from statelift.backends.report import CopiedFile, CopyReport, Progress
from statelift.backends.request import CopyRequest, locate
from statelift.transfer import file_systems
from statelift.transfer.file_systems import FileSystems

Act = Callable[[CopyRequest, CloseableRegistry], None]


@dataclass
class Scripted:
    """A backend over the real batch runner whose copies do what the test says.

    The real backends fail in these ways only by chance; here they do so on cue.
    """

    name: str
    act: Act = lambda _request, _closeables: None
    can: Callable[[str, str], bool] = lambda _source, _destination: True
    copied: list[str] = field(default_factory=list)
    calls: list[list[str]] = field(default_factory=list)
    deadlines: list[float | None] = field(default_factory=list)

    def can_copy_paths(self, source: str, destination: str) -> bool:
        return self.can(source, destination)

    def copy_files(
        self,
        requests: Sequence[CopyRequest],
        closeables: CloseableRegistry,
        *,
        progress: Progress | None = None,
        deadline: float | None = None,
        fail_fast: bool = True,
    ) -> CopyReport:
        self.calls.append([request.source for request in requests])
        self.deadlines.append(deadline)

        def copy_one(request: CopyRequest, registry: CloseableRegistry) -> CopiedFile:
            if progress:
                progress(request, 3)
            self.act(request, registry)
            if progress:
                progress(request, 7)
            self.copied.append(request.source)
            return CopiedFile(request, self.name, 10, 0.0)

        policy = BatchPolicy(backend=self.name, workers=2, deadline=deadline, fail_fast=fail_fast)
        return run_batch(requests, copy_one, policy, closeables)

    def close(self) -> None:
        pass


def is_local(source: str, destination: str) -> bool:
    return locate(source).is_local and locate(destination).is_local


def is_s3(source: str, destination: str) -> bool:
    return "s3" in {locate(source).scheme, locate(destination).scheme}


@pytest.fixture
def backends(monkeypatch) -> dict[str, Scripted]:
    """Scripted backends in place of the real ones, by name; delete one to make it unavailable."""
    made = {
        "local": Scripted("local", can=is_local),
        "s5cmd": Scripted("s5cmd", can=is_s3),
        "wire": Scripted("wire", can=is_s3),
        "sdk": Scripted("sdk", can=is_s3),
        "stream": Scripted("stream", can=lambda source, _: "nowhere" not in source),
    }

    def make(name: str, configuration: Configuration) -> PathsCopyingFileSystem:
        if name not in made:
            raise BackendUnavailable(f"no {name}", remedy="pip install it", backend=name)
        return made[name]

    monkeypatch.setattr(file_systems, "_make", make)
    return made


def systems(backend: str | None = None, **options: object) -> FileSystems:
    return FileSystems(
        Configuration({key.replace("__", "."): value for key, value in options.items()}, environ={}), backend=backend
    )


def request(source: str, destination: str = "/d/") -> CopyRequest:
    return CopyRequest(source, destination + source.rpartition("/")[2] if destination.endswith("/") else destination)


def raising(errors: dict[str, TransferError]) -> Act:
    def act(copy: CopyRequest, _closeables: CloseableRegistry) -> None:
        if copy.source in errors:
            raise errors[copy.source]

    return act


# ---------------------------------------------------------------- the choice


@pytest.mark.parametrize(
    ("source", "destination", "name"),
    [
        ("/a", "/b", "local"),
        ("file:///a", "/b", "local"),
        ("s3://b/a", "/b", "wire"),
        ("/a", "s3://b/b", "wire"),
        ("s3://b/a", "s3://b/c", "wire"),
        ("gs://b/a", "/b", "stream"),
    ],
)
def test_auto_takes_the_first_that_can(backends, source: str, destination: str, name: str) -> None:
    assert systems().choose(source, destination).name == name


def test_auto_passes_over_what_is_not_installed(backends) -> None:
    del backends["wire"]
    assert systems().choose("s3://b/a", "/b").name == "sdk"
    del backends["sdk"]
    assert systems().choose("s3://b/a", "/b").name == "stream"


def test_auto_takes_s5cmd_where_its_path_is_set_and_then_it_must_run(backends) -> None:
    assert systems(s3__s5cmd__path="s5cmd").choose("s3://b/a", "/b").name == "s5cmd"
    assert systems(s3__s5cmd__path="s5cmd").choose("/a", "/b").name == "local"
    del backends["s5cmd"]
    with pytest.raises(BackendUnavailable, match="no s5cmd"):
        systems(s3__s5cmd__path="s5cmd").choose("s3://b/a", "/b")


@pytest.mark.parametrize("how", ["argument", "option"])
def test_a_backend_by_name_takes_what_it_can(backends, how: str) -> None:
    forced = systems("sdk") if how == "argument" else systems(transfer__backend="sdk")
    assert forced.choose("s3://b/a", "/b").name == "sdk"
    assert forced.choose("/a", "/b").name == "local"
    assert forced.choose("gs://b/a", "/b").name == "stream"
    assert systems("stream").choose("/a", "/b").name == "stream"


def test_a_backend_by_name_must_run(backends) -> None:
    del backends["wire"]
    with pytest.raises(BackendUnavailable, match=r"no wire \(pip install it\)"):
        systems("wire")


@pytest.mark.parametrize("how", ["argument", "option"])
def test_an_unknown_backend_is_refused_with_the_nearest(how: str) -> None:
    with pytest.raises(OptionError, match=r"'s5cdm'.*did you mean s5cmd"):
        systems("s5cdm") if how == "argument" else systems(transfer__backend="s5cdm")


def test_what_nothing_can_copy_is_one_failure_among_the_others(backends) -> None:
    with pytest.raises(CopyFailed) as caught:
        systems().copy([request("nowhere://b/a"), request("s3://b/a")])
    [error] = caught.value.errors
    assert isinstance(error, UnsupportedCopy)
    assert "nowhere://b/a" in str(error)
    assert [file.request.source for file in caught.value.done] == ["s3://b/a"]


# ---------------------------------------------------------------- groups


def test_an_empty_batch_is_no_work(backends) -> None:
    assert systems().copy([], CloseableRegistry()) == CopyReport((), pytest.approx(0, abs=1))
    assert all(not backend.calls for backend in backends.values())


def test_requests_are_grouped_by_backend_and_file_system(backends) -> None:
    sources = ["s3://b/1", "gs://b/1", "/x/1", "s3://c/1", "s3://b/2"]
    report = systems().copy([request(source) for source in sources])
    assert sorted(file.request.source for file in report.files) == sorted(sources)
    assert sorted(backends["wire"].calls) == [["s3://b/1", "s3://b/2"], ["s3://c/1"]]
    assert report.methods == {"wire": 3, "stream": 1, "local": 1}
    assert report.bytes == 50


def test_a_slow_group_holds_back_no_other(backends) -> None:
    others_done = threading.Event()

    def slow(_request: CopyRequest, closeables: CloseableRegistry) -> None:
        assert others_done.wait(20)

    backends["wire"].act = slow
    backends["stream"].act = lambda _request, _closeables: others_done.set()
    assert len(systems().copy([request("s3://b/1"), request("gs://b/1")]).files) == 2


def test_many_groups_all_run(backends) -> None:
    report = systems().copy([request(f"s3://bucket{index}/x", f"/d/{index}") for index in range(40)])
    assert len(report.files) == len(backends["wire"].calls) == 40


def test_a_failure_that_every_way_shares_ends_the_other_groups(backends) -> None:
    done = threading.Event()

    def wait(copy: CopyRequest, closeables: CloseableRegistry) -> None:
        if copy.source == "gs://b/0":
            done.set()
        else:
            closeables.wait(30)

    def fail(copy: CopyRequest, closeables: CloseableRegistry) -> None:
        assert done.wait(20)
        time.sleep(0.1)
        raise AccessDenied("denied")

    backends["wire"].act, backends["stream"].act = fail, wait
    started = time.monotonic()
    with pytest.raises(CopyFailed, match="denied") as caught:
        systems().copy([request("s3://b/1"), request("gs://b/0"), request("gs://b/1"), request("gs://b/2")])
    assert time.monotonic() - started < 15
    assert [type(error) for error in caught.value.errors] == [AccessDenied]
    assert [file.request.source for file in caught.value.done] == ["gs://b/0"]


def test_without_fail_fast_every_request_is_tried(backends) -> None:
    backends["wire"].act = raising({"s3://b/1": SourceNotFound("no 1"), "s3://b/3": SourceNotFound("no 3")})
    with pytest.raises(CopyFailed) as caught:
        systems().copy([request(f"s3://b/{index}") for index in range(5)] + [request("gs://b/9")], fail_fast=False)
    assert len(caught.value.errors) == 2
    assert len(caught.value.done) == 4
    assert backends["stream"].calls == [["gs://b/9"]]


# ---------------------------------------------------------------- streams after a native failure

ELSEWHERE = [UnsupportedCopy, BackendError, IntegrityError, StalledTransfer, ConnectionFailed, BackendUnavailable]
SHARED = [SourceNotFound, AccessDenied, NoSpace, DeadlineExceeded]


@pytest.mark.parametrize("kind", ELSEWHERE)
def test_what_another_way_may_copy_is_streamed(backends, kind: type[TransferError]) -> None:
    backends["wire"].act = raising({"s3://b/1": kind("native"), "s3://b/3": kind("native")})
    report = systems().copy([request(f"s3://b/{index}") for index in range(5)])
    assert report.methods == {"wire": 3, "stream": 2}
    assert sorted(backends["stream"].copied) == ["s3://b/1", "s3://b/3"]


@pytest.mark.parametrize("kind", SHARED)
def test_what_no_other_way_would_copy_is_not(backends, kind: type[TransferError]) -> None:
    backends["wire"].act = raising({"s3://b/1": kind("native")})
    with pytest.raises(CopyFailed, match="native"):
        systems().copy([request("s3://b/1")], fail_fast=False)
    assert not backends["stream"].calls


def test_a_backend_by_name_that_stops_running_is_not_hidden(backends) -> None:
    backends["wire"].act = raising({"s3://b/1": BackendUnavailable("gone", backend="wire")})
    with pytest.raises(CopyFailed, match="gone"):
        systems("wire").copy([request("s3://b/1")])


def test_a_backend_that_fails_as_a_whole_is_streamed(backends, monkeypatch) -> None:
    def broken(*_args: object, **_named: object) -> CopyReport:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(backends["wire"], "copy_files", broken)
    assert systems().copy([request("s3://b/1"), request("s3://b/2")]).methods == {"stream": 2}


def test_streams_do_not_copy_what_streams_failed(backends) -> None:
    backends["stream"].act = raising({"gs://b/1": BackendError("stream")})
    with pytest.raises(CopyFailed, match=r"^stream$"):
        systems().copy([request("gs://b/1")])
    assert len(backends["stream"].calls) == 1


def test_a_store_that_nothing_reaches_is_tried_by_one_stream_only(backends) -> None:
    refuse: Act = lambda copy, _: (_ for _ in ()).throw(ConnectionFailed("refused"))  # noqa: E731
    backends["wire"].act = backends["stream"].act = refuse
    with pytest.raises(CopyFailed, match=r"^50 copies failed: refused$") as caught:
        systems().copy([request(f"s3://b/{index}") for index in range(50)])
    assert len(caught.value.errors) == 50
    assert [len(call) for call in backends["stream"].calls] == [1]


def test_a_store_that_streams_reach_is_streamed_whole(backends) -> None:
    backends["wire"].act = lambda copy, _: (_ for _ in ()).throw(ConnectionFailed("refused"))
    assert systems().copy([request(f"s3://b/{index}") for index in range(5)]).methods == {"stream": 5}


def test_streams_begin_only_when_native_work_has_ended(backends) -> None:
    running = [0]

    def native(copy: CopyRequest, closeables: CloseableRegistry) -> None:
        running[0] += 1
        try:
            if copy.source == "s3://b/0":
                raise BackendError("native")
            time.sleep(0.2)
        finally:
            running[0] -= 1

    seen: list[int] = []
    backends["wire"].act = native
    backends["stream"].act = lambda _request, _closeables: seen.append(running[0])
    systems().copy([request(f"s3://b/{index}") for index in range(4)])
    assert seen == [0]


def test_progress_takes_back_what_is_copied_again(backends) -> None:
    backends["wire"].act = raising({"s3://b/1": BackendError("native")})
    counted: dict[str, int] = {}

    def progress(copy: CopyRequest, count: int) -> None:
        counted[copy.source] = counted.get(copy.source, 0) + count

    systems().copy([request("s3://b/0"), request("s3://b/1")], progress=progress)
    assert counted == {"s3://b/0": 10, "s3://b/1": 10}


# ---------------------------------------------------------------- what a failure says


def test_root_causes_come_first_and_each_distinct_cause_once(backends) -> None:
    backends["wire"].act = raising(
        {
            "s3://b/0": BackendError("reset"),
            "s3://b/1": BackendError("reset"),
            "s3://b/2": SourceNotFound("no object 2"),
            "s3://b/3": NoSpace("full"),
        }
    )
    backends["stream"].act = raising({"s3://b/0": BackendError("reset"), "s3://b/1": BackendError("reset")})
    requests = [request(f"s3://b/{index}") for index in range(5)]
    with pytest.raises(CopyFailed) as caught:
        systems().copy(requests[:3] + requests[4:], fail_fast=False)
    assert [type(error) for error in caught.value.errors] == [SourceNotFound, BackendError, BackendError]
    assert [str(error) for error in caught.value.distinct()] == ["no object 2", "reset"]
    with pytest.raises(CopyFailed) as caught:
        systems().copy(requests[2:4], fail_fast=False)
    assert isinstance(caught.value.errors[0], NoSpace)


def test_of_two_errors_of_a_file_the_telling_one_is_kept(backends) -> None:
    backends["wire"].act = raising(
        {"s3://b/0": UnsupportedCopy("cannot"), "s3://b/1": IntegrityError("damaged"), "s3://b/2": BackendError("odd")}
    )
    backends["stream"].act = raising(
        {
            "s3://b/0": BackendError("stream 0"),
            "s3://b/1": BackendError("stream 1"),
            "s3://b/2": SourceNotFound("gone 2"),
        }
    )
    with pytest.raises(CopyFailed) as caught:
        systems().copy([request(f"s3://b/{index}") for index in range(3)], fail_fast=False)
    told = {error.request.source: str(error) for error in caught.value.errors if error.request}
    assert told == {"s3://b/0": "stream 0", "s3://b/1": "damaged", "s3://b/2": "gone 2"}


def test_done_is_complete_over_groups_and_streams(backends) -> None:
    backends["wire"].act = raising({"s3://b/1": BackendError("a"), "s3://b/2": BackendError("b")})
    backends["stream"].act = raising({"s3://b/2": BackendError("c")})
    with pytest.raises(CopyFailed, match=r"^b$") as caught:
        systems().copy([request(f"s3://b/{index}") for index in range(4)] + [request("gs://b/9"), request("/x/8")])
    done = sorted(file.request.source for file in caught.value.done)
    assert done == ["/x/8", "gs://b/9", "s3://b/0", "s3://b/1", "s3://b/3"]


# ---------------------------------------------------------------- endings


@pytest.mark.parametrize("sources", [["s3://b/1", "s3://b/2"], ["s3://b/1", "gs://b/1", "/x/1"]])
def test_closing_ends_every_group_and_tells_what_was_done(backends, sources: list[str]) -> None:
    closeables = CloseableRegistry()
    threading.Timer(0.2, closeables.close, ["enough"]).start()

    def act(copy: CopyRequest, registry: CloseableRegistry) -> None:
        if copy.source != "s3://b/1":
            registry.wait(60)

    for backend in backends.values():
        backend.act = act
    with pytest.raises(CopyCancelled, match="enough") as caught:
        systems().copy([request(source) for source in sources], closeables)
    assert [file.request.source for file in caught.value.done] == ["s3://b/1"]
    assert not [each for each in threading.enumerate() if each.name.startswith("statelift")]


def test_closing_while_streams_run_tells_all_that_was_done(backends) -> None:
    closeables = CloseableRegistry()
    backends["wire"].act = raising({"s3://b/1": BackendError("native")})

    def act(_copy: CopyRequest, registry: CloseableRegistry) -> None:
        closeables.close("enough")
        registry.check()

    backends["stream"].act = act
    with pytest.raises(CopyCancelled, match="enough") as caught:
        systems().copy([request("s3://b/0"), request("s3://b/1")], closeables)
    assert [file.request.source for file in caught.value.done] == ["s3://b/0"]


def test_a_closed_registry_starts_nothing(backends) -> None:
    closeables = CloseableRegistry()
    closeables.close("before")
    with pytest.raises(CopyCancelled, match="before"):
        systems().copy([request("s3://b/1")], closeables)
    assert not backends["wire"].calls


def test_the_deadline_is_one_for_native_copies_and_streams(backends) -> None:
    def slow(copy: CopyRequest, _closeables: CloseableRegistry) -> None:
        time.sleep(0.2)
        raise BackendError("native")

    backends["wire"].act = slow
    systems().copy([request("s3://b/1")], deadline=30)
    [native], [streamed] = backends["wire"].deadlines, backends["stream"].deadlines
    assert native is not None
    assert streamed is not None
    assert 29 < native <= 30
    assert streamed <= native - 0.2


def test_the_deadline_may_come_from_an_option(backends) -> None:
    systems(transfer__deadline="1min").copy([request("s3://b/1")])
    assert backends["wire"].deadlines == [pytest.approx(60, abs=2)]


def test_a_passed_deadline_streams_nothing(backends) -> None:
    def slow(_copy: CopyRequest, _closeables: CloseableRegistry) -> None:
        time.sleep(0.3)
        raise BackendError("native")

    backends["wire"].act = slow
    with pytest.raises(CopyFailed):
        systems().copy([request("s3://b/1")], deadline=0.1)
    assert not backends["stream"].calls


def test_pickles_without_secrets_and_clients(backends) -> None:
    made = FileSystems(
        Configuration({"s3.access-key": "AK-canary", "s3.secret-key": "SK-canary"}, environ={}), backend="sdk"
    )
    made.choose("s3://b/a", "/b")
    data = pickle.dumps(made)
    assert b"canary" not in data
    again = pickle.loads(data)
    assert again.backend == "sdk"
    assert again.choose("s3://b/a", "/b").name == "sdk"


# ---------------------------------------------------------------- the real ones


def test_what_s5cmd_cannot_name_goes_by_stream(s3, bucket, configuration, tmp_path) -> None:
    """A newline in a name would become a second command."""
    names = ["plain", "new\nline"]
    for name in names:
        (tmp_path / name).write_bytes(name.encode())
    requests = [CopyRequest(f"{tmp_path}/{name}", f"s3://{bucket}/{index}") for index, name in enumerate(names)]
    with FileSystems(configuration, backend="s5cmd") as made:
        report = made.copy(requests)
    assert report.methods == {"s5cmd": 1, "stream": 1}
    assert [(s3.root / bucket / str(index)).read_bytes() for index in range(2)] == [name.encode() for name in names]


def test_one_batch_over_several_file_systems(s3, bucket, configuration, tmp_path) -> None:
    (s3.root / bucket / "a").write_bytes(b"a")
    (tmp_path / "b").write_bytes(b"b")
    pairs = [
        (f"s3://{bucket}/a", f"{tmp_path}/down"),
        (f"{tmp_path}/b", f"s3://{bucket}/up"),
        (f"{tmp_path}/b", f"{tmp_path}/beside"),
        (f"s3://{bucket}/a", f"s3://{bucket}/across"),
        (f"s3://{bucket}/missing", f"{tmp_path}/missing"),
    ]
    with FileSystems(configuration) as made, pytest.raises(CopyFailed, match="missing") as caught:
        made.copy([CopyRequest(*pair) for pair in pairs], fail_fast=False)
    assert [type(error) for error in caught.value.errors] == [SourceNotFound]
    assert len(caught.value.done) == 4
    assert sorted(each.name for each in (s3.root / bucket).iterdir()) == ["a", "across", "up"]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["b", "beside", "down"]
