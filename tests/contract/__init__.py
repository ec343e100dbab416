"""The contract: what every backend must do, tried against a real server.

A backend's test file is a factory and its traits::

    class TestStream(Contract):
        traits = Traits(pairs=frozenset({"download", "upload"}), methods=frozenset({"stream"}))

        def make(self, configuration: Configuration) -> StreamFileSystem:
            return StreamFileSystem(configuration)

The duties are those of ``statelift/backends/paths_copying.py``.
"""

from __future__ import annotations

from .copying import Copying
from .ending import Ending
from .failing import Failing
from .places import BucketPlace, LocalPlace, Pair, make_bytes
from .processes import Processes
from .suite import Traits

__all__ = ["BucketPlace", "Contract", "LocalPlace", "Pair", "Traits", "make_bytes"]


class Contract(Copying, Failing, Ending, Processes):
    """Subclass it as ``Test<Backend>`` with ``traits`` and ``make``."""
