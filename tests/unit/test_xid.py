"""The catalogue of Xids."""

from __future__ import annotations

import pytest
from ansible.module_utils.gpu_host.log import xid


@pytest.mark.parametrize(
    ("code", "action", "severity"),
    [
        (13, "RESTART_APP", xid.APPLICATION),
        (31, "RESTART_APP", xid.APPLICATION),
        (43, "IGNORE", xid.NOTICE),
        (45, "WORKFLOW_45", xid.NOTICE),
        (48, "WORKFLOW_48", xid.FATAL),
        (62, "RESET_GPU", xid.FATAL),
        (63, "RESET_TO_REMAP", xid.APPLICATION),
        (64, "RESET_GPU", xid.FATAL),
        (74, "WORKFLOW_NVLINK", xid.FATAL),
        (79, "RESTART_BM", xid.FATAL),
        (94, "RESTART_APP", xid.APPLICATION),
        (95, "RESET_GPU", xid.FATAL),
        (119, "RESET_GSP", xid.FATAL),
        (151, "RESTART_VM", xid.FATAL),
        (9999, "UNKNOWN", xid.APPLICATION),
    ],
)
def test_action_and_severity(code: int, action: str, severity: str) -> None:
    found = xid.describe_xid(code)
    assert (found.action, found.severity) == (action, severity)
    assert found.advice


def test_codes_with_a_sub_code_say_themselves_how_bad_it_is() -> None:
    assert xid.describe_xid(145, " pid=1, RLW_REMAP Nonfatal XC0 i0 Link 03 (0x1 0x2)").severity == xid.NOTICE
    assert xid.describe_xid(145, " pid=1, RLW_REMAP Fatal XC1 i0 Link 03 (0x1 0x2)").severity == xid.FATAL
    assert (
        xid.describe_xid(154, " GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)").severity
        == xid.FATAL
    )
    assert (
        xid.describe_xid(154, " GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)").severity
        == xid.NOTICE
    )


def test_every_named_code_is_a_number_of_the_catalogue_or_has_no_action_of_its_own() -> None:
    without_action = {code for code in xid.NAMES if xid.describe_xid(code).action == "UNKNOWN"}
    assert without_action == {56, 57, 58, 61, 65, 167}
