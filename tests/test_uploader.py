"""From files to handles: all of them or none."""

from __future__ import annotations

import threading
import time
import uuid
from pathlib import Path

import pytest

from statelift.backends.checksums import crc64nvme
from statelift.backends.closeables import CloseableRegistry
from statelift.backends.errors import CheckpointError, CopyCancelled, CopyFailed, SourceNotFound
from statelift.transfer.checkpoint.layout import CheckpointLocation
from statelift.transfer.downloader import Download, StateDownloader
from statelift.transfer.file_systems import FileSystems
from statelift.transfer.handles import InMemoryHandle, RelativeFileHandle
from statelift.transfer.uploader import StateUploader, Upload

from .contract.places import BucketPlace, LocalPlace, make_bytes
from .servers.fault import FaultServer, Rule
from .servers.fault_actions import status


@pytest.fixture(params=["s3", "local"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> LocalPlace:
    if request.param == "local":
        return LocalPlace(tmp_path / "checkpoints")
    return BucketPlace(request.getfixturevalue("s3").root / request.getfixturevalue("bucket"))


@pytest.fixture
def location(place: LocalPlace) -> CheckpointLocation:
    return CheckpointLocation(place.uri("job"), 7)


@pytest.fixture
def uploader(configuration):
    with FileSystems(configuration) as file_systems:
        yield StateUploader(file_systems)


def make(directory: Path, sizes: dict[str, int]) -> None:
    directory.mkdir(exist_ok=True)
    for name, size in sizes.items():
        (directory / name).write_bytes(make_bytes(size, len(name)))


def test_handles_in_the_order_given(place, location, uploader, tmp_path) -> None:
    sizes = {"000001.sst": 50_000, "CURRENT": 16, "000002.sst": 20 * 1024, "MANIFEST": 20 * 1024 - 1, "empty": 0}
    make(tmp_path / "db", sizes)
    uploads = [Upload(str(tmp_path / "db" / name), "shared" if name.endswith("sst") else "exclusive") for name in sizes]
    moved: list[int] = []
    handles, report = uploader.upload(
        location, uploads, CloseableRegistry(), progress=lambda _, count: moved.append(count)
    )
    data = {name: (tmp_path / "db" / name).read_bytes() for name in sizes}
    for name, handle in zip(sizes, handles, strict=True):
        if name.endswith("sst"):
            assert isinstance(handle, RelativeFileHandle)
            assert (handle.scope, handle.size, handle.crc64nvme) == ("shared", sizes[name], crc64nvme(data[name]))
            assert str(uuid.UUID(handle.path)) == handle.path
            assert place.get(f"job/shared/{handle.path}") == data[name]
        else:
            assert handle == InMemoryHandle(data[name])
    assert (
        len(
            place.names()
            - {f"job/shared/{handle.path}" for handle in handles if isinstance(handle, RelativeFileHandle)}
        )
        == 0
    )
    assert report.bytes == sum(moved) == 50_000 + 20 * 1024


def test_what_is_uploaded_downloads_the_same(location, configuration, tmp_path) -> None:
    make(tmp_path / "db", {"a": 100, "b": 70_000, "c": 0})
    with FileSystems(configuration.with_arguments({"state.inline-threshold": 0})) as file_systems:
        uploads = [Upload(str(tmp_path / "db" / name), "exclusive") for name in "abc"]
        handles, _ = StateUploader(file_systems).upload(location, uploads, CloseableRegistry())
        assert all(isinstance(handle, RelativeFileHandle) for handle in handles)
        downloads = [
            Download(handle, str(tmp_path / "again" / name)) for handle, name in zip(handles, "abc", strict=True)
        ]
        report = StateDownloader(file_systems).download(location, downloads, CloseableRegistry())
    assert {file.verified for file in report.files} == {"crc64nvme"}
    for name in "abc":
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "db" / name).read_bytes()


def test_a_missing_file_uploads_nothing(place, location, uploader, tmp_path) -> None:
    make(tmp_path / "db", {"a": 50_000})
    uploads = [Upload(str(tmp_path / "db" / "a"), "shared"), Upload(str(tmp_path / "db" / "gone"), "shared")]
    with pytest.raises(SourceNotFound, match="gone"):
        uploader.upload(location, uploads, CloseableRegistry())
    assert place.names() == set()


def test_an_unknown_scope_uploads_nothing(place, location, uploader, tmp_path) -> None:
    make(tmp_path / "db", {"a": 50_000})
    uploads = [Upload(str(tmp_path / "db" / "a"), scope) for scope in ("shared", "mine")]
    with pytest.raises(CheckpointError, match="unknown scope 'mine'"):
        uploader.upload(location, uploads, CloseableRegistry())
    assert place.names() == set()


def test_a_failed_upload_deletes_what_it_had_uploaded(s3, bucket, configuration, tmp_path) -> None:
    make(tmp_path / "db", {str(index): 50_000 for index in range(12)})
    place = BucketPlace(s3.root / bucket)
    with FaultServer(s3.endpoint) as server:
        server.add(Rule("PUT */shared/*", action=status(403, "AccessDenied"), after=6))
        with FileSystems(configuration.with_arguments({"s3.endpoint": server.endpoint})) as file_systems:
            uploads = [Upload(str(tmp_path / "db" / str(index)), "shared") for index in range(12)]
            with pytest.raises(CopyFailed, match="AccessDenied"):
                StateUploader(file_systems).upload(
                    CheckpointLocation(place.uri("job"), 7), uploads, CloseableRegistry()
                )
        assert sum(each.method == "PUT" for each in server.requests) > 6
    assert place.names() == set()


def test_a_failed_upload_to_a_disk_leaves_nothing(uploader, tmp_path) -> None:
    make(tmp_path / "db", {str(index): 50_000 for index in range(12)})
    base = tmp_path / "checkpoints"
    (base / "job").mkdir(parents=True)
    # The exclusive directory cannot be made; the shared one can.
    (base / "job" / "chk-7").write_bytes(b"in the way")
    uploads = [Upload(str(tmp_path / "db" / str(index)), "shared" if index else "exclusive") for index in range(12)]
    with pytest.raises(CopyFailed, match="cannot write"):
        uploader.upload(CheckpointLocation(f"{base}/job", 7), uploads, CloseableRegistry())
    assert LocalPlace(base).names() == {"job/chk-7"}


def test_a_cancelled_upload_deletes_what_it_had_uploaded(place, location, uploader, tmp_path) -> None:
    make(tmp_path / "db", {str(index): 100_000 for index in range(12)})
    closeables = CloseableRegistry()

    def progress(request, count) -> None:
        if place.names():
            threading.Thread(target=closeables.close, args=["enough"]).start()
        time.sleep(0.01)

    uploads = [Upload(str(tmp_path / "db" / str(index)), "shared") for index in range(12)]
    with pytest.raises(CopyCancelled, match="enough"):
        uploader.upload(location, uploads, closeables, progress=progress)
    assert place.names() == set()
    assert not [each for each in threading.enumerate() if each.name.startswith("statelift")]


def test_a_missing_bucket_is_named(uploader, tmp_path) -> None:
    make(tmp_path / "db", {"a": 50_000})
    with pytest.raises(CopyFailed, match="no such bucket") as caught:
        uploader.upload(
            CheckpointLocation("s3://no-such-bucket/job", 1),
            [Upload(str(tmp_path / "db" / "a"), "shared")],
            CloseableRegistry(),
        )
    assert isinstance(caught.value.errors[0], SourceNotFound)
