"""``python -m statelift.bench``."""

from __future__ import annotations

import sys

from .suite import main

sys.exit(main())
