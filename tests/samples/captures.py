"""The folder of captures that GPU_HOST_SAMPLES names: KIND/NAME.txt, what a command printed or a file held."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "GPU_HOST_SAMPLES"
NAMED = os.environ.get(VARIABLE)
SAMPLES = Path(NAMED or os.devnull)
# The folder of public captures that test_public_*.py were written for; it has an index, a folder of one's own has none.
HAS_PUBLIC = (SAMPLES / "INDEX.md").is_file()
