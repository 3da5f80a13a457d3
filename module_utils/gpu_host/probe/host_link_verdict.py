"""What the probe's figures between host memory and GPUs mean.

A slow card, a link trained down, a wrong NUMA node, or an uplink that several GPUs share.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from . import shared_ports
from .pair_verdict import PCIE_LANE_GB_S, find_median

Facts = dict[str, Any]
DIRECTIONS = {"to_gpu": "host to GPU", "from_gpu": "GPU to host"}
# nvbandwidth with page-locked memory reaches 55.5 of 63.0 GB/s on an H200 (PCIe Gen5 x16), 26.3 of 31.5 on Gen4 x16.
REACHED_SHARE = 0.88
LEAST_SHARE = 0.76  # of the link's rate: below it something is wrong on one NUMA node
LEAST_SHARE_OF_TWINS = 0.8  # of the median of the cards of the same model, where there are three or more
NEAR_IS_SLOWER = 0.9  # near over far: memory on the GPU's own node should never be the slower one
SHARED_BELOW = 0.8  # at once over alone
COLLAPSED_BELOW = 0.6  # all GPUs of one port together, over the best of them alone
LISTS = ("slow_host_links", "trained_down_host_links", "misplaced_gpus", "collapsed_host_links")


def expect_host_link(link: Facts | None) -> Facts:
    """``{full_gb_s, least_gb_s, basis, trained_down}`` of a PCIe link as it ran while the probe worked.

    `full_gb_s`: what a good link reaches per direction; None where speed or width is not known. `trained_down`: a
    sentence where the link runs below what both its ends can do.
    """
    link = link or {}
    speed, width = link.get("speed_gt_s"), link.get("width")
    lane = PCIE_LANE_GB_S.get(speed or 0.0)
    found: Facts = {"full_gb_s": None, "least_gb_s": None, "basis": None, "trained_down": None}
    if not lane or not width or not speed:
        return found
    found["full_gb_s"] = round(REACHED_SHARE * lane * width, 1)
    found["least_gb_s"] = round(LEAST_SHARE * lane * width, 1)
    found["basis"] = "PCIe %g GT/s x%d" % (speed, width)
    most_width, most_speed = link.get("max_width") or width, link.get("max_speed_gt_s") or speed
    if width < most_width or speed < most_speed:
        found["trained_down"] = "the link runs at %g GT/s x%d, the card can do %g GT/s x%d" % (
            speed,
            width,
            most_speed,
            most_width,
        )
    return found


def judge_host_links(raw: Facts, devices: Facts) -> Facts:
    """``{links, shared_uplinks, …}``: of each GPU in `raw` (the probe's `host_links`) the figures, what is expected and
    the verdict; the GPUs in each of `LISTS`, with ``explanations`` by list; and sentences on uplinks that several GPUs
    share, which is no fault.

    A link: ``{node, alone, at_once, near_gb_s, far_gb_s, at_once_gb_s: {to_gpu, from_gpu}, full_gb_s, least_gb_s,
    basis, verdict, reason}``; verdict ok | slow | trained_down | misplaced | collapsed | shared_uplink | unknown.
    """
    links = {address: _describe(address, found, devices.get(address) or {}) for address, found in raw.items()}
    result: Facts = {"links": links, "shared_uplinks": [], "explanations": {name: [] for name in LISTS}}
    result.update((name, []) for name in LISTS)
    for address, link in links.items():
        twins = [
            other["near_gb_s"]
            for name, other in links.items()
            if name != address and (devices.get(name) or {}).get("name") == (devices.get(address) or {}).get("name")
        ]
        link.update(_judge(link, twins, (devices.get(address) or {}).get("link")))
    _judge_at_once(result, shared_ports.read_paths(devices))
    named = {"slow": LISTS[0], "trained_down": LISTS[1], "misplaced": LISTS[2], "collapsed": LISTS[3]}
    for address, link in sorted(links.items()):
        where = named.get(link["verdict"])
        if where:
            result[where].append(address)
            result["explanations"][where].append("%s: %s" % (address, link["reason"]))
    return result


def _describe(address: str, found: Facts, device: Facts) -> Facts:
    alone, at_once = found.get("alone") or {}, found.get("at_once") or {}
    node = (device.get("place") or {}).get("numa_node")
    nodes = sorted({key for way in DIRECTIONS for key in alone.get(way) or {}})
    own = str(node) if str(node) in nodes else nodes[0] if len(nodes) == 1 else None
    far = next((key for key in nodes if key != own), None) if own is not None else None

    def medians(key: str | None) -> Facts:
        return {way: find_median(alone.get(way), key) if key is not None else None for way in DIRECTIONS}

    near = medians(own)
    if own is None:  # the GPU's own node is not known: the better one counts
        near = {
            way: max(filter(None, (find_median(alone.get(way), key) for key in nodes)), default=None) for way in near
        }
    return {
        "node": node,
        "alone": alone,
        "at_once": at_once,
        "near_gb_s": near,
        "far_gb_s": medians(far),
        "far_node": far,
        "at_once_gb_s": {way: find_median(at_once, way) for way in DIRECTIONS},
    }


def _judge(link: Facts, twins: list[Facts], state: Facts | None) -> Facts:
    expected = expect_host_link(state)
    trained_down = expected.pop("trained_down")
    near, far = link["near_gb_s"], link["far_gb_s"]
    if None in near.values():
        missing = [DIRECTIONS[way] for way, rate in near.items() if rate is None]
        return {**expected, "verdict": "unknown", "reason": "not measured: %s" % ", ".join(missing)}
    for way, words in DIRECTIONS.items():
        if far[way] is not None and near[way] < NEAR_IS_SLOWER * far[way]:
            reason = "%s: %.3g GB/s with memory of its own node %s, %.3g with memory of node %s" % (
                words,
                near[way],
                link["node"],
                far[way],
                link["far_node"],
            )
            return {**expected, "verdict": "misplaced", "reason": reason}
    slow = next(_find_slow(near, expected, twins), None)
    figures = ", ".join("%s %.3g GB/s" % (words, near[way]) for way, words in DIRECTIONS.items())
    if trained_down:
        return {**expected, "verdict": "trained_down", "reason": "%s; %s" % (trained_down, figures)}
    if slow:
        return {**expected, "verdict": "slow", "reason": slow}
    return {**expected, "verdict": "ok", "reason": figures}


def _find_slow(near: Facts, expected: Facts, twins: list[Facts]) -> Iterator[str]:
    for way, words in DIRECTIONS.items():
        if expected["least_gb_s"] is not None and near[way] < expected["least_gb_s"]:
            yield "%s: %.3g GB/s alone, a good link (%s) reaches %.3g" % (
                words,
                near[way],
                expected["basis"],
                expected["full_gb_s"],
            )
        others = [twin[way] for twin in twins if twin[way] is not None]
        if len(others) > 1 and near[way] < LEAST_SHARE_OF_TWINS * statistics.median(others):
            yield "%s: %.3g GB/s alone, the other cards of this model reach %.3g" % (
                words,
                near[way],
                statistics.median(others),
            )


def _judge_at_once(result: Facts, paths: shared_ports.Paths) -> None:
    """Which GPUs are slower at once than alone, and whether those that share a port get less than one alone."""
    links = result["links"]
    for way, words in DIRECTIONS.items():
        rates = {
            address: (link["near_gb_s"][way], link["at_once_gb_s"][way])
            for address, link in links.items()
            if link["near_gb_s"][way] and link["at_once_gb_s"][way]
        }
        slower = [address for address, (alone, beside) in rates.items() if beside < SHARED_BELOW * alone]
        groups, rest = shared_ports.group_by_port(slower, {name: paths[name] for name in rates if name in paths})
        named = [(shared_ports.name_port(port, paths), gpus) for port, gpus in groups]
        if rest:
            named.append(("no port that they alone share is visible", rest))
        for name, gpus in named:
            alone, together = max(rates[gpu][0] for gpu in gpus), sum(rates[gpu][1] for gpu in gpus)
            sentence = "%s, %s at once (%s): %.3g GB/s together, one alone %.3g" % (
                words,
                "%d GPUs" % len(gpus) if len(gpus) > 1 else gpus[0],
                name,
                together,
                alone,
            )
            # What one GPU loses by itself, others have gained: that is sharing, whatever the share.
            collapsed = len(gpus) > 1 and together < COLLAPSED_BELOW * alone
            if not collapsed:
                result["shared_uplinks"].append(sentence)
            for gpu in gpus:
                if links[gpu]["verdict"] in ("ok", "shared_uplink"):
                    links[gpu].update(verdict="collapsed" if collapsed else "shared_uplink", reason=sentence)
