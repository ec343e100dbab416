"""Make ``statelift`` importable from a bare checkout: the folders here are its subpackages."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path

if importlib.util.find_spec("statelift") is None:
    namespace = types.ModuleType("statelift")
    namespace.__path__ = [str(Path(__file__).parent)]
    sys.modules["statelift"] = namespace
