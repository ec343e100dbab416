"""Canonical savepoints: Parquet that others read, in bounded pieces, of which a restore takes what it needs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statelift.backends.closeables import CloseableRegistry
from statelift.backends.errors import CheckpointError, IntegrityError
from statelift.backends.options import Configuration
from statelift.transfer.checkpoint.layout import CheckpointLocation
from statelift.transfer.checkpoint.metadata import CheckpointMetadata
from statelift.transfer.checkpoint.store import CheckpointStore
from statelift.transfer.downloader import StateDownloader
from statelift.transfer.file_systems import FileSystems
from statelift.transfer.handles import KeyedStateHandle, KeyGroupRange
from statelift.transfer.keyed.database import KeyedState
from statelift.transfer.keyed.key_groups import prefix_of
from statelift.transfer.keyed.plan import plan_restore
from statelift.transfer.keyed.restore import restore
from statelift.transfer.savepoint.rows_file import read_rows, write_rows
from statelift.transfer.savepoint.taking import savepoint

from .test_savepoint import LOCAL, MOST, VALUES, rows_of, write_checkpoint

ALL = KeyGroupRange(0, MOST - 1)


@pytest.fixture(scope="module")
def taken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A canonical savepoint of a checkpoint at parallelism 2."""
    directory = tmp_path_factory.mktemp("canonical")
    checkpoint = write_checkpoint(str(directory / "job"), LOCAL, directory / "scratch")
    savepoint(checkpoint, str(directory / "sp"), LOCAL, type="canonical")
    return directory / "sp"


def test_arrow_reads_it_sorted_by_key_group_and_key(taken: Path) -> None:
    table = pq.read_table(taken)
    assert table.schema.names == ["key_group", "key", "value"]
    found = dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))
    assert found == VALUES
    for path in taken.glob("*.parquet"):
        rows = pq.read_table(path).to_pylist()
        order = [(row["key_group"], row["key"]) for row in rows]
        assert order == sorted(order)


def test_a_rescale_downloads_only_the_files_with_its_key_groups(taken: Path, tmp_path: Path) -> None:
    with CheckpointStore(LOCAL) as store, FileSystems(LOCAL) as systems:
        location, metadata = store.read(str(taken))
        plan = plan_restore(metadata.states, KeyGroupRange(0, 3))
        _, report = restore(plan, location, tmp_path / "into", StateDownloader(systems))
    assert plan.method == "rows"
    assert (report.files, report.method) == (1, "rows")
    assert report.bytes_saved == 0  # the other subtask's file was never a candidate
    assert 0 < report.bytes < sum(path.stat().st_size for path in taken.glob("*.parquet"))


def test_a_damaged_file_is_named(taken: Path, tmp_path: Path) -> None:
    copy = tmp_path / "sp"
    shutil.copytree(taken, copy)
    victim = next(copy.glob("*.parquet"))
    victim.write_bytes(victim.read_bytes()[:-1] + b"x")
    with pytest.raises(Exception, match=r"part-00000\.parquet of the subtask of key groups"):
        rows_of(str(copy), LOCAL, tmp_path / "into", parallelism=1)
    assert not (tmp_path / "into").exists()


def test_subtasks_without_state_make_a_savepoint_without_files(tmp_path: Path) -> None:
    location = CheckpointLocation(str(tmp_path / "job"), 1)
    with CheckpointStore(LOCAL) as store:
        states = (KeyedStateHandle(ALL, MOST, "b", 1),)
        store.write(location, CheckpointMetadata(1, MOST, 1, states))
    savepoint(location.directory, str(tmp_path / "sp"), LOCAL, type="canonical")
    assert {path.name for path in (tmp_path / "sp").iterdir()} == {"_metadata", "_common_metadata"}
    assert rows_of(str(tmp_path / "sp"), LOCAL, tmp_path / "into", parallelism=2) == {}


def test_formats_cannot_be_mixed() -> None:
    states = [
        KeyedStateHandle(KeyGroupRange(0, 7), MOST, "a", 1, format="parquet"),
        KeyedStateHandle(KeyGroupRange(8, 15), MOST, "b", 1),
    ]
    with pytest.raises(CheckpointError, match="disagree on the format"):
        plan_restore(states, ALL)


def test_a_restored_savepoint_begins_a_lineage_of_its_own(taken: Path, tmp_path: Path) -> None:
    with CheckpointStore(LOCAL) as store, FileSystems(LOCAL) as systems:
        location, metadata = store.read(str(taken))
        into, _ = restore(plan_restore(metadata.states, ALL), location, tmp_path / "db", StateDownloader(systems))
    with KeyedState.open(into) as state:
        assert state.backend_id not in {each.backend_id for each in metadata.states}
        assert state.lineage.reusable(location.base) == {}


rows = st.lists(
    st.tuples(st.integers(0, MOST - 1), st.binary(max_size=8), st.binary(max_size=40)),
    unique_by=lambda row: row[:2],
    max_size=60,
).map(sorted)


@settings(max_examples=40, deadline=None)
@given(rows=rows, first=st.integers(0, MOST - 1), last=st.integers(0, MOST - 1), part=st.integers(1, 400))
def test_what_is_written_in_pieces_is_read_again(
    rows: list[tuple[int, bytes, bytes]],
    first: int,
    last: int,
    part: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    directory, closeables = tmp_path_factory.mktemp("rows"), CloseableRegistry()
    wanted = KeyGroupRange(first, last)
    found = []
    written = 0
    for file in write_rows(iter(rows), str(directory), closeables, part_bytes=part, group_bytes=60):
        inside = list(read_rows(file.path, ALL, closeables))
        assert (inside[0][0], inside[-1][0], len(inside)) == (file.smallest, file.largest, file.rows)
        written += file.rows
        found += read_rows(file.path, wanted, closeables)
        os.unlink(file.path)
    assert written == len(rows)
    assert found == [(prefix_of(group) + key, value) for group, key, value in rows if group in wanted]


def test_row_groups_and_files_are_bounded(tmp_path: Path) -> None:
    rows = ((number // 100, b"%06d" % number, bytes(1000)) for number in range(1600))
    sizes = []
    for file in write_rows(rows, str(tmp_path), CloseableRegistry(), part_bytes=300_000, group_bytes=50_000):
        metadata = pq.read_metadata(file.path)
        sizes += [metadata.row_group(each).num_rows for each in range(metadata.num_row_groups)]
        assert file.rows <= 350
    assert max(sizes) <= 50


def test_row_groups_of_other_key_groups_are_not_read(tmp_path: Path) -> None:
    rows = ((number // 100, b"%06d" % number, os.urandom(100)) for number in range(1600))
    [file] = write_rows(rows, str(tmp_path), CloseableRegistry(), group_bytes=5000)
    metadata = pq.read_metadata(file.path)
    column = metadata.row_group(metadata.num_row_groups - 1).column(2)
    data = bytearray(Path(file.path).read_bytes())
    start = column.data_page_offset
    data[start : start + column.total_compressed_size] = bytes(column.total_compressed_size)
    Path(file.path).write_bytes(data)
    assert len(list(read_rows(file.path, KeyGroupRange(0, 3), CloseableRegistry()))) == 400
    with pytest.raises(IntegrityError, match="damaged"):
        list(read_rows(file.path, ALL, CloseableRegistry()))


def test_other_columns_and_other_files_are_refused(tmp_path: Path) -> None:
    import pyarrow as pa

    path = str(tmp_path / "other.parquet")
    pq.write_table(pa.table({"key": [1]}), path)
    with pytest.raises(IntegrityError, match="other columns"):
        list(read_rows(path, ALL, CloseableRegistry()))
    Path(path).write_bytes(b"nothing like it")
    with pytest.raises(IntegrityError, match="damaged"):
        list(read_rows(path, ALL, CloseableRegistry()))


def test_large_state_is_written_in_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from statelift.transfer.savepoint import canonical

    checkpoint = write_checkpoint(str(tmp_path / "job"), LOCAL, tmp_path / "scratch", parallelism=1)
    monkeypatch.setitem(canonical.write_canonical.__kwdefaults__, "part_bytes", 1)
    monkeypatch.setattr("statelift.transfer.savepoint.rows_file._GROUP_ROWS", 500)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    taken = savepoint(checkpoint, str(tmp_path / "sp"), Configuration(environ={}), type="canonical")
    assert len(taken.metadata.states[0].shared) == 8
    assert rows_of(str(tmp_path / "sp"), LOCAL, tmp_path / "into", parallelism=3) == VALUES
    assert not [name for name in os.listdir(tmp_path / "scratch") if name.startswith(".statelift")]
