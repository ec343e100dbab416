"""How a command ended: a line or two for people, one JSON document for programs."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from ...backends.errors import CopyCancelled, CopyFailed, TransferError
from ...backends.report import CopiedFile, CopyReport
from .interrupts import Interrupted
from .text import count_text, seconds_text, size_text

_SHOWN = 10


def print_json(document: dict[str, Any]) -> None:
    print(json.dumps(document, indent=1))


def totals(files: Sequence[CopiedFile], seconds: float) -> dict[str, Any]:
    """Files, bytes, seconds and the same by method."""
    methods: dict[str, dict[str, int]] = {}
    for file in files:
        method = methods.setdefault(file.method, {"files": 0, "bytes": 0})
        method["files"] += 1
        method["bytes"] += file.bytes
    total = sum(file.bytes for file in files)
    return {"files": len(files), "bytes": total, "seconds": round(seconds, 6), "methods": methods}


def error_records(error: BaseException) -> list[dict[str, Any]]:
    """One record per failed request, or one for the command."""
    errors: Iterable[BaseException] = error.errors if isinstance(error, CopyFailed) else [error]
    return [_record(each) for each in errors]


def _record(error: BaseException) -> dict[str, Any]:
    request = getattr(error, "request", None)
    return {
        "error": type(error).__name__,
        "message": str(error.args[0]) if error.args else type(error).__name__,
        "remedy": getattr(error, "remedy", None),
        "transient": getattr(error, "transient", False),
        "source": request.source if request else None,
        "destination": request.destination if request else None,
    }


def print_failure(error: BaseException, **more: Any) -> None:
    """The document of a command that failed."""
    done = error.done if isinstance(error, CopyFailed | CopyCancelled | Interrupted) else ()
    seconds = more.pop("seconds", 0.0)
    print_json({"ok": False, **more, **totals(done, seconds), "errors": error_records(error)})


def summary(report: CopyReport) -> str:
    """``40 files, 2.00 GiB in 3.21 s, 638 MiB/s, by wire``."""
    line = f"{count_text(len(report.files), 'file')}, {size_text(report.bytes)} in {seconds_text(report.seconds)}"
    if report.seconds > 0 and report.bytes:
        line += f", {size_text(report.bytes / report.seconds)}/s"
    methods = report.methods
    if len(methods) == 1:
        return f"{line}, by {next(iter(methods))}"
    return line + (f", by {', '.join(f'{name} ({count})' for name, count in methods.items())}" if methods else "")


def complain(error: BaseException) -> None:
    """Say on stderr what went wrong; distinct causes once each."""
    for line in _complaint(error):
        print(_one_line(line), file=sys.stderr)


def _complaint(error: BaseException) -> list[str]:
    if isinstance(error, CopyFailed):
        return _batch_complaint(error)
    if isinstance(error, Interrupted):
        done = f" after {count_text(len(error.done), 'file')}" if error.done else ""
        return [f"statelift: {error}{done}"]
    if isinstance(error, TransferError | CopyCancelled):
        return [f"statelift: {error}"]
    if isinstance(error, KeyboardInterrupt):
        return ["statelift: interrupted"]
    return [f"statelift: unexpected {type(error).__name__}: {error} (a bug: --debug shows where)"]


def _batch_complaint(error: CopyFailed) -> list[str]:
    if len(error.errors) == 1 and not error.done:
        return [f"statelift: {error.errors[0]}"]
    counts = Counter((type(each), str(each)) for each in error.errors)
    lines = [f"statelift: {len(error.errors)} of {len(error.errors) + len(error.done)} files failed"]
    for (_, text), count in list(counts.items())[:_SHOWN]:
        lines.append(f"  {text}{f'  [{count} files]' if count > 1 else ''}")
    if len(counts) > _SHOWN:
        lines.append(f"  and {len(counts) - _SHOWN} more; --json prints them all")
    return lines


def _one_line(text: str) -> str:
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)
