"""Options ``state.rocksdb.*``, with defaults for executors of one vCPU and little memory."""

from __future__ import annotations

from dataclasses import dataclass

from ...backends.options import OptionGroup, option, parse_size

#: rocksdict's RocksDB writes zlib uncompressed without a word, so it is not offered.
COMPRESSIONS = ("none", "lz4", "lz4hc", "snappy", "zstd", "bz2")


def _compression(text: str) -> str:
    word = text.strip().lower()
    if word not in COMPRESSIONS:
        raise ValueError(f"not one of {', '.join(COMPRESSIONS)}")
    return word


def _size(text: str) -> int:
    size = parse_size(text)
    if size < 64 << 10:
        raise ValueError("must be at least 64kb")
    return size


def _share(text: str) -> float:
    share = float(text)
    if not 0.0 <= share <= 1.0:
        raise ValueError("must be between 0 and 1")
    return share


@dataclass(frozen=True, kw_only=True)
class RocksOptions(OptionGroup):
    """How RocksDB keeps a subtask's state.

    Memory is about two write buffers and the block cache, plus about 2 bytes per key for filters
    and indexes of open files.
    """

    write_buffer_size: int = option(
        "state.rocksdb.write-buffer-size",
        32 << 20,
        parse=_size,
        shown="32mb",
        help="Memory for rows before they become an SST file; two of them at most.",
    )
    block_cache_size: int = option(
        "state.rocksdb.block-cache-size",
        16 << 20,
        parse=_size,
        shown="16mb",
        help="Memory for blocks of SST files that were read.",
    )
    target_file_size: int = option(
        "state.rocksdb.target-file-size",
        32 << 20,
        parse=_size,
        shown="32mb",
        help="Size of SST files: large ones copy faster, of small ones less is copied in vain at a rescale.",
    )
    compression: str = option(
        "state.rocksdb.compression", "lz4", parse=_compression, help=f"One of {', '.join(COMPRESSIONS)}."
    )
    unsorted_share: float = option(
        "state.rocksdb.unsorted-share",
        0.25,
        parse=_share,
        help="A snapshot compacts first where more than this share of the bytes lies in level 0, "
        "whose files span all keys and are needed by every subtask after a rescale; 1 never does.",
    )
