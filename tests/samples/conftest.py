"""Captures from outside of the repository: only those that GPU_HOST_SAMPLES names are looked at."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from captures import HAS_PUBLIC  # type: ignore[import-not-found]

# What each public capture shows is only known of those; in a folder of one's own every capture is tried all the same.
collect_ignore_glob = [] if HAS_PUBLIC else ["test_public_*.py"]
