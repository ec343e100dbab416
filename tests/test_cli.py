"""The command line: what it prints, what it returns, and what it leaves behind."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from statelift.backends.options import declared
from statelift.transfer.cli import main
from statelift.transfer.cli.options import markdown
from statelift.transfer.cli.text import seconds_text, size_text, table_text

ROOT = Path(__file__).parent.parent


@pytest.fixture
def run(capsys):
    """Runs a command in this process: (exit code, stdout, stderr)."""

    def call(*words: object) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return call


def document(out: str) -> dict:
    """Of ``--json``: exactly one."""
    found = json.loads(out)
    assert isinstance(found, dict)
    return found


# ---------------------------------------------------------------- usage


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "required: COMMAND (see statelift --help)"),
        (["cpoy"], "there is no command cpoy (did you mean copy?"),
        (["copy"], "SRC and DST are needed, or --requests"),
        (["copy", "a"], "SRC and DST are needed"),
        (["copy", "a", "b", "c"], "unrecognized arguments: c"),
        (["copy", "a", "b", "--backnd", "x"], "no option --backnd (did you mean --backend? See statelift copy --help)"),
        (["checkpoint", "ls", "--jsn", "x"], "did you mean --json? See statelift checkpoint ls --help"),
        (["--versoin", "copy", "a", "b"], "there is no option --versoin (did you mean --version?"),
        (["copy", "a", "b", "--requests", "-"], "--requests takes the place of SRC and DST"),
        (["copy", "a", "b", "-c", "novalue"], "-c needs KEY=VALUE"),
        (
            ["copy", "a", "b", "-c", "transfer.thread=1"],
            "unknown option transfer.thread (did you mean transfer.threads?)",
        ),
        (["copy", "a", "b", "-c", "transfer.threads=none"], "transfer.threads = 'none' (from argument)"),
        (["copy", "a", "b", "--backend", "s5cdm"], "did you mean s5cmd?"),
        (
            ["copy", "s3://b/a", "b", "-c", "s3.access-key=AK"],
            "s3.secret-key is missing (set s3.access-key and s3.secret-key",
        ),
        (["restore", "x/chk-1"], "required: --subtask, --parallelism, --into"),
        (["restore", "x/chk-1", "--subtask", "a", "--parallelism", "1", "--into", "d"], "invalid int value: 'a'"),
        (["inspect"], "required: CHECKPOINT"),
        (["demo", "--size", "much"], "--size much: not a size such as 64mb"),
        (["bench", "play"], "invalid choice: 'play'"),
    ],
)
def test_wrong_usage_is_one_line_and_2(run, words: list[str], message: str) -> None:
    code, out, err = run(*words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("statelift: ")
    assert message in err


def test_wrong_usage_with_json_is_one_document(run) -> None:
    code, out, _ = run("copy", "--json")
    assert code == 2
    found = document(out)
    assert not found["ok"]
    assert [each["error"] for each in found["errors"]] == ["UsageError"]


def test_a_secret_in_an_option_is_not_shown(run) -> None:
    for words in (["-c", "canary"], ["-c", "s3.acess-key=canary"], ["-c", "s3.secret-key=canary"]):
        _, out, err = run("copy", "s3://b/a", "x", *words)
        assert "canary" not in out + err


def test_help_and_version(run) -> None:
    code, out, _ = run("--help")
    assert code == 0
    for command in ("demo", "copy", "restore", "inspect", "options", "bench"):
        assert f"\n    {command} " in out
        code, shown, _ = run(command, "--help")
        assert code == 0
        assert shown.startswith(f"usage: statelift {command}")
    code, out, _ = run("--version")
    assert (code, out.split()[0]) == (0, "statelift")


def test_a_bug_is_one_line_unless_asked(run, monkeypatch, capsys) -> None:
    def broken(*_args: object) -> None:
        raise ZeroDivisionError("odd")

    monkeypatch.setattr("statelift.transfer.cli.options.run", broken)
    code, _, err = run("options")
    assert (code, err) == (1, "statelift: unexpected ZeroDivisionError: odd (a bug: --debug shows where)\n")
    assert main(["options", "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


# ---------------------------------------------------------------- options


def test_options_lists_every_option(run) -> None:
    code, out, _ = run("options")
    assert code == 0
    keys = [each.key for each in declared()]
    assert [line.split()[0] for line in out.splitlines()] == keys
    assert "s3.s5cmd.path" in keys
    code, out, _ = run("options", "--json")
    records = document(out)["options"]
    assert [each["key"] for each in records] == keys
    assert all(each["help"] and each["default"] for each in records)


def test_options_as_markdown_is_a_table(run) -> None:
    code, out, _ = run("options", "--markdown")
    assert (code, out.strip()) == (0, markdown())
    rows = out.splitlines()
    assert len(rows) == len(declared()) + 2
    assert all(row.replace(r"\|", "").count("|") == 4 for row in rows)


def _groups(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return {node.name for node in classes if any(isinstance(b, ast.Name) and b.id == "OptionGroup" for b in node.bases)}


def test_every_option_is_known_as_soon_as_the_package_is() -> None:
    """A key must be accepted wherever `Configuration` is first made."""
    folders = ("backends", "s5cmd_integration", "transfer")
    written = set().union(*(_groups(path) for folder in folders for path in (ROOT / folder).rglob("*.py")))
    code = (
        "import statelift.transfer, statelift.backends.options as o;o.declared();"
        "print(*(g.__name__ for g in o.OptionGroup._groups))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT, timeout=60
    )
    assert set(shown.stdout.split()) == written


def test_starting_pulls_in_no_heavy_package() -> None:
    heavy = "boto3 botocore s3transfer fsspec s3fs aiobotocore pyspark pandas rocksdict awscrt rich anycrc psutil"
    code = (
        "import sys; from statelift.transfer.cli import main; main(['options']);"
        f"print([m for m in {heavy.split()!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT, timeout=60
    )
    assert done.stderr.strip() == "[]"


# ---------------------------------------------------------------- text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.98 KiB"),
        (1024, "1.00 KiB"),
        (10 * 1024, "10.0 KiB"),
        (256 << 20, "256 MiB"),
        ((1 << 30) - 1, "1.00 GiB"),
        (5 << 60, "5120 PiB"),
    ],
)
def test_sizes(size: int, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.001, "0.00 s"), (9.994, "9.99 s"), (12.34, "12.3 s"), (125, "2 min 05 s")]
)
def test_durations(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


def test_tables_are_aligned_without_trailing_space() -> None:
    assert table_text([["a", "size"], ["bcd", "1"]], right=(1,)) == "a    size\nbcd     1"
    assert table_text([["a", "b"], ["ccc", ""]]) == "a    b\nccc"


# ---------------------------------------------------------------- a real process


def test_the_installed_command_survives_a_reader_that_goes_away() -> None:
    command = [sys.executable, "-m", "statelift.transfer.cli", "options"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, env={**os.environ})
    assert child.stdout is not None
    child.stdout.close()
    _, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (141, b"")
