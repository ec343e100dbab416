"""``statelift checkpoint``: the checkpoints of a base, one command each for what is done with them."""

from __future__ import annotations

import argparse

from ...backends.closeables import CloseableRegistry
from ...backends.errors import CheckpointNotFound, UsageError
from ...backends.options import parse_duration
from ..checkpoint.copying import copy_checkpoint
from ..checkpoint.orphans import find_orphans, is_checkpoint_file, remove_orphans
from ..checkpoint.removal import remove_checkpoint
from ..checkpoint.store import CheckpointStore, base_of
from ..checkpoint.verification import Problem, verify
from ..file_systems import FileSystems
from . import checkpoint_list, inspect
from .arguments import Parser, add_common, configuration_of
from .bar import progress_bar
from .interrupts import closing_on_interrupt
from .outcome import print_json, summary, totals
from .text import count_text, size_text

_OLDER_THAN = "1d"


def define(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", required=True, parser_class=Parser)

    def add(name: str, text: str) -> argparse.ArgumentParser:
        return actions.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")

    listing = add("ls", "list the checkpoints of a base and the savepoints below it, and what each shares with others")
    listing.add_argument(
        "base", metavar="BASE", help="directory that holds chk-<number>, or a savepoint; a URI or a path"
    )
    add_common(listing, copies=False)
    listing.set_defaults(action=checkpoint_list.run)

    inspecting = add("inspect", "show what a checkpoint consists of")
    inspect.define(inspecting)
    inspecting.set_defaults(action=inspect.run)

    verifying = add("verify", "look whether a checkpoint's files are all there and whole")
    _add_checkpoint(verifying)
    verifying.add_argument("--deep", action="store_true", help="read every file and compare its CRC64NVME")
    add_common(verifying)
    verifying.set_defaults(action=_verify)

    copying = add(
        "cp", "copy a checkpoint to another base, with what that base lacks of it, or a savepoint to another directory"
    )
    _add_checkpoint(copying)
    copying.add_argument(
        "target",
        metavar="TARGET",
        help="base to copy to, where the number stays the same; of a savepoint the directory to make",
    )
    add_common(copying)
    copying.set_defaults(action=_copy)

    removing = add("rm", "delete a checkpoint or savepoint, and of its files those that no other needs")
    _add_checkpoint(removing)
    removing.add_argument(
        "--force", action="store_true", help="also the newest one, a savepoint, or one that is damaged"
    )
    add_common(removing, copies=False)
    removing.set_defaults(action=_remove)

    orphans = add("orphans", "list the files below a base that no checkpoint or savepoint needs")
    orphans.add_argument(
        "base", metavar="BASE", help="directory that holds chk-<number> or savepoints, or where one was begun"
    )
    orphans.add_argument("--delete", action="store_true", help="delete them; only with --older-than")
    orphans.add_argument("--older-than", metavar="AGE", help=f"least age, e.g. 1d or 12h (default: {_OLDER_THAN})")
    add_common(orphans, copies=False)
    orphans.set_defaults(action=_orphans)


def _add_checkpoint(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "checkpoint", metavar="CHECKPOINT", help="<base>/chk-<number> or a savepoint's directory, a URI or a path"
    )


def run(arguments: argparse.Namespace) -> int:
    return int(arguments.action(arguments))


def _verify(arguments: argparse.Namespace) -> int:
    configuration = configuration_of(arguments)
    closeables = CloseableRegistry()
    with CheckpointStore(configuration) as store, FileSystems(configuration) as file_systems:
        location, metadata = store.read(arguments.checkpoint)
        with (
            closing_on_interrupt(closeables),
            progress_bar("verifying", metadata.size, quiet=arguments.quiet or arguments.json) as progress,
        ):
            found = verify(location, metadata, file_systems, closeables, deep=arguments.deep, progress=progress)
    if arguments.json:
        counts = {"files": found.files, "bytes": found.bytes, "bytes_read": found.bytes_read}
        problems = [_record(each) for each in found.problems]
        more = {"unchecked": found.unchecked, "problems": problems, "errors": []}
        print_json({"ok": not found.problems, "checkpoint": str(location), **counts, **more})
    else:
        for each in found.problems:
            print(each)
        if not arguments.quiet:
            checked = "read and compared" if arguments.deep else "there, of the right size"
            state = f"{count_text(len(found.problems), 'problem')}" if found.problems else f"all {checked}"
            print(f"{count_text(found.files, 'file')}, {size_text(found.bytes)}: {state}")
            if found.unchecked:
                print(f"{count_text(found.unchecked, 'file')} without a checksum to compare")
    return 1 if found.problems else 0


def _record(problem: Problem) -> dict[str, object]:
    return {
        "checkpoint": problem.checkpoint,
        "subtask": problem.subtask,
        "file": problem.file,
        "uri": problem.uri,
        "reason": problem.reason,
    }


def _copy(arguments: argparse.Namespace) -> int:
    configuration = configuration_of(arguments)
    closeables = CloseableRegistry()
    with (
        CheckpointStore(configuration) as store,
        FileSystems(configuration) as file_systems,
        closing_on_interrupt(closeables),
        progress_bar("copying", None, quiet=arguments.quiet or arguments.json) as progress,
    ):
        done = copy_checkpoint(
            arguments.checkpoint, arguments.target, store, file_systems, closeables, progress=progress
        )
    if arguments.json:
        kept = {"files_kept": done.kept, "bytes_kept": done.bytes_kept}
        moved = {"bytes_moved": done.copy.bytes_moved, "errors": []}
        print_json(
            {
                "ok": True,
                "checkpoint": str(done.location),
                **totals(done.copy.files, done.copy.seconds),
                **kept,
                **moved,
            }
        )
    elif not arguments.quiet:
        print(summary(done.copy))
        kept_text = f", {count_text(done.kept, 'file')} ({size_text(done.bytes_kept)}) were there" if done.kept else ""
        print(f"{done.location} is complete{kept_text}")
    return 0


def _remove(arguments: argparse.Namespace) -> int:
    with CheckpointStore(configuration_of(arguments)) as store:
        gone = remove_checkpoint(store, arguments.checkpoint, force=arguments.force)
    if arguments.json:
        counts = {"files": len(gone.files), "bytes": gone.bytes, "files_kept": len(gone.kept)}
        print_json({"ok": True, "checkpoint": str(gone.location), **counts, "deleted": list(gone.files), "errors": []})
    else:
        kept = f"; {count_text(len(gone.kept), 'file')} kept" if gone.kept else ""
        print(f"{gone.location} deleted: {count_text(len(gone.files), 'file')}, {size_text(gone.bytes)} freed{kept}")
    return 0


def _orphans(arguments: argparse.Namespace) -> int:
    if arguments.delete and arguments.older_than is None:
        raise UsageError(
            "--delete needs --older-than",
            remedy=f"--older-than {_OLDER_THAN}: younger files may belong to a checkpoint in the making",
        )
    age = _age(arguments.older_than or _OLDER_THAN)
    with CheckpointStore(configuration_of(arguments)) as store:
        _require_snapshots(store, arguments.base)
        sweep = remove_orphans if arguments.delete else find_orphans
        found = sorted(sweep(store, arguments.base, older_than=age))
    total = sum(each.size for each in found)
    if arguments.json:
        files = [{"uri": each.uri, "bytes": each.size, "modified": each.modified} for each in found]
        print_json({"ok": True, "deleted": arguments.delete, "bytes": total, "orphans": files, "errors": []})
    else:
        for each in found:
            print(f"{size_text(each.size):>10}  {each.uri}")
        print(f"{count_text(len(found), 'orphan')}, {size_text(total)}{', deleted' if arguments.delete else ''}")
    return 0


def _require_snapshots(store: CheckpointStore, base: str) -> None:
    """Refuse a directory that is not what it is taken for: all that lies there would be orphans."""
    if store.list(base) or store.others(base):
        return
    found = list(find_orphans(store, base, older_than=0))
    if not found or any(is_checkpoint_file(each.uri, base_of(base)) for each in found):
        raise CheckpointNotFound(
            f"there is no checkpoint below {base}",
            remedy="name the directory that holds chk-<number>, or the one that a savepoint was begun in",
        )


def _age(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise UsageError(f"--older-than {text}: {error}", remedy="such as 1d or 12h") from error
