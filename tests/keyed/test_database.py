from __future__ import annotations

import contextlib
import os
import pickle
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statelift.backends.errors import (
    CheckpointError,
    DestinationError,
    IntegrityError,
    NoSpace,
    OptionError,
    TransferError,
    UsageError,
)
from statelift.backends.options import Configuration
from statelift.transfer.handles import KeyGroupRange
from statelift.transfer.keyed.database import KeyedState
from statelift.transfer.keyed.key_groups import key_group_of
from statelift.transfer.keyed.lineage import NAME, Lineage
from statelift.transfer.keyed.options import RocksOptions
from statelift.transfer.keyed.rocksdb import native_options, open_rocksdb, rocksdb_errors, unlogged

from ..servers.disks import small_disk

ALL = KeyGroupRange(0, 127)
UNCOMPRESSED = {"state.rocksdb.compression": "none"}


@pytest.fixture
def state(tmp_path):
    with KeyedState.open(tmp_path / "state", ALL, 128, configuration=Configuration(UNCOMPRESSED, environ={})) as opened:
        yield opened


def test_rows_by_key_and_by_key_group(state):
    state.put("clicks", b"1")
    state.put(17, b"2")
    state.put(b"raw", b"3", key_group=5)
    assert (state.get("clicks"), state.get(17), state.get(b"raw", key_group=5)) == (b"1", b"2", b"3")
    assert state.get(b"raw", key_group=6) is None
    assert list(state.items(KeyGroupRange(5, 5))) == [(5, b"raw", b"3")]
    assert sorted(group for group, _, _ in state.items()) == sorted(
        [5, key_group_of("clicks", 128), key_group_of(17, 128)]
    )
    state.delete("clicks")
    assert state.get("clicks") is None
    assert state.count() == 2


def test_bulk_rows_overwrite_and_remove_in_their_order(state):
    assert state.write([(1, b"a", b"1"), (1, b"a", b"2"), (1, b"b", b"1"), (1, b"b", None)]) == 4
    assert list(state.items()) == [(1, b"a", b"2")]
    assert state.write([]) == 0


@given(st.dictionaries(st.tuples(st.integers(0, 127), st.binary(max_size=6)), st.binary(max_size=20), max_size=50))
@settings(max_examples=15, deadline=None)
def test_items_come_in_the_order_of_key_group_and_key(tmp_path_factory, rows):
    directory = tmp_path_factory.mktemp("state")
    with KeyedState.open(directory / "state", ALL, 128) as state:
        state.write((group, key, value) for (group, key), value in rows.items())
        assert [((group, key), value) for group, key, value in state.items()] == sorted(rows.items())
        for low in (0, 3, 127):
            own = KeyGroupRange(low, min(127, low + 9))
            expected = sorted(item for item in rows.items() if item[0][0] in own)
            assert [((group, key), value) for group, key, value in state.items(own)] == expected
            assert state.count(own) == len(expected)


def test_another_subtasks_key_group_is_refused(tmp_path):
    with KeyedState.open(tmp_path / "state", KeyGroupRange(0, 63), 128) as state:
        for call in (
            lambda: state.put(b"k", b"v", key_group=64),
            lambda: state.get(b"k", key_group=-1),
            lambda: state.write([(0, b"k", b"v"), (64, b"k", b"v")]),
        ):
            with pytest.raises(UsageError, match="not among this subtask's, 0 to 63"):
                call()
        assert list(state.items(KeyGroupRange(60, 200))) == []


@pytest.mark.parametrize("maximum", [0, 32769, -1])
def test_max_parallelism_has_bounds(tmp_path, maximum):
    with pytest.raises(UsageError, match="not between 1 and 32768"):
        KeyedState.open(tmp_path / "state", KeyGroupRange(0, 0), maximum)


def test_key_groups_lie_below_the_maximum(tmp_path):
    with pytest.raises(UsageError, match="key groups 0 to 128 of 128"):
        KeyedState.open(tmp_path / "state", KeyGroupRange(0, 128), 128)


def test_the_largest_and_the_smallest_maximum(tmp_path):
    with KeyedState.open(tmp_path / "one", KeyGroupRange(0, 0), 1) as state:
        state.put("k", b"v")
        assert list(state.items()) == [(0, b"k", b"v")]
    with KeyedState.open(tmp_path / "many", KeyGroupRange(0, 32767), 32768) as state:
        state.write([(32767, b"\xff" * 50, b"v"), (0, b"", b"w")])
        assert list(state.items()) == [(0, b"", b"w"), (32767, b"\xff" * 50, b"v")]


def test_closing_keeps_rows_and_reopening_needs_no_range(tmp_path):
    with KeyedState.open(tmp_path / "state", KeyGroupRange(0, 9), 10) as state:
        state.put("k", b"v")
        identity = state.backend_id
    with KeyedState.open(tmp_path / "state") as state:
        assert (state.get("k"), state.backend_id, state.key_groups) == (b"v", identity, KeyGroupRange(0, 9))
    with pytest.raises(UsageError, match="0 to 9 of 10, not those asked for"):
        KeyedState.open(tmp_path / "state", KeyGroupRange(0, 4), 10)


def test_there_is_no_write_ahead_log(state):
    state.write((number % 128, b"%d" % number, bytes(100)) for number in range(5000))
    state.put("k", b"v")
    assert all(path.stat().st_size == 0 for path in Path(state.directory).glob("*.log"))


def test_a_directory_without_state_needs_a_range(tmp_path):
    with pytest.raises(UsageError, match="holds no state"):
        KeyedState.open(tmp_path)


def test_a_foreign_database_is_not_taken_for_state(tmp_path):
    open_rocksdb(str(tmp_path), RocksOptions(), create=True).close()
    with pytest.raises(CheckpointError, match=f"without {NAME}"):
        KeyedState.open(tmp_path, ALL, 128)


@pytest.mark.parametrize("damage", [b"", b"{}", b"[1]", b'{"format": 9}', b"\xff"])
def test_a_damaged_lineage_is_named(tmp_path, damage):
    KeyedState.open(tmp_path, ALL, 128).close()
    (tmp_path / NAME).write_bytes(damage)
    with pytest.raises(CheckpointError, match=f"{NAME} is damaged"):
        KeyedState.open(tmp_path)


def test_a_closed_state_says_so(tmp_path):
    state = KeyedState.open(tmp_path, ALL, 128)
    state.close()
    state.close()
    assert state.closed
    for call in (lambda: state.get("k"), lambda: state.put("k", b""), lambda: list(state.items()), state.flush):
        with pytest.raises(UsageError, match="is closed"):
            call()


def test_an_unfinished_reader_does_not_keep_the_directory_locked(tmp_path):
    state = KeyedState.open(tmp_path, ALL, 128)
    state.write((number % 128, b"%d" % number, b"v") for number in range(1000))
    reader = state.items()
    next(reader)
    state.close()
    with KeyedState.open(tmp_path) as again:
        assert again.count() == 1000
    assert list(reader) == []


def test_a_second_opening_in_this_process_is_refused_with_a_remedy(state):
    with pytest.raises(DestinationError, match=r"open already in this process \(close it there"):
        KeyedState.open(state.directory)


_OPEN = """
import sys
from statelift.transfer.keyed.database import KeyedState
from statelift.backends.errors import DestinationError
try:
    KeyedState.open(sys.argv[1])
except DestinationError as error:
    print(error)
"""


def test_a_second_opening_in_another_process_is_refused_with_a_remedy(state):
    done = subprocess.run([sys.executable, "-c", _OPEN, state.directory], capture_output=True, text=True, timeout=60)
    assert "open already in another process (close it there" in done.stdout, done.stderr
    with KeyedState.open(state.directory, read_only=True) as reader:
        assert reader.count() == 0


def test_an_unwritable_directory_is_named(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DestinationError, match="file"):
        KeyedState.open(tmp_path / "file" / "state", ALL, 128)


def test_options_given_win_over_the_options_file_in_the_directory(tmp_path):
    """RocksDict prefers the file for everything that belongs to a column family."""

    def compression(**given: str) -> str:
        configuration = Configuration({f"state.rocksdb.{key}": value for key, value in given.items()}, environ={})
        with KeyedState.open(tmp_path / "state", ALL, 128, configuration=configuration):
            pass
        newest = max((tmp_path / "state").glob("OPTIONS-*"), key=lambda path: path.name)
        lines = [line.strip() for line in newest.read_text().splitlines()]
        return next(line for line in lines if line.startswith("compression="))

    assert compression(compression="none") == "compression=kNoCompression"
    assert compression(compression="zstd") == "compression=kZSTD"
    assert compression() == "compression=kLZ4Compression"


@pytest.mark.parametrize("name", ["lz4", "lz4hc", "snappy", "zstd", "bz2"])
def test_every_offered_compression_compresses(tmp_path, name):
    configuration = Configuration({"state.rocksdb.compression": name}, environ={})
    with KeyedState.open(tmp_path / "state", ALL, 128, configuration=configuration) as state:
        state.write((number % 128, b"%d" % number, b"a value that repeats" * 20) for number in range(5000))
        state.flush()
        assert sum(path.stat().st_size for path in Path(state.directory).glob("*.sst")) < 1_000_000
        assert state.get(b"77", key_group=77) == b"a value that repeats" * 20


def test_a_compression_that_would_silently_be_none_is_refused():
    with pytest.raises(OptionError, match="not one of none, lz4"):
        Configuration({"state.rocksdb.compression": "zlib"}, environ={}).of(RocksOptions)


@pytest.mark.parametrize(("key", "value"), [("unsorted-share", "1.5"), ("target-file-size", "1kb")])
def test_options_have_bounds(key, value):
    with pytest.raises(OptionError):
        Configuration({f"state.rocksdb.{key}": value}, environ={}).of(RocksOptions)


def _filled(directory, count: int = 20_000) -> None:
    with KeyedState.open(directory, ALL, 128, configuration=Configuration(UNCOMPRESSED, environ={})) as state:
        state.write((number % 128, b"%06d" % number, random.Random(number).randbytes(40)) for number in range(count))


def _damage_middle(directory) -> Path:
    path = max(Path(directory).glob("*.sst"), key=lambda each: each.stat().st_size)
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 3)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 0xFF]))
    return path


def test_reading_never_ends_silently_at_a_damaged_block(tmp_path):
    _filled(tmp_path / "state")
    _damage_middle(tmp_path / "state")
    with KeyedState.open(tmp_path / "state") as state:
        # The scar itself: if this changes, the long way round is no longer needed.
        assert 0 < len(list(state._open.keys())) < 20_000
        for read in (lambda: list(state.items()), state.count, state.verify):
            with pytest.raises(IntegrityError, match="is damaged: Corruption: block checksum mismatch"):
                read()
        with pytest.raises(IntegrityError):
            [state.get(b"%06d" % number, key_group=number % 128) for number in range(20_000)]


@pytest.mark.parametrize("how", ["short", "missing"])
def test_a_short_or_missing_file_is_noticed_at_opening(tmp_path, how):
    _filled(tmp_path / "state")
    path = next((tmp_path / "state").glob("*.sst"))
    if how == "short":
        os.truncate(path, path.stat().st_size - 100)
    else:
        path.unlink()
    with pytest.raises(IntegrityError, match=path.name):
        KeyedState.open(tmp_path / "state")


def test_a_database_without_current_is_not_begun_anew(tmp_path):
    _filled(tmp_path / "state")
    (tmp_path / "state" / "CURRENT").unlink()
    with pytest.raises(IntegrityError, match="CURRENT is missing"):
        KeyedState.open(tmp_path / "state")


def _write_for_ever(state: KeyedState) -> None:
    for _ in range(100):
        state.write((number % 128, os.urandom(8), os.urandom(1000)) for number in range(1000))
        state.flush()


def test_a_full_disk_is_told_apart(tmp_path):
    with small_disk(tmp_path / "disk", size=8 << 20) as disk:
        state = KeyedState.open(disk / "state", ALL, 128)
        with pytest.raises(NoSpace, match="free space or choose another disk"):
            _write_for_ever(state)
        with contextlib.suppress(TransferError):
            state.close()


def test_the_scar_of_the_lower_bound_is_still_there(tmp_path):
    """If this fails, rocksdict was mended: `cursor` may use the lower bound then."""
    from rocksdict import ReadOptions

    _filled(tmp_path / "state", 1000)
    with KeyedState.open(tmp_path / "state") as state:
        options = ReadOptions()
        options.set_iterate_lower_bound(b"\x00\x40")
        position = state._open.iter(options)
        position.seek_to_first()
        assert position.key()[:2] == b"\x00\x00"
        del position


def test_a_batch_needs_raw_mode(state):
    from rocksdict import WriteBatch

    wrong = WriteBatch()
    wrong.put(b"k", b"v")
    with pytest.raises(TransferError), rocksdb_errors(state.directory):
        state._open.write(wrong, unlogged())


def test_a_handle_of_a_column_family_would_keep_the_directory_locked(tmp_path):
    """Why none is ever taken; `close` releases at once."""
    database = open_rocksdb(str(tmp_path), RocksOptions(), create=True)
    handle = database.get_column_family("default")
    database.close()
    with pytest.raises(DestinationError, match="open already"):
        open_rocksdb(str(tmp_path), RocksOptions())
    handle.close()
    open_rocksdb(str(tmp_path), RocksOptions()).close()


def test_reading_from_several_threads_while_writing(state):
    state.write((number % 128, b"%d" % number, b"v") for number in range(5000))
    counts: list[int] = []
    threads = [threading.Thread(target=lambda: counts.append(state.count())) for _ in range(4)]
    for thread in threads:
        thread.start()
    state.write((number % 128, b"%d" % number, b"w") for number in range(5000))
    for thread in threads:
        thread.join()
    assert counts == [5000] * 4


def test_errors_of_other_kinds_pass_untranslated():
    with pytest.raises(ZeroDivisionError), rocksdb_errors("/d"):
        raise ZeroDivisionError
    assert native_options(RocksOptions())


def test_options_and_lineage_travel(tmp_path):
    options = RocksOptions(compression="zstd")
    assert pickle.loads(pickle.dumps(options)) == options
    lineage = Lineage(ALL, 128)
    lineage.save(str(tmp_path))
    assert Lineage.load(str(tmp_path)) == lineage
    assert Lineage.load(str(tmp_path / "nowhere")) is None
    assert os.listdir(tmp_path) == [NAME]
