"""What the probe's figures mean: for each directed pair the first rung of the P2P ladder that fails.

granted (the driver says so) -> usable (peer access enabled) -> delivered (bytes verified by their owner) -> fast
(bandwidth, latency).
"""

from __future__ import annotations

from typing import Any

from ..evidence import values

# GB/s a lane and direction, line code taken off, by GT/s.
PCIE_LANE_GB_S = {2.5: 0.25, 5.0: 0.5, 8.0: 0.985, 16.0: 1.969, 32.0: 3.938, 64.0: 7.563}
# GB/s a link and direction by compute capability. Only for GPUs that show NV# in `nvidia-smi topo -m`.
NVLINK_GB_S = {
    "6.0": 20.0,
    "7.0": 25.0,
    "7.5": 25.0,
    "8.0": 25.0,
    "8.6": 14.06,
    "9.0": 26.56,
    "10.0": 53.13,
    "10.3": 53.13,
}
# What share of it a healthy pair reaches at least. Measured elsewhere: Gen5 x16 of 63 GB/s: 53 to 56.6 on one NUMA
# node, 39 to 51 across sockets; Gen4 x16 of 31.5: 26.3 and 22; NVLink4 x18 of 478: 376 to 394; NVLink3 x12
# of 300: 276. Azure's limits are 335 and 235.
SHARE_ONE_NODE = 0.76
SHARE_ACROSS_SOCKETS = 0.60
SHARE_NVLINK = 0.72
# Microseconds for 12 KiB back to back. Direct: about 0.5 (PCIe, bare metal) to 2.4 (NVLink in a guest); through host
# memory 14 to 15.
STAGED_LATENCY_US = 8.0
HIGH_LATENCY_US = 4.0
# A direct pair beats its own control by far (394 against 37 GB/s, 2.3 against 15.2 us). Both close to it: nothing is
# gained.
SAME_AS_CONTROL = 1.15
# Above the raw rate of the link, with room for how a tool counts: the bytes did not take that link.
IMPOSSIBLE_SHARE = 1.1
MANY_TO_ONE_SHARE = 0.5  # of the best single pair into (or out of) the same GPU: its link is the limit
ALL_AT_ONCE_SHARE = (
    0.25  # of one pair's bandwidth times the number of GPUs: 164 to 192 of 448 GB/s is healthy on eight, 52 a collapse
)

RUNGS = ("granted", "usable", "delivered", "fast")


def expect_bandwidth(
    path: str | None, ends: tuple[dict[str, Any], dict[str, Any]], nvlink_gb_s: float | None, in_guest: bool | None
) -> dict[str, Any]:
    """The least bandwidth that a healthy pair reaches: ``{gb_s, basis, most_gb_s}``.

    gb_s is None where nothing is known of the link. `most_gb_s`: what the PCIe link of the slower end carries at its
    best, None for NVLink and where the path is not known.

    `path` is the cell of `nvidia-smi topo -m` (`NV18`, `NODE`, `SYS`, …), `ends` are both GPUs' facts, `nvlink_gb_s`
    the speed of one link as `nvidia-smi nvlink -s` gives it. In a guest the path does not show the sockets, so the
    lower share holds.
    """
    links = values.whole_number(path[2:]) if path and path.startswith("NV") else None
    if links is not None:
        rate = nvlink_gb_s or NVLINK_GB_S.get(str(ends[0].get("compute_capability")))
        if rate is None:
            return {"gb_s": None, "basis": "%s of unknown speed" % path, "most_gb_s": None}
        full = links * rate
        basis = "%s, %.0f GB/s per direction" % (path, full)
        return {"gb_s": round(SHARE_NVLINK * full, 1), "basis": basis, "most_gb_s": None}
    slowest = _slower_link(ends)
    if slowest is None:
        return {"gb_s": None, "basis": "the speed of the PCIe link is not known", "most_gb_s": None}
    apart = path == "SYS" or path is None or in_guest is not False
    share = SHARE_ACROSS_SOCKETS if apart else SHARE_ONE_NODE
    return {
        "gb_s": round(share * slowest[0], 1),
        "basis": "%s%s, %.0f GB/s per direction" % (slowest[1], " " + path if path else "", slowest[0]),
        "most_gb_s": _most(ends) if path and not path.startswith("NV") else None,
    }


def _most(ends: tuple[dict[str, Any], dict[str, Any]]) -> float | None:
    """GB/s per direction of the slower of both links at the best that card and slot can do."""
    found = []
    for gpu in ends:
        link = gpu.get("link") or {}
        speeds = [link[name] for name in ("speed_gt_s", "max_speed_gt_s") if link.get(name) in PCIE_LANE_GB_S]
        widths = [link[name] for name in ("width", "max_width") if link.get(name)]
        if not speeds or not widths:
            return None
        found.append(PCIE_LANE_GB_S[max(speeds)] * max(widths))
    return min(found)


def name_impossible(rate: float | None, most: float | None) -> str | None:
    """A sentence where a pair was measured to copy faster than its PCIe link can carry."""
    if rate is None or most is None or rate <= IMPOSSIBLE_SHARE * most:
        return None
    return "%.4g GB/s, where PCI Express carries %.3g GB/s per direction at most" % (rate, most)


def _slower_link(ends: tuple[dict[str, Any], dict[str, Any]]) -> tuple[float, str] | None:
    """(GB/s per direction, in words) of the slower of both GPUs' PCIe links, as they ran while the probe worked."""
    found = []
    for gpu in ends:
        link = gpu.get("link") or {}
        lane, width = PCIE_LANE_GB_S.get(link.get("speed_gt_s") or 0.0), link.get("width")
        if not lane or not width:
            return None
        found.append((lane * width, "PCIe %g GT/s x%d" % (link["speed_gt_s"], width)))
    return min(found)


def judge_pair(pair: dict[str, Any], least: dict[str, Any]) -> dict[str, Any]:
    """``{verdict, failed_rung, reason}`` of one directed pair.

    verdict: ok | not_granted | not_usable | not_delivered | hung | staged | slow | error | unknown. `reason` is a
    sentence with the figures.
    """
    claims, peer = pair.get("claims") or {}, pair.get("peer") or {}
    refused = {name: status for name, status in (pair.get("driver_status") or {}).items() if status not in (None, "OK")}
    if claims.get("can_access") is False:
        if not refused and any((pair.get("driver_status") or {}).values()):
            return _verdict("not_usable", "usable", "nvidia-smi topo -p2p says OK, cuDeviceCanAccessPeer says no")
        said = ", ".join("%s %s" % item for item in sorted(refused.items()))
        return _verdict(
            "not_granted", "granted", "the driver grants no peer access%s" % (" (topo -p2p: %s)" % said if said else "")
        )
    if peer.get("enabled") is False:
        return _verdict(
            "not_usable",
            "usable",
            "cuCtxEnablePeerAccess returned %s" % ((peer.get("error") or {}).get("name") or "an error"),
        )
    fault = _delivery_fault(pair.get("delivered") or {})
    if fault:
        return _verdict("not_delivered", "delivered", fault)
    error = pair.get("error")
    if error:
        return _of_error(error)
    missing = [name for name in ("peer", "delivered", "latency_us", "bandwidth_gb_s") if not pair.get(name)]
    states = {method: (result or {}).get("status") for method, result in (pair.get("delivered") or {}).items()}
    missing += ["delivery by %s" % method for method, state in states.items() if state not in ("ok", "skipped")]
    if not missing and "ok" not in states.values():
        missing = ["delivery by any method"]
    if missing:
        return _verdict("unknown", None, "not measured: %s" % ", ".join(missing))
    return _speed(pair, least)


def _verdict(verdict: str, rung: str | None, reason: str) -> dict[str, Any]:
    return {"verdict": verdict, "failed_rung": rung, "reason": reason}


def _of_error(error: dict[str, Any]) -> dict[str, Any]:
    stage = str(error.get("stage") or "")
    rung = (
        "usable"
        if stage == "enable peer access"
        else "fast"
        if stage.startswith(("latency", "bandwidth"))
        else "delivered"
    )
    if stage.startswith("control"):
        rung = "granted"  # before peer access was even tried: not a fault of P2P alone
    if error.get("kind") in ("hung", "left_behind"):
        return _verdict("hung", rung, "hung in the stage '%s'" % stage)
    return _verdict(
        "error", rung, "%s in the stage '%s'" % (error.get("name") or error.get("kind") or "a fault", stage)
    )


def _delivery_fault(delivered: dict[str, Any]) -> str:
    words = {
        "nothing_arrived": "nothing arrived",
        "part_arrived": "only a part arrived",
        "altered": "other bytes arrived",
        "overrun": "bytes beside the target changed",
    }
    for method, result in delivered.items():
        if result is None:
            continue
        if result.get("status") == "corrupt":
            mirror = (
                "; the writer reads it back through its own window: a private mirror"
                if result.get("writer_sees_it")
                else ""
            )
            return "%s of %s bytes: %s, first wrong byte at %s%s" % (
                method,
                result.get("bad_size"),
                words.get(str(result.get("found")), "wrong data"),
                result.get("first_bad_offset"),
                mirror,
            )
        if result.get("status") == "error":
            return "%s of %s bytes: %s" % (method, result.get("bad_size"), result.get("error"))
    return ""


def find_median(figures: dict[str, Any] | None, *names: str) -> float | None:
    """The median of the first figure that is there."""
    for name in names:
        value = ((figures or {}).get(name) or {}).get("median")
        if value is not None:
            return values.decimal_number(value)
    return None


def _speed(pair: dict[str, Any], least: dict[str, Any]) -> dict[str, Any]:
    latency = find_median(pair["latency_us"], "copy_12k_back_to_back")
    control_latency = find_median(pair.get("control_latency_us"), "copy_12k_back_to_back")
    rate = find_median(pair["bandwidth_gb_s"], "copy_alone", "copy")
    control = find_median(pair["bandwidth_gb_s"], "control_copy")
    flag = pair["latency_us"].get("flag_round_trip") or {}
    if flag.get("no_answer"):
        return _verdict(
            "not_delivered",
            "delivered",
            "a flag stored by one GPU never showed in the other's memory: %s" % flag.get("reason"),
        )
    if latency is None or rate is None:
        return _verdict("unknown", None, "no bandwidth or no latency was measured")
    gained = (
        not (control and control_latency)
        or rate > SAME_AS_CONTROL * control
        or latency * SAME_AS_CONTROL < control_latency
    )
    if latency > STAGED_LATENCY_US or not gained:
        beside = (
            "; with peer access off %.3g GB/s, %.3g us" % (control, control_latency)
            if control and control_latency
            else ""
        )
        return _verdict(
            "staged", "fast", "%.3g GB/s and %.3g us for 12 KiB: as if through host memory%s" % (rate, latency, beside)
        )
    if least["gb_s"] is not None and rate < least["gb_s"]:
        return _verdict("slow", "fast", "%.3g GB/s of at least %.3g (%s)" % (rate, least["gb_s"], least["basis"]))
    return _verdict("ok", None, "%.3g GB/s, %.3g us for 12 KiB" % (rate, latency))
