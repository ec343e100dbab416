from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from statelift.backends.checksums import crc64nvme, crc64nvme_of_file
from statelift.backends.closeables import CloseableRegistry
from statelift.backends.errors import CopyCancelled, CopyFailed
from statelift.backends.options import Configuration
from statelift.transfer.checkpoint.coordinator import CheckpointListener
from statelift.transfer.checkpoint.layout import CheckpointLocation
from statelift.transfer.handles import InMemoryHandle, KeyGroupRange
from statelift.transfer.keyed import snapshot as module
from statelift.transfer.keyed.database import KeyedState
from statelift.transfer.keyed.manifest import UnknownManifest
from statelift.transfer.keyed.plan import groups_of
from statelift.transfer.keyed.snapshot import take

from .conftest import SMALL, Job, handles_of


@pytest.fixture
def filled(job: Job) -> Job:
    job.begin()
    job.churn(random.Random(1), 8000)
    return job


def uploaded(reports) -> set[str]:
    return {os.path.basename(file.request.source) for file in reports[0].copy.files}


def tables(names: set[str]) -> set[str]:
    return {name for name in names if name.endswith(".sst")}


def test_a_handle_describes_every_file(filled):
    (report,) = filled.checkpoint()
    handle = report.handle
    assert (handle.key_groups, handle.max_parallelism, handle.checkpoint_id) == (KeyGroupRange(0, 127), 128, 1)
    assert handle.backend_id == filled.states[0].backend_id
    assert len(handle.shared) > 3
    for file in (*handle.shared, *handle.private):
        path = filled.location.resolve(file.handle).uri
        assert crc64nvme_of_file(path) == file.handle.crc64nvme
        assert os.path.getsize(path) == file.size
    for file in handle.shared:
        assert file.handle.scope == "shared"
        assert file.smallest <= file.largest
        assert file.level is not None
        assert len(groups_of(file)) >= 1
    names = {file.name.partition("-")[0] for file in handle.private}
    assert names == {"CURRENT", "MANIFEST", "OPTIONS", "rocksdict"}
    assert all(file.handle.scope == "exclusive" for file in handle.private)


def test_only_new_files_are_uploaded(filled):
    (first,) = filled.checkpoint()
    filled.write([(3, b"new", b"row")])
    (second,) = filled.checkpoint()
    old = {file.name: file.handle for file in first.handle.shared}
    new = {file.name: file.handle for file in second.handle.shared}
    assert new.items() >= old.items()
    assert tables(uploaded([second])) == new.keys() - old.keys()
    assert len(new) == len(old) + 1
    assert (second.files_reused, second.bytes_reused) == (len(old), sum(file.size for file in first.handle.shared))


def test_nothing_new_uploads_no_table(filled):
    filled.checkpoint()
    (second,) = filled.checkpoint()
    assert tables(uploaded([second])) == set()


@pytest.mark.parametrize("end", ["pending", "aborted"])
def test_a_snapshot_that_is_not_complete_is_not_relied_on(filled, end):
    (first,) = filled.checkpoint(complete=False)
    if end == "aborted":
        filled.states[0].aborted(1)
        for file in Path(filled.location.shared).iterdir():
            file.unlink()
    (second,) = filled.checkpoint()
    assert second.files_reused == 0
    assert not {file.handle for file in first.handle.shared} & {file.handle for file in second.handle.shared}
    filled.rescale([second.handle], 1)
    filled.check()


def test_only_the_newest_completed_snapshot_counts(filled):
    """Files of subsumed ones may be deleted, so a file that the newest does not have is uploaded again."""
    state = filled.states[0]
    (first,) = filled.checkpoint()
    filled.churn(random.Random(2), 8000)
    state.compact()
    (second,) = filled.checkpoint()
    assert second.files_reused == 0
    state.completed(1)  # late, doubled
    state.completed(77)  # unknown
    state.subsumed(1)
    (third,) = filled.checkpoint()
    assert {file.handle for file in third.handle.shared} == {file.handle for file in second.handle.shared}
    assert not {file.handle for file in third.handle.shared} & {file.handle for file in first.handle.shared}


def test_completion_is_remembered_by_the_directory(filled):
    filled.checkpoint()
    directory = filled.states[0].directory
    filled.close()
    filled.states.append(KeyedState.open(directory, configuration=filled.configuration))
    (second,) = filled.checkpoint()
    assert second.files_reused == len(second.handle.shared)


def test_a_full_snapshot_references_nothing(filled):
    filled.checkpoint()
    (second,) = filled.checkpoint(full=True)
    assert second.files_reused == 0
    (third,) = filled.checkpoint()
    assert {file.handle for file in third.handle.shared} == {file.handle for file in second.handle.shared}


def test_another_base_gets_all_files(filled, tmp_path):
    filled.checkpoint()
    filled.base = str(tmp_path / "elsewhere")
    (second,) = filled.checkpoint()
    assert second.files_reused == 0
    filled.rescale([second.handle], 2)
    filled.check()


def test_the_state_listens_to_the_coordinator(filled):
    listener: CheckpointListener = filled.states[0]
    assert {"completed", "aborted", "subsumed"} <= set(dir(listener))


def test_the_snapshot_is_of_one_moment(filled):
    """Rows that are written while files are uploaded are not in it."""
    state = filled.states[0]

    def write_meanwhile(request, count) -> None:
        state.write([(1, b"later", b"row")])

    report = take(
        state, CheckpointLocation(filled.base, 1), filled.uploader, CloseableRegistry(), progress=write_meanwhile
    )
    filled.checkpoint_id = 1
    assert state.get(b"later", key_group=1) == b"row"
    filled.rescale([report.handle], 1)
    filled.check()


def test_a_failed_upload_leaves_nothing_and_changes_nothing(filled):
    (first,) = filled.checkpoint()
    filled.write([(3, b"new", b"row")])
    blocker = Path(filled.base) / "chk-2"
    blocker.write_bytes(b"a file where the directory should be")
    before = sorted(Path(filled.base).rglob("*"))
    with pytest.raises(CopyFailed):
        filled.checkpoint()
    assert sorted(Path(filled.base).rglob("*")) == before
    assert not [name for name in os.listdir(filled.states[0].directory) if name.startswith(".statelift")]
    blocker.unlink()
    (third,) = filled.checkpoint()
    assert third.files_reused == len(first.handle.shared)


def test_a_cancelled_snapshot_leaves_nothing(filled):
    closeables = CloseableRegistry()
    with pytest.raises(CopyCancelled):
        take(
            filled.states[0],
            CheckpointLocation(filled.base, 1),
            filled.uploader,
            closeables,
            progress=lambda request, count: closeables.close("enough"),
        )
    assert not [path for path in Path(filled.base).rglob("*") if path.is_file()]


def test_the_local_links_of_a_snapshot_are_removed(filled):
    filled.checkpoint()
    filled.states[0].compact()
    assert not list(Path(filled.states[0].directory).glob(".statelift*"))


def test_an_unsorted_database_is_compacted_first(filled):
    (first,) = filled.checkpoint()
    assert first.compacted
    assert {file.level for file in first.handle.shared} == {6}
    filled.write([(3, b"new", b"row")])
    (second,) = filled.checkpoint()
    assert not second.compacted


def test_compaction_before_a_snapshot_can_be_switched_off(tmp_path, job):
    unsorted = job.configuration.with_arguments({"state.rocksdb.unsorted-share": "1"})
    other = Job(tmp_path / "unsorted", str(tmp_path / "base"), unsorted)
    other.begin()
    other.churn(random.Random(1), 8000)
    (report,) = other.checkpoint()
    assert not report.compacted
    assert 0 in {file.level for file in report.handle.shared}
    other.close()


def test_small_files_travel_inline(tmp_path, job):
    inline = Job(
        tmp_path / "inline", str(tmp_path / "base"), job.configuration.with_arguments({"state.inline-threshold": "1gb"})
    )
    inline.begin()
    inline.churn(random.Random(1), 500)
    (first,) = inline.checkpoint()
    assert all(isinstance(file.handle, InMemoryHandle) for file in (*first.handle.shared, *first.handle.private))
    assert not [path for path in Path(inline.base).rglob("*") if path.is_file()]
    assert crc64nvme(first.handle.shared[0].handle.data)
    inline.rescale(handles_of([first]), 3)
    inline.check()
    inline.close()


def test_a_manifest_that_is_not_understood_is_described_by_rocksdb(filled, monkeypatch):
    def refuse(directory: str):
        raise UnknownManifest("from the future")

    with monkeypatch.context() as patched:
        patched.setattr(module, "read_manifest", refuse)
        (report,) = filled.checkpoint()
        (again,) = filled.checkpoint()
    assert all(file.smallest and file.largest and file.level is not None for file in report.handle.shared)
    assert again.files_reused == 0  # without an identity no file is known again
    filled.rescale([again.handle], 2)
    filled.check()


def test_an_empty_state(job):
    job.begin(3)
    reports = job.checkpoint()
    assert [report.handle.shared for report in reports] == [(), (), ()]
    job.rescale(handles_of(reports), 2)
    job.check()
    job.write([(0, b"k", b"v"), (127, b"k", b"v")])
    job.check()


@pytest.mark.parametrize(
    ("options", "full", "first", "reason"),
    [
        ({}, False, "reuse", "a hard link on one disk"),
        ({}, True, "reuse", "a hard link on one disk"),
        ({"state.force-copy": "true"}, False, "paths copy", "copying is forced"),
    ],
)
def test_the_report_says_how_the_files_went_and_why(tmp_path, options, full, first, reason):
    job = Job(tmp_path / "state", str(tmp_path / "base"), Configuration({**SMALL, **options}, environ={}))
    job.begin()
    job.churn(random.Random(1), 2000)
    (report,) = job.checkpoint(full=full)
    tables = sum(file.size for file in report.handle.shared)
    found = [each for each in report.transfers if reason in each.decision.reason]
    assert [(each.decision.method.value, each.bytes) for each in found] == [(first, tables)]
    (again,) = job.checkpoint()
    reused = [each for each in again.transfers if each.decision.reason == "a completed checkpoint has the file"]
    assert [(each.files, each.bytes) for each in reused] == [(again.files_reused, again.bytes_reused)]
    job.close()
