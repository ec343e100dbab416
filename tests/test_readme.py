"""What the README says is so: its options, its quick start, its links."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from statelift.transfer.cli.options import markdown

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def code_blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_option_table_is_the_programs_own() -> None:
    assert markdown().strip() in README, "run: statelift options --markdown"


def test_the_quick_start_runs_as_pasted_and_is_short(tmp_path: Path) -> None:
    code = code_blocks("python")[0]
    assert len(code.strip().splitlines()) <= 20
    done = subprocess.run(
        [sys.executable, "-c", code.replace("/tmp/statelift", str(tmp_path))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "5000000 bytes, {'wire': 100} {'crc64nvme'}\n"


@pytest.mark.parametrize("page", ["README.md", "ARCHITECTURE.md", "CHANGELOG.md"])
def test_links_lead_to_files(page: str) -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text())
    assert [each for each in targets if "://" not in each and not (ROOT / each).exists()] == []


def test_the_files_that_the_architecture_names_exist() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    names = {each for each in re.findall(r"`([a-z0-9_/]+\.py)`", text) if "/" in each}
    places = [ROOT, ROOT / "transfer"]
    assert [name for name in names if not any((place / name).exists() for place in places)] == []
