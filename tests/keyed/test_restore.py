from __future__ import annotations

import hashlib
import os
import pickle
import random
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from statelift.backends.closeables import CloseableRegistry
from statelift.backends.errors import (
    CheckpointError,
    CopyCancelled,
    CopyFailed,
    DestinationError,
    IntegrityError,
    SourceNotFound,
    TransferError,
    UsageError,
)
from statelift.transfer.downloader import StateDownloader
from statelift.transfer.file_systems import FileSystems
from statelift.transfer.handles import InMemoryHandle, KeyedStateHandle, KeyGroupRange, key_groups_of
from statelift.transfer.keyed import parts
from statelift.transfer.keyed import restore as module
from statelift.transfer.keyed.database import KeyedState
from statelift.transfer.keyed.manifest import Manifest, UnknownManifest, parse, serialize
from statelift.transfer.keyed.plan import groups_of, plan_restore
from statelift.transfer.keyed.restore import PHASES, restore

from .conftest import SMALL, Job, handles_of


@pytest.fixture
def filled(job: Job) -> Job:
    job.begin()
    job.churn(random.Random(1), 8000)
    return job


def digests(base: str) -> dict[str, str]:
    paths = (path for path in Path(base).rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def leftovers(root: Path) -> list[str]:
    return [name for name in os.listdir(root) if name.startswith(".statelift") or name == "target"]


def test_the_same_parallelism_stays_incremental(filled):
    reports = filled.checkpoint()
    identity = filled.states[0].backend_id
    (restored,) = filled.rescale(handles_of(reports), 1)
    assert (restored.method, restored.fallbacks, restored.bytes_saved) == ("reopen", (), 0)
    assert filled.states[0].backend_id == identity
    filled.check()
    (again,) = filled.checkpoint()
    assert again.files_reused == len(again.handle.shared) == len(reports[0].handle.shared)


def test_a_split_downloads_only_what_overlaps_and_opens_without_the_rest(filled):
    reports = filled.checkpoint()
    files = reports[0].handle.shared
    restored = filled.rescale(handles_of(reports), 2)
    filled.check()
    for subtask, report in enumerate(restored):
        assert report.method == "clip"
        assert set(report.seconds) == set(PHASES)
        outside = [file for file in files if not len(groups_of(file).intersection(key_groups_of(subtask, 2, 128)))]
        assert report.bytes_saved == sum(file.size for file in outside) > 0.3 * sum(file.size for file in files)
    assert filled.states[0].backend_id != filled.states[1].backend_id != reports[0].handle.backend_id
    for state in filled.states:
        raw = {key[:2] for key in list(state._open.keys())}
        assert {int.from_bytes(key, "big") for key in raw} == set(state.key_groups)


def test_after_a_split_files_are_referenced_not_uploaded(filled):
    (first,) = filled.checkpoint()
    filled.rescale([first.handle], 2)
    old = {file.handle for file in first.handle.shared}
    for report in filled.checkpoint():
        own = {file.handle for file in report.handle.shared}
        assert len(own & old) > 1
        assert report.copy.bytes < 50_000  # a range deletion, MANIFEST, OPTIONS


def test_a_split_and_a_merge_rewrite_nothing(filled):
    (first,) = filled.checkpoint()
    filled.rescale([first.handle], 3)
    middle = filled.checkpoint()
    restored = filled.rescale(handles_of(middle), 1)
    assert restored[0].seconds["straighten"] == 0
    assert restored[0].fallbacks == ()
    filled.check()
    (last,) = filled.checkpoint()
    assert {file.handle for file in last.handle.shared} == {file.handle for file in first.handle.shared}


def test_clones_that_went_apart_are_merged_without_losing_or_reviving_a_key(filled):
    """Each clone's range deletions cover the other's keys; dead rows of one lie in the other's range."""
    filled.configuration = filled.configuration.with_arguments({"state.rocksdb.unsorted-share": "1"})
    source = random.Random(3)
    straightened = 0.0
    for _ in range(3):
        filled.rescale(handles_of(filled.checkpoint()), 2)
        filled.write([(group, b"%d" % number, None) for group in range(0, 128, 3) for number in range(100)])
        filled.churn(source, 3000)
        filled.states[0].trim()  # one rewrites the shared files, the other keeps them
        (restored,) = filled.rescale(handles_of(filled.checkpoint()), 1)
        straightened += restored.seconds["straighten"]
        filled.check()
    assert straightened > 0


def test_without_straightening_clones_would_lose_keys(filled, monkeypatch):
    """The hazard is real: what the test above would see if nothing were done."""
    filled.rescale(handles_of(filled.checkpoint()), 2)
    filled.states[0].trim()
    reports = filled.checkpoint()
    monkeypatch.setattr(module.StateRestore, "_joins_as_it_is", lambda self: True)
    filled.rescale(handles_of(reports), 1)
    with pytest.raises((AssertionError, TransferError)):
        filled.check()


def test_overwrites_and_deletes_win_after_every_rescale(filled):
    source = random.Random(4)
    for parallelism in (2, 3, 1, 5, 4, 1):
        filled.rescale(handles_of(filled.checkpoint()), parallelism)
        filled.check()
        filled.churn(source, 3000, deletes=0.5)
        filled.check()


def test_newer_versions_in_level_0_win_after_a_merge(job):
    job.configuration = job.configuration.with_arguments({"state.rocksdb.unsorted-share": "1"})
    job.begin(3)
    for version in range(3):
        job.write([(group, b"key", b"version %d" % version) for group in range(128)])
        job.write([(group, b"gone", None if version == 1 else b"there") for group in range(128) if version < 2])
        for state in job.states:
            state.flush()
    reports = job.checkpoint()
    assert all(len([file for file in report.handle.shared if file.level == 0]) > 1 for report in reports)
    job.rescale(handles_of(reports), 2)
    job.check()
    assert job.states[0].get(b"key", key_group=0) == b"version 2"
    assert job.states[0].get(b"gone", key_group=0) is None


def test_more_subtasks_than_keys(job):
    job.max_parallelism = 16
    job.begin()
    job.write([(3, b"k", b"v"), (9, b"k", b"w")])
    restored = job.rescale(handles_of(job.checkpoint()), 16)
    job.check()
    assert [report.method for report in restored] == ["empty"] * 3 + ["clip"] * 7 + ["empty"] * 6
    restored = job.rescale(handles_of(job.checkpoint()), 2)
    job.check()


@pytest.mark.parametrize(("maximum", "parallelisms"), [(1, [1]), (2, [2, 1]), (32768, [7, 3]), (3, [3, 2, 1])])
def test_any_max_parallelism(tmp_path, job, maximum, parallelisms):
    other = Job(tmp_path / "other", job.base, job.configuration, maximum)
    other.begin()
    other.churn(random.Random(5), 3000)
    for parallelism in parallelisms:
        other.rescale(handles_of(other.checkpoint()), parallelism)
        other.check()
    other.close()


def test_a_restore_never_changes_the_checkpoint(filled):
    """Local files are hard links: writing into one would change the checkpoint."""
    reports = filled.checkpoint()
    filled.rescale(handles_of(reports), 2)
    filled.churn(random.Random(6), 2000)
    filled.states[1].trim()
    reports = filled.checkpoint()
    before = digests(filled.base)
    filled.rescale(handles_of(reports), 3)
    filled.churn(random.Random(7), 2000)
    for state in filled.states:
        state.trim()
        state.compact()
    filled.close()
    assert digests(filled.base) == before


def _unknown(handle: KeyedStateHandle, job: Job) -> KeyedStateHandle:
    """The same state with a field in its MANIFEST that RocksDB may ignore and the parser does not know."""
    files = []
    for file in handle.private:
        if file.name.startswith("MANIFEST-"):
            manifest = parse(Path(job.location.resolve(file.handle).uri).read_bytes())
            tables = tuple(replace(each, fields=(*each.fields, (40, b"new"))) for each in manifest.files)
            document = serialize(replace(manifest, files=tables))
            with pytest.raises(UnknownManifest):
                parse(document)
            file = replace(file, handle=InMemoryHandle(document))
        files.append(file)
    return replace(handle, private=tuple(files))


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_a_manifest_from_the_future_is_left_to_rocksdb(filled, parallelism):
    filled.rescale(handles_of(filled.checkpoint()), 2)
    filled.churn(random.Random(8), 4000)
    handles = [_unknown(handle, filled) for handle in handles_of(filled.checkpoint())]
    restored = filled.rescale(handles, parallelism)
    filled.check()
    assert all("has field 40; RocksDB reads all" in report.fallbacks[0] for report in restored)
    (again,) = filled.rescale(handles_of(filled.checkpoint()), 1)
    assert again.fallbacks == ()  # files that were ingested have an identity and an epoch like any other
    filled.check()


def test_one_manifest_from_the_future_among_others(filled):
    filled.rescale(handles_of(filled.checkpoint()), 3)
    filled.churn(random.Random(9), 4000)
    first, second, third = handles_of(filled.checkpoint())
    filled.rescale([first, _unknown(second, filled), third], 1)
    filled.check()


def test_rows_are_copied_where_a_compaction_does_not_help(filled, monkeypatch):
    filled.rescale(handles_of(filled.checkpoint()), 2)
    filled.states[0].trim()
    filled.churn(random.Random(10), 1000)
    reports = filled.checkpoint()
    monkeypatch.setattr(parts, "compact_outside", lambda *bounds: None)
    (restored,) = filled.rescale(handles_of(reports), 1)
    assert "files reach out after a compaction; rows are copied" in restored.fallbacks[0]
    filled.check()


def _first_table(handle: KeyedStateHandle, job: Job) -> tuple[str, Path]:
    file = min(handle.shared, key=lambda each: each.smallest)
    return file.name, Path(job.location.resolve(file.handle).uri)


@pytest.mark.parametrize("damage", ["missing", "short", "corrupt"])
def test_a_damaged_file_is_named_with_its_subtask_and_checkpoint(filled, tmp_path, damage):
    filled.rescale(handles_of(filled.checkpoint()), 2)
    handles = handles_of(filled.checkpoint())
    name, path = _first_table(handles[0], filled)
    data = path.read_bytes()
    path.unlink()
    if damage == "short":
        path.write_bytes(data[:-1])
    elif damage == "corrupt":
        middle = len(data) // 2
        path.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    plan = plan_restore(handles, KeyGroupRange(0, 127))
    # A hard link reads nothing, so that only a copy can compare checksums.
    copying = filled.configuration.with_arguments({"state.force-copy": "true"})
    with FileSystems(copying) as systems, pytest.raises(CopyFailed) as caught:
        restore(plan, filled.location, tmp_path / "target", StateDownloader(systems))
    (error,) = caught.value.errors
    assert isinstance(error, SourceNotFound if damage == "missing" else IntegrityError)
    assert f"{filled.location}, {name} of the subtask of key groups 0 to 63: " in str(error)
    assert leftovers(tmp_path) == []


def test_a_damaged_manifest_is_an_error_not_an_empty_state(filled, tmp_path):
    (handle,) = handles_of(filled.checkpoint())
    short = [
        replace(file, handle=InMemoryHandle(serialize(Manifest((), 9, 9)))) if "MANIFEST" in file.name else file
        for file in handle.private
    ]
    with pytest.raises(CheckpointError, match=r"chk-1: the subtask .* MANIFEST and metadata differ in 0000"):
        restore(
            plan_restore([replace(handle, private=tuple(short))], KeyGroupRange(0, 127)),
            filled.location,
            tmp_path / "target",
            filled.downloader,
        )
    broken = [
        replace(file, handle=InMemoryHandle(b"\x00" * 50)) if "MANIFEST" in file.name else file
        for file in handle.private
    ]
    with pytest.raises(TransferError):
        restore(
            plan_restore([replace(handle, private=tuple(broken))], KeyGroupRange(0, 127)),
            filled.location,
            tmp_path / "target",
            filled.downloader,
        )
    assert leftovers(tmp_path) == []


def test_metadata_that_contradicts_the_manifest_is_refused(filled, tmp_path):
    (handle,) = handles_of(filled.checkpoint())
    twice = replace(handle, shared=(*handle.shared, replace(handle.shared[0], name="999999.sst")))
    with pytest.raises(CheckpointError, match=r"differ in 999999\.sst"):
        restore(plan_restore([twice], KeyGroupRange(0, 127)), filled.location, tmp_path / "target", filled.downloader)
    without = replace(handle, private=())
    with pytest.raises(CheckpointError, match="has no usable MANIFEST"):
        restore(plan_restore([without], KeyGroupRange(0, 127)), filled.location, tmp_path / "target", filled.downloader)
    assert leftovers(tmp_path) == []


def test_the_target_must_be_new(filled, tmp_path):
    plan = plan_restore(handles_of(filled.checkpoint()), KeyGroupRange(0, 127))
    (tmp_path / "target").mkdir()
    restore(plan, filled.location, tmp_path / "target", filled.downloader)
    before = digests(str(tmp_path / "target"))
    with pytest.raises(DestinationError, match="exists already"):
        restore(plan, filled.location, tmp_path / "target", filled.downloader)
    assert digests(str(tmp_path / "target")) == before


def test_a_target_that_cannot_be_made_is_named(filled, tmp_path):
    plan = plan_restore(handles_of(filled.checkpoint()), KeyGroupRange(0, 127))
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DestinationError, match="file/target"):
        restore(plan, filled.location, tmp_path / "file" / "target", filled.downloader)


def test_a_cancelled_restore_leaves_nothing(filled, tmp_path):
    plan = plan_restore(handles_of(filled.checkpoint()), KeyGroupRange(0, 63))
    closeables = CloseableRegistry()
    with pytest.raises(CopyCancelled):
        restore(
            plan,
            filled.location,
            tmp_path / "target",
            filled.downloader,
            closeables,
            progress=lambda request, count: closeables.close("enough"),
        )
    assert leftovers(tmp_path) == []


def test_straightening_can_be_cancelled(filled, tmp_path, monkeypatch):
    filled.rescale(handles_of(filled.checkpoint()), 2)
    filled.states[0].trim()
    plan = plan_restore(handles_of(filled.checkpoint()), KeyGroupRange(0, 127))
    closeables = CloseableRegistry()
    compact = parts.compact_outside

    def close_then_compact(*arguments) -> None:
        closeables.close("enough")
        compact(*arguments)

    monkeypatch.setattr(parts, "compact_outside", close_then_compact)
    with pytest.raises(CopyCancelled):
        restore(plan, filled.location, tmp_path / "target", filled.downloader, closeables)
    assert leftovers(tmp_path) == []


_RESTORE_AND_HANG = """
import pickle, sys, time
from statelift.transfer.downloader import StateDownloader
from statelift.transfer.file_systems import FileSystems
from statelift.transfer.keyed.restore import restore
plan, location, configuration = pickle.load(sys.stdin.buffer)

def hang(request, count):
    print("some bytes are here", flush=True)
    time.sleep(600)

restore(plan, location, sys.argv[1], StateDownloader(FileSystems(configuration)), progress=hang)
"""


def test_a_killed_restore_shows_nothing_and_is_swept_by_the_next(filled, tmp_path):
    plan = plan_restore(handles_of(filled.checkpoint()), KeyGroupRange(0, 63))
    parent = tmp_path / "restored"
    command = [sys.executable, "-c", _RESTORE_AND_HANG, str(parent / "target")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        pickle.dump((plan, filled.location, filled.configuration), child.stdin)
        child.stdin.close()
        assert child.stdout.readline() == b"some bytes are here\n"
        child.send_signal(signal.SIGKILL)
        child.wait(10)
    assert [name.startswith(".statelift") for name in os.listdir(parent)] == [True]
    restore(plan, filled.location, parent / "target", filled.downloader)
    assert os.listdir(parent) == ["target"]


def test_a_deadline_that_has_passed_ends_the_restore(filled, tmp_path):
    plan = plan_restore(handles_of(filled.checkpoint()), KeyGroupRange(0, 63))
    with pytest.raises(CopyFailed):
        restore(plan, filled.location, tmp_path / "target" / "below", filled.downloader, deadline=0.0)
    assert leftovers(tmp_path) == []


def test_a_subtask_out_of_range_is_refused():
    with pytest.raises(UsageError):
        key_groups_of(2, 2, 128)
    with pytest.raises(UsageError):
        key_groups_of(0, 129, 128)


def test_what_was_restored_verifies_on_demand(filled):
    filled.rescale(handles_of(filled.checkpoint()), 2)
    state = filled.states[0]
    assert state.verify() == sum(key_group in state.key_groups for key_group, _ in filled.rows)
    path = max(Path(state.directory).glob("*.sst"), key=lambda each: each.stat().st_size)
    data = path.read_bytes()
    state.close()
    path.unlink()
    # Past the blocks of rows, where reading rows notices nothing.
    place = len(data) - 200
    path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    with pytest.raises(IntegrityError), KeyedState.open(state.directory, configuration=filled.configuration) as again:
        again.verify()


def test_a_whole_job_on_s3(tmp_path, bucket, configuration):
    job = Job(
        tmp_path / "local",
        f"s3://{bucket}/job",
        configuration.with_arguments({**SMALL, "state.inline-threshold": "20kb"}),
    )
    job.begin()
    job.churn(random.Random(11), 6000)
    for parallelism in (2, 1):
        restored = job.rescale(handles_of(job.checkpoint()), parallelism)
        assert all(
            file.verified == "crc64nvme" for report in restored for file in report.copy.files if file.bytes > 1 << 16
        )
        job.check()
        job.churn(random.Random(parallelism), 1500)
    job.close()
    job.file_systems.close()
