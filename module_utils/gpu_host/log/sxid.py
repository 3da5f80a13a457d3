"""SXid errors: what an NVSwitch reports in the kernel log, and what NVIDIA says to do.

Source: NVIDIA Fabric Manager for NVSwitch Systems User Guide (DU-09883-001), appendix D: non-fatal (D.4), fatal (D.5),
always fatal (D.6) and other notable (D.7) NVSwitch SXid errors. SXids come from NVSwitches up to Hopper's; with NVLink
5 the GPUs report Xid 144 to 150 instead. A number that is not here has no name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .xid import APPLICATION, FATAL, NOTICE
from .xid_catalogue import expand_codes

# kind -> (severity, what to do)
ACTIONS = {
    "CORRECTED": (NOTICE, "No action: the switch corrected it or sends the packet again."),
    "IGNORE": (NOTICE, "The Fabric Manager guide says that it can be ignored."),
    "COOLING": (APPLICATION, "The switch was too hot and its links may run on one lane: look at the cooling."),
    "CONNECTION": (
        APPLICATION,
        "A broken connection or a partner that was shut down: where it was no shutdown, check the link's connectors.",
    ),
    "PARTITION": (
        FATAL,
        "Traffic of the GPU stalls: restart the guest, and compare the fabric's partitions with what was meant.",
    ),
    "STALLED": (FATAL, "Traffic of the GPU stalls and its jobs end with Xid 45: restart the guest or reset the GPUs."),
    "RESET_ALL": (FATAL, "Stop the workloads, then reset all GPUs and NVSwitches together."),
    "FOLLOWED": (APPLICATION, "Not fatal by itself; a fatal one may follow."),
    "PORT": (
        FATAL,
        "Fatal for the link: on a port to a GPU for the jobs of that GPU (Xid 74 there), on a port between switches "
        "for all that cross it. Stop them, reset all GPUs together, restart the Fabric Manager.",
    ),
    "FABRIC": (FATAL, "Fatal for the whole fabric: stop every workload and restart the host."),
    "UNKNOWN_FATAL": (FATAL, "Look the number up in the Fabric Manager guide; do what it says for a fatal one."),
    "UNKNOWN": (APPLICATION, "Look the number up in the Fabric Manager guide; the line itself calls it non-fatal."),
}
_BY_ACTION = {
    "CORRECTED": "11012 11021-11023 12021 12023 15008 15011 19049 19055 19057 19059 19062 19065 19068 19071 "
    "24001-24003 20001",
    "IGNORE": "22013",
    "COOLING": "10004-10005",
    "CONNECTION": "20012 22012",
    "PARTITION": "11004",
    "STALLED": "12028",
    "RESET_ALL": "10003 19084",
    "FOLLOWED": "10001-10002",
    "PORT": "11001 11009 11013 11018-11020 12001-12002 12022 12024-12027 12030-12032 "
    "14017 15001 15006 15009-15010 15012-15013 19047-19048 19054 19056 19058 19060-19061 "
    "19063-19064 19066-19067 19069-19070 20034 24004-24007",
    "FABRIC": "12020 22003 22011 23001-23017",
}
_SINGLE_BIT = "11012 11021-11023 12021 12023 15008 15011 19049 19055 19057 19059 19062 19065 19068 19071 24001-24003"
_ACTION_OF = {code: action for action, codes in _BY_ACTION.items() for code in expand_codes(codes)}
NAMES = {
    **dict.fromkeys(expand_codes(_SINGLE_BIT), "Single bit ECC error"),
    10001: "Host PRIV error",
    10002: "Host PRIV timeout",
    10003: "Host unhandled interrupt",
    10004: "Host thermal event start",
    10005: "Host thermal event end",
    11001: "Ingress invalid command",
    11004: "Ingress invalid ACL",
    11009: "Ingress invalid VCSet",
    11013: "Ingress header DBE",
    11018: "Ingress RID DBE",
    11019: "Ingress RLAN DBE",
    11020: "Ingress control parity",
    12001: "Egress crossbar overflow",
    12002: "Egress packet route",
    12020: "Egress sequence ID error",
    12022: "Egress input ECC DBE error",
    12024: "Egress output ECC DBE error",
    12025: "Egress credit overflow",
    12026: "Egress destination request ID error",
    12027: "Egress destination response ID error",
    12028: "Egress nonposted PRIV error",
    12030: "Egress control parity error",
    12031: "Egress credit parity error",
    12032: "Egress flit type mismatch",
    14017: "TS ATO timeout",
    15001: "Route buffer over/underflow",
    15006: "Route transdone over/underflow",
    15009: "Route GLT DBE",
    15010: "Route parity",
    15012: "Route incoming DBE",
    15013: "Route credit parity",
    19047: "NCISOC HDR ECC DBE Error",
    19048: "NCISOC DAT ECC DBE Error",
    19054: "HDR RAM ECC DBE Error",
    19056: "DAT0 RAM ECC DBE Error",
    19058: "DAT1 RAM ECC DBE Error",
    19060: "CREQ RAM HDR ECC DBE Error",
    19061: "CREQ RAM DAT ECC DBE Error",
    19063: "Response RAM HDR ECC DBE Error",
    19064: "Response RAM DAT ECC DBE Error",
    19066: "COM RAM HDR ECC DBE Error",
    19067: "COM RAM DAT ECC DBE Error",
    19069: "RSP1 RAM HDR ECC DBE Error",
    19070: "RSP1 RAM DAT ECC DBE Error",
    19084: "AN1 Heartbeat Timeout Error",
    20001: "TX Replay Error",
    20012: "Broken/inconsistent connection",
    20034: "LTSSM Fault Up",
    22003: "Minion Halt",
    22011: "Minion exterror",
    22012: "Minion Link NA interrupt",
    22013: "Minion Link DLREQ interrupt",
    23001: "Ingress SRC-VC buffer overflow",
    23002: "Ingress SRC-VC buffer underflow",
    23003: "Egress DST-VC credit overflow",
    23004: "Egress DST-VC credit underflow",
    23005: "Ingress packet burst error",
    23006: "Ingress packet sticky error",
    23007: "Possible bubbles at ingress",
    23008: "Ingress packet invalid dst error",
    23009: "Ingress packet parity error",
    23010: "Ingress SRC-VC buffer overflow",
    23011: "Ingress SRC-VC buffer underflow",
    23012: "Egress DST-VC credit overflow",
    23013: "Egress DST-VC credit underflow",
    23014: "Ingress packet burst error",
    23015: "Ingress packet sticky error",
    23016: "Possible bubbles at ingress",
    23017: "Ingress credit parity error",
    24004: "Sourcetrack TCEN0 crumbstore DBE",
    24005: "Sourcetrack TCEN0 TD crumbstore DBE",
    24006: "Sourcetrack TCEN1 crumbstore DBE",
    24007: "Sourcetrack timeout error",
}


@dataclass(frozen=True)
class Sxid:
    """One row. `name` is None for a number that the guide does not name."""

    code: int
    name: str | None
    action: str  # a key of ACTIONS
    severity: str
    advice: str


def describe_sxid(code: int, text: str = "") -> Sxid:
    """The guide's row for `code`; `text` is the rest of the log line, which says Fatal or Non-fatal.

    What the line calls fatal is fatal, whatever the guide says; so is a number that neither of them calls harmless.
    """
    fatal = re.match(r"\s*Fatal\b", text) is not None
    action = _ACTION_OF.get(code)
    if action is None or (fatal and ACTIONS[action][0] != FATAL):
        action = "UNKNOWN" if re.match(r"\s*Non-?fatal\b", text, re.IGNORECASE) else "UNKNOWN_FATAL"
    severity, advice = ACTIONS[action]
    return Sxid(code, NAMES.get(code), action, severity, advice)
