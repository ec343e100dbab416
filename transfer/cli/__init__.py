"""The command ``statelift``.

Exit codes: 0 done; 1 a transfer or a checkpoint failed; 2 wrong usage or options; 130 and 143
interrupted by Ctrl-C and SIGTERM; 141 the reader of the output went away.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

from ...backends.errors import CopyCancelled, OptionError, TransferError, UsageError
from .arguments import parse
from .interrupts import Interrupted, raising_interrupts
from .outcome import complain, print_failure

_BROKEN_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. No exception leaves it, and no traceback unless ``--debug``."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        with raising_interrupts():
            code = _run(words)
            sys.stdout.flush()
    except BrokenPipeError:
        # Whatever is still buffered must not fail again when Python exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    return code


def _run(words: list[str]) -> int:
    try:
        arguments = parse(words)
        return int(arguments.run(arguments))
    except BrokenPipeError:
        raise
    except SystemExit as end:
        return int(end.code or 0)  # argparse printed --help or --version
    except (TransferError, CopyCancelled, KeyboardInterrupt, Exception) as error:
        if "--debug" in words:
            traceback.print_exc()
        if "--json" in words:
            print_failure(error)
        complain(error)
        return _code(error)


def _code(error: BaseException) -> int:
    if isinstance(error, OptionError | UsageError):
        return 2
    if isinstance(error, Interrupted):
        return error.code
    return 130 if isinstance(error, CopyCancelled | KeyboardInterrupt) else 1
