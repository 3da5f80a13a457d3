"""A report of a large made-up fleet with a hundred different findings, made in the process, without Ansible."""

from __future__ import annotations

import copy
from typing import Any

from ansible.module_utils.gpu_report import collector

from .test_report_matrix import host, pair, probed

CHECKS = 240
FINDINGS = 100
STARTED = "2026-01-%02dT03:04:05+00:00"


def make_fleet(
    hosts: int = 500, gpus: int = 8, day: int = 2, rate: float = 55.4, hostile: str = "", checks: int = CHECKS
) -> dict[str, Any]:
    """The report of `hosts` hosts with `gpus` GPUs each, probed.

    Two of five are ready, one of fifty is unreachable, and the others have one to three of a hundred different
    findings (or as many as there are `checks`), each with what was seen on that host alone, and every third with
    commands for that host alone. The last check is a warning. `hostile` is added to every text.
    """
    facts = make_facts(gpus, rate)
    name, last, findings = "gpu%04d", checks - 1, min(FINDINGS, checks - 1)
    defined = {_name_check(number): _define_check(number, number == last) for number in range(checks)}
    made: dict[str, Any] = {}
    for number in range(hosts):
        results = [{"id": check, "status": "pass" if place % 3 else "skip"} for place, check in enumerate(defined)]
        state, message = collector.READY, "ready: %d checks" % checks
        own = dict(facts)
        if number % 50 == 7:
            results, state, message, own = [], collector.NOT_VALIDATED, "Connection timed out" + hostile, {}
        elif number % 5 > 1:
            state, bad = collector.NOT_READY, sorted({number // 5 % findings, number * 7 % findings, number % 3})
            for place in bad:
                results[place] = _fail(place, number, name % number, hostile)
            message = "%d failed: %s" % (len(bad), ", ".join(map(_name_check, bad)))
        if number % 4 == 1 and results:
            results[last] = _fail(last, number, name % number, hostile)
        made[name % number] = {
            "state": state, "message": message, "unreachable": state == collector.NOT_VALIDATED, "problems": [],
            "unproven": [], "results": results, "facts": own,
        }  # fmt: skip
    states = [one["state"] for one in made.values()]
    statuses = [result["status"] for one in made.values() for result in one["results"]]
    return {
        "schema": 1,
        "run": {
            "playbook": "validate.yml", "started_at": STARTED % day, "seconds": 42.0, "ansible_core": "2.19.3",
            "complete": True,
        },
        "ready": all(state == collector.READY for state in states),
        "totals": {
            "hosts": {"total": hosts, **{s: states.count(s) for s in ("ready", "not_ready", "not_validated")}},
            "checks": {
                "total": len(statuses),
                **{s: statuses.count(s) for s in ("pass", "fail", "unknown", "skip", "waived", "error")},
            },
        },
        "checks": defined,
        "hosts": made,
    }  # fmt: skip


def make_facts(gpus: int = 8, rate: float = 55.4) -> dict[str, Any]:
    """The facts of a probed host, with what the report shows of its cards and buses."""
    facts = probed(host(gpus), p0_1=pair(rate - 1.0), p1_0=pair(rate))
    addresses = list(facts["gpus"]["devices"])
    facts["gpus"].update(count=gpus, models=["NVIDIA RTX PRO 6000 Blackwell Server Edition"])
    for card in facts["gpus"]["devices"].values():
        card.update(name="NVIDIA RTX PRO 6000", bar1_mib=131072, memory_total_mib=97887, temperature_c=41)
    facts["virtualization"] = {"placement": "bare_metal", "dmi": {"sys_vendor": "Made Up", "product_name": "Eight"}}
    facts["driver"] = {"version": "580.82.09", "loaded": True}
    facts["pci"] = {
        "gpus": {
            one: {"root_complex": "pci0000:%02d" % (place // 2), "path": ["0000:%02d:01.0" % place], "numa_node": 0}
            for place, one in enumerate(addresses)
        },
        "bridges": {"0000:%02d:01.0" % place: {"kind": "root_port"} for place in range(gpus)},
    }
    facts["probe"]["host_links"] = {
        one: {"near_gb_s": {"to_gpu": 55.2, "from_gpu": 54.1}, "full_gb_s": 55.4, "verdict": "ok"} for one in addresses
    }
    return copy.deepcopy(facts)


def _name_check(number: int) -> str:
    return "made_up_check_number_%03d" % number


def _define_check(number: int, warns: bool) -> dict[str, Any]:
    return {
        "title": "The made-up property number %d of the host holds" % number,
        "severity": "warning" if warns else "error",
        "tags": ["p2p"],
        "docs": "docs/checks.md#x",
        "explains": [],
    }


def _fail(check: int, number: int, name: str, hostile: str) -> dict[str, Any]:
    """A failing result, told with what only this host shows."""
    target = "-l %s" % name if check % 3 else "vm-%d" % number
    return {
        "id": _name_check(check),
        "status": "fail",
        "found": "property %d is %d of 4096 on GPU 0000:%02x:00.0%s" % (check, number, number % 200, hostile),
        "why": "A card without it answers late. What waits for it then waits for all of them, and is slow." + hostile,
        "root_cause": True,
        "remedy": {
            "on": "host",
            "text": "Set the property in /etc/modprobe.d/made-up.conf, then load the module again." + hostile,
            "commands": [
                "ansible-playbook remedy.yml -b -e check=%s %s%s" % (_name_check(check), target, hostile),
                "cat /sys/module/made_up/parameters/property_%d" % check,
            ],
            "risk": "The server that uses the GPUs stops." + hostile,
            "verify": "grep -c property /proc/made_up",
        },
    }
