"""The role with a real engine on the CPU, under its own unit. `make real-engine` runs this and
test_real_engine_made.py.

It installs PyTorch and transformers (1 GB) into .cache/engine: with that it takes three to four minutes of both
processors.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from test_molecule import run_scenario  # type: ignore[import-not-found]


@pytest.mark.hosts
@pytest.mark.engine
@pytest.mark.xdist_group("engine")
def test_a_real_engine(tmp_path: Path) -> None:
    run_scenario("inference_server_real", tmp_path)
