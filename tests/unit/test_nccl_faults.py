"""Releases of NCCL that are known to fail on some cards."""

from __future__ import annotations

import pytest
from ansible.module_utils.gpu_server import nccl_faults

RTX_PRO_6000, H200, RTX_4090 = 0x2BB5, 0x2335, 0x2684


@pytest.mark.parametrize(
    ("version", "cards", "fixed"),
    [
        ("2.25.1", {RTX_PRO_6000}, ["2.26.2"]),
        ("2.25.1", {H200, RTX_4090}, []),
        ("2.25.1", {H200, RTX_PRO_6000}, ["2.26.2"]),
        ("2.26.2", {RTX_PRO_6000}, ["2.31.2"]),
        ("2.26.2.post1", {RTX_PRO_6000}, ["2.31.2"]),
        ("2.26.2", {H200}, []),
        ("2.26.5", {RTX_PRO_6000}, []),
        ("2.29.2", {H200}, ["2.29.3"]),
        ("2.29.3", {H200}, []),
        ("2.31.2", {RTX_PRO_6000}, []),
        ("2.31.2", None, []),
        ("2.29.2", None, ["2.29.3"]),
        ("2.26.2", None, None),  # it matters which cards these are
        (None, {H200}, None),
        ("junk", {H200}, None),
    ],
)
def test_which_release_fails_on_which_card(
    version: str | None, cards: set[int] | None, fixed: list[str] | None
) -> None:
    found = nccl_faults.find_known_faults(version, cards)
    assert (None if found is None else [one["fixed"] for one in found]) == fixed


def test_every_row_names_its_source_and_a_release_that_works() -> None:
    for fault in nccl_faults.KNOWN_FAULTS:
        assert fault.source.startswith("https://") and fault.what
        assert not fault.holds_for(fault.fixed)
        assert fault.holds_for(fault.last or fault.first)
