"""The user's own flags for s5cmd: only global flags, and none that break what we rely on.

A word that is no flag would be taken for s5cmd's command (``rm s3://bucket/*``), so everything
that s5cmd's help does not list as a global flag is refused.
"""

from __future__ import annotations

import difflib
import shlex
from dataclasses import dataclass

_WITH_VALUE = {
    "credentials-file",
    "endpoint-url",
    "log",
    "numworkers",
    "profile",
    "request-payer",
    "retry-count",
}
_SWITCHES = {"json", "no-sign-request", "no-verify-ssl", "stat", "use-list-objects-v1"}
_SHORT = {"r": "retry-count"}
_REFUSED = {
    "dry-run": "nothing would be copied",
    "help": "nothing would be copied",
    "h": "nothing would be copied",
    "install-completion": "nothing would be copied",
    "version": "nothing would be copied",
}
_LEVELS = {
    "trace": "it prints signed requests, which are secrets",
    "error": "it hides which files were copied",
}


@dataclass(frozen=True, slots=True)
class Arguments:
    """Words to put before s5cmd's command; ``str()`` gives the text they were split from.

    Attributes:
        words: each flag with its value behind it.
    """

    words: tuple[str, ...] = ()

    def value(self, name: str) -> str | None:
        """The value of a flag that takes one; the last counts."""
        found = None
        for flag, value in zip(self.words, (*self.words[1:], None), strict=True):
            if flag.startswith("-") and _name(flag) == name:
                found = flag.partition("=")[2] if "=" in flag else value
        return found

    def has(self, *names: str) -> bool:
        return any(word.startswith("-") and _name(word) in names for word in self.words)

    @property
    def chooses_credentials(self) -> bool:
        """Whether these say who signs, so that we must not."""
        return self.has("credentials-file", "profile", "no-sign-request")

    def __str__(self) -> str:
        return shlex.join(self.words)


def _name(flag: str) -> str:
    """``retry-count`` of ``-r``, ``--retry-count`` and ``--retry-count=3``."""
    name = flag.lstrip("-").partition("=")[0]
    return _SHORT.get(name, name)


def parse_arguments(text: str) -> Arguments:
    """Split like a shell would, and check.

    Raises:
        ValueError: unbalanced quotes, a word that is no global flag, or a flag that would break copies.
    """
    words = shlex.split(text)
    left = iter(words)
    for word in left:
        name = _checked(word)
        if name in _WITH_VALUE:
            value = word.partition("=")[2] if "=" in word else next(left, None)
            _check_value(word, name, value)
        elif "=" in word and word.partition("=")[2] != "true":
            raise ValueError(f"{word}: a switch has no value")
    return Arguments(tuple(words))


def _checked(word: str) -> str:
    if not word.startswith("-") or not word.strip("-"):
        raise ValueError(f"{word!r} is not a flag: only s5cmd's global flags can be given")
    name = _name(word)
    if name in _REFUSED:
        raise ValueError(f"{word} cannot be used: {_REFUSED[name]}")
    known = _WITH_VALUE | _SWITCHES
    if name not in known:
        nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
        raise ValueError(f"{word} is not a global flag of s5cmd; did you mean --{nearest}?")
    return name


def _check_value(word: str, name: str, value: str | None) -> None:
    if not value:
        raise ValueError(f"{word} needs a value")
    if name == "log" and value in _LEVELS:
        raise ValueError(f"--log {value} cannot be used: {_LEVELS[value]}")
    if name in {"numworkers", "retry-count"} and not value.isdecimal():
        raise ValueError(f"{word} {value}: not a number")
