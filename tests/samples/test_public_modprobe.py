"""Public modprobe.d files, read as the note beside each says."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from captures import SAMPLES  # type: ignore[import-not-found]
from test_modprobe import options, parsed  # type: ignore[import-not-found]


def test_samples() -> None:
    hmm = options((SAMPLES / "modprobe" / "rtx6kpro-uvm-disable-hmm.txt").read_text())
    assert hmm == [("nvidia_uvm", "uvm_disable_hmm", "1")]
    vfio = parsed((SAMPLES / "modprobe" / "amd-softdep-disable-vga-inline-quote.txt").read_text())
    ids = next(option.value for option in vfio.options if option.name == "ids")
    assert ids is not None and len(ids.split(",")) == 6 and "10de" not in ids
    assert [command.verb for command in vfio.commands] == ["softdep"] * 3
