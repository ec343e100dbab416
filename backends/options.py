"""Dotted options: declared once beside the field they fill, resolved from several sources.

A group is a frozen dataclass whose fields are made by `option`; a `Configuration` keeps the
values of every source apart until a key is looked up, so that the first source wins for a key
under all of its names. It pickles without secrets: a process that unpickles it finds them in its
own environment again.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, TypeVar

from .errors import OptionError

PREFIX = "STATELIFT_"
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d)?", re.IGNORECASE)
_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def parse_size(text: str) -> int:
    """Bytes, in powers of 1024: ``1024mb``, ``64k``, ``1.5 GiB``, ``1000``."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError("not a size such as 64mb")
    return int(float(match[1]) * 1024 ** _UNITS[match[2].lower()])


def parse_duration(text: str) -> float:
    """Seconds: ``10``, ``500ms``, ``2 min``, ``1h``, ``7d``."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError("not a duration such as 10s")
    return float(match[1]) * _SECONDS[(match[2] or "s").lower()]


def parse_bool(text: str) -> bool:
    word = text.strip().lower()
    if word in {"true", "yes", "on", "1"}:
        return True
    if word in {"false", "no", "off", "0"}:
        return False
    raise ValueError("not true or false")


def environment_name(key: str) -> str:
    """``s3.s5cmd.batch.max-size`` is ``STATELIFT_S3_S5CMD_BATCH_MAX_SIZE``."""
    return PREFIX + re.sub(r"[.-]", "_", key).upper()


@dataclass(frozen=True)
class Declaration:
    """What one option is: see `option`."""

    key: str
    default: Any
    parse: Callable[[str], Any]
    help: str
    shown: str
    aliases: tuple[str, ...]
    hadoop: tuple[str, ...]
    environment: tuple[str, ...]
    secret: bool


def option(
    key: str,
    default: Any,
    *,
    parse: Callable[[str], Any],
    help: str,
    shown: str | None = None,
    aliases: tuple[str, ...] = (),
    hadoop: tuple[str, ...] = (),
    environment: tuple[str, ...] = (),
    secret: bool = False,
) -> Any:
    """Declare a field of an `OptionGroup`.

    Args:
        parse: text to value; raises ``ValueError`` with the reason.
        shown: the default as the table of options prints it.
        aliases: older keys that mean the same.
        hadoop: keys of ``spark.hadoop.*`` that fill it where no key of ours does.
        environment: further environment variables, after our own.
        secret: kept out of reprs, pickles and tables.
    """
    default_text = shown if shown is not None else ("none" if default is None else str(default))
    declaration = Declaration(key, default, parse, help, default_text, aliases, hadoop, environment, secret)
    return field(default=default, repr=not secret, metadata={"option": declaration})


class OptionGroup:
    """Base of the frozen dataclasses that hold options.

    Every group that is defined is known to `Configuration`, which refuses keys of none of them.
    """

    _groups: ClassVar[list[type[OptionGroup]]] = []

    #: Keys of secrets that were set where this group was pickled and are not known here.
    missing_secrets: tuple[str, ...] = ()

    def __init_subclass__(cls) -> None:
        OptionGroup._groups.append(cls)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        """Itself, as it never changes: a pickle would lose the secrets."""
        return self

    def __getstate__(self) -> dict[str, Any]:
        """All fields but secrets, of which only the keys travel."""
        state = dict(self.__dict__)
        secrets = {name: each.key for name, each in self.declarations() if each.secret}
        state["missing_secrets"] = tuple(key for name, key in secrets.items() if state.get(name) is not None)
        return {name: value for name, value in state.items() if name not in secrets}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Find the secrets in this process's environment again."""
        environment = Configuration()
        for name, each in self.declarations():
            if each.secret:
                state[name] = environment.value(each) if each.key in state["missing_secrets"] else None
        found = {each.key for name, each in self.declarations() if each.secret and state[name] is not None}
        state["missing_secrets"] = tuple(key for key in state["missing_secrets"] if key not in found)
        self.__dict__.update(state)

    @classmethod
    def declarations(cls) -> Iterator[tuple[str, Declaration]]:
        """(field name, declaration) of each option of this group."""
        for each in dataclasses.fields(cls):  # type: ignore[arg-type]
            if "option" in each.metadata:
                yield each.name, each.metadata["option"]

    @classmethod
    def of(cls, configuration: Configuration) -> Self:
        """This group's fields from a configuration.

        Raises:
            OptionError: a value does not parse or is refused by the group.
        """
        values = {name: configuration.value(each) for name, each in cls.declarations() if configuration.has(each)}
        return cls(**values)


Group = TypeVar("Group", bound=OptionGroup)


#: What imports further modules that declare options, each called once.
_loaders: list[Callable[[], None]] = []


def declared_by(load: Callable[[], None]) -> None:
    """Register what imports further groups, to be called when every option must be known.

    Importing every backend for a task that uses one would cost more than a small copy.
    """
    _loaders.append(load)


def declared() -> list[Declaration]:
    """Every option, sorted by key."""
    while _loaders:
        _loaders.pop()()
    found = _imported()
    return [found[key] for key in sorted(found)]


def _imported() -> dict[str, Declaration]:
    return {each.key: each for group in OptionGroup._groups for _, each in group.declarations()}


@dataclass(frozen=True)
class Source:
    """One place where options come from: its name for error messages, and its values."""

    name: str
    values: Mapping[str, str] = field(repr=False)
    #: Names under which a declaration is looked up here, best first.
    names: Callable[[Declaration], Iterable[str]] = field(repr=False)


def our_keys(declaration: Declaration) -> Iterable[str]:
    return (declaration.key, *declaration.aliases)


def hadoop_keys(declaration: Declaration) -> Iterable[str]:
    return declaration.hadoop


def environment_keys(declaration: Declaration) -> Iterable[str]:
    ours = (environment_name(key) for key in (declaration.key, *declaration.aliases))
    return (*ours, *declaration.environment)


class Configuration:
    """Options by key from several sources; the first source that has a key wins.

    Args:
        arguments: keys and values given in code or by ``-c``.
        spark: the Spark conf: ``spark.statelift.<key>``, and ``spark.hadoop.*`` where an option names it.
        environ: the environment, by default this process's.

    Raises:
        OptionError: a key that no option has; names the nearest one.
    """

    def __init__(
        self,
        arguments: Mapping[str, object] | None = None,
        *,
        spark: Mapping[str, str] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        given = {key: _as_text(value) for key, value in (arguments or {}).items() if value is not None}
        conf = dict(spark or {})
        ours = _below("spark.statelift.", conf)
        _refuse_unknown(given, "")
        _refuse_unknown(ours, "spark.statelift.")
        self._sources: tuple[Source, ...] = (
            Source("argument", given, our_keys),
            Source("spark.statelift", ours, our_keys),
            Source("spark.hadoop", _below("spark.hadoop.", conf), hadoop_keys),
            Source("environment", dict(os.environ if environ is None else environ), environment_keys),
        )

    def _find(self, declaration: Declaration) -> tuple[str, str] | None:
        for source in self._sources:
            for name in source.names(declaration):
                if source.values.get(name, "") != "":
                    return source.name, source.values[name]
        return None

    def has(self, declaration: Declaration) -> bool:
        return self._find(declaration) is not None

    def value(self, declaration: Declaration) -> Any:
        """The parsed value, or the default.

        Raises:
            OptionError: the text does not parse; the text of a secret is not shown.
        """
        found = self._find(declaration)
        if found is None:
            return declaration.default
        source, text = found
        try:
            return declaration.parse(text)
        except ValueError as error:
            shown = "***" if declaration.secret else repr(text)
            raise OptionError(f"{declaration.key} = {shown} (from {source}): {error}") from error

    def of(self, group: type[Group]) -> Group:
        return group.of(self)

    def secrets(self) -> dict[str, str]:
        """Set secrets as environment variables for another process. Handle with care."""
        found = {each: self._find(each) for each in declared() if each.secret}
        return {environment_name(each.key): value[1] for each, value in found.items() if value}

    def with_arguments(self, arguments: Mapping[str, object]) -> Configuration:
        """A copy in which ``arguments`` win over everything."""
        given = {key: _as_text(value) for key, value in arguments.items() if value is not None}
        _refuse_unknown(given, "")
        changed = Configuration.__new__(Configuration)
        first, *rest = self._sources
        changed._sources = (Source(first.name, {**first.values, **given}, our_keys), *rest)
        return changed

    def __repr__(self) -> str:
        known = [each for each in declared() if self.has(each)]
        shown = (f"{each.key}={'***' if each.secret else self._find(each)[1]}" for each in known)  # type: ignore[index]
        return f"Configuration({', '.join(shown)})"

    def __copy__(self) -> Configuration:
        return self

    def __deepcopy__(self, memo: object) -> Configuration:
        """Itself, as it never changes: a pickle would lose the secrets."""
        return self

    def __getstate__(self) -> dict[str, str]:
        """Resolved values without secrets: what the driver resolved holds on executors."""
        found = {each.key: self._find(each) for each in declared() if not each.secret}
        return {key: value[1] for key, value in found.items() if value}

    def __setstate__(self, state: dict[str, str]) -> None:
        self._sources = (
            Source("driver", state, our_keys),
            Source("environment", dict(os.environ), environment_keys),
        )


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _below(prefix: str, conf: Mapping[str, str]) -> dict[str, str]:
    return {key.removeprefix(prefix): value for key, value in conf.items() if key.startswith(prefix)}


def _refuse_unknown(given: Mapping[str, str], prefix: str) -> None:
    if given.keys() <= _names(_imported().values()):
        return
    known = _names(declared())
    for key in given:
        if key not in known:
            nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.0)
            remedy = f"did you mean {prefix}{nearest[0]}?" if nearest else None
            raise OptionError(f"unknown option {prefix}{key}", remedy=remedy)


def _names(declarations: Iterable[Declaration]) -> set[str]:
    return {name for each in declarations for name in our_keys(each)}
