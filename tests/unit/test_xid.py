"""The catalogue of Xids."""

from __future__ import annotations

import pytest
from ansible.module_utils.gpu_host.log import sxid, xid, xid_catalogue


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


def test_the_whole_catalogue_has_a_name_and_an_action() -> None:
    assert sorted(xid.NAMES) == list(range(1, 173))
    assert {code for code in xid.NAMES if xid.describe_xid(code).action == "UNKNOWN"} == set()
    assert xid.describe_xid(173).name is None and xid.describe_xid(173).action == "UNKNOWN"


def test_no_code_stands_in_two_buckets_of_one_column() -> None:
    for column in (xid_catalogue.IMMEDIATE, xid_catalogue.INVESTIGATORY):
        codes = [code for part in column.values() for code in xid_catalogue.expand_codes(part)]
        assert len(codes) == len(set(codes))
        assert set(codes) <= set(xid.NAMES)
    assert set(xid_catalogue.bucket_by_code(xid_catalogue.IMMEDIATE)) == set(range(1, 162))


@pytest.mark.parametrize(
    ("code", "bucket", "investigate"),
    [
        (8, "RESTART_APP", "CONTACT_SUPPORT"),
        (48, "WORKFLOW_XID_48", "WORKFLOW_XID_48"),
        (63, "IGNORE", "IGNORE"),
        (119, "RESET_GPU", "INVESTIGATE_SW"),
        (136, "RESET_GPU", "INVESTIGATE_LINK_SI"),
        (149, "WORKFLOW_NVLINK5_ERR", "WORKFLOW_NVLINK5_ERR"),
        (154, "XID_154", None),
        (163, None, None),
    ],
)
def test_the_words_of_nvidia(code: int, bucket: str | None, investigate: str | None) -> None:
    found = xid.describe_xid(code)
    assert (found.bucket, found.investigate) == (bucket, investigate)
    assert bucket is None or "NVIDIA: " + bucket in found.advice
    assert investigate in (None, bucket) or "comes back: %s" % investigate in found.advice


@pytest.mark.parametrize("code", range(162, 173))
def test_what_has_no_bucket_is_given_none(code: int) -> None:
    found = xid.describe_xid(code)
    assert found.name and found.bucket is None and "NVIDIA:" not in found.advice
    assert found.severity == (xid.NOTICE if code < 166 else xid.FATAL if code > 170 else xid.APPLICATION)


@pytest.mark.parametrize(
    ("code", "text", "name", "severity"),
    [
        (20034, " Fatal, Link 62 LTSSM Fault Up", "LTSSM Fault Up", xid.FATAL),
        (22013, " Non-fatal, Link 32 Minion Link DLREQ interrupt", "Minion Link DLREQ interrupt", xid.NOTICE),
        (19049, " Non-fatal, Link 02 NCISOC HDR ECC LIMIT", "Single bit ECC error", xid.NOTICE),
        (10004, " Non-fatal, thermal event", "Host thermal event start", xid.APPLICATION),
        (22013, " Fatal, Link 32", "Minion Link DLREQ interrupt", xid.FATAL),
        (99999, " Fatal, Link 1 x", None, xid.FATAL),
        (99999, " Non-fatal, Link 1 x", None, xid.APPLICATION),
        (99999, "", None, xid.FATAL),
        (23001, "", "Ingress SRC-VC buffer overflow", xid.FATAL),
    ],
)
def test_sxids(code: int, text: str, name: str | None, severity: str) -> None:
    found = sxid.describe_sxid(code, text)
    assert (found.name, found.severity) == (name, severity) and found.advice


def test_every_sxid_that_has_a_name_has_an_action() -> None:
    assert {code for code in sxid.NAMES if sxid.describe_sxid(code, " Non-fatal").action.startswith("UNKNOWN")} == set()
