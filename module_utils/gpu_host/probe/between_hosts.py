"""A checked all-reduce over all GPUs of the hosts that serve one model together: what is run, and what it means.

Arms: ``configured``, over the network that NCCL chooses; and controls, each where the hosts have what it is about:
``gdr_off`` and ``ib_disabled`` (RDMA ports), ``network N`` (TCP over one of several networks that the hosts share). How
the ranks of a host are run stands in host_ranks.py. Everything here is pure.
"""

from __future__ import annotations

import secrets
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from ..evidence import values
from .all_reduce import NOT_BEGUN
from .host_network import NOT_TOLD, is_own_bridge

BETWEEN_COMMAND = ("p2p_between_hosts",)  # the name under which a bundle holds the result
HINT = "it was not asked for (-e probe_between_hosts=true)"
CONFIGURED = "configured"
NETWORKS_AT_MOST = 2  # that get a control of their own
CLEARLY_FASTER = 1.15
# Below this share of what the slowest host's links carry, something is wrong: NCCL reaches 0.8 and more of an RDMA port
# and of 10 Gbit/s Ethernet, and some 0.4 of 100 Gbit/s by TCP, where a processor core is the limit of a connection.
LEAST_SHARE = 0.25
SMALL, MIDDLE, LARGE, VERY_LARGE = 12 * 1024, 1 << 20, 64 << 20, 256 << 20
_JOINING = ("ncclCommInitRank", "wait for rank 0", "ncclGetUniqueId")

Facts = dict[str, Any]


# -- what is run
# --------------------------------------------------------------------------------------------------------------------


def plan_run(hosts: Sequence[Facts]) -> Facts:
    """What the hosts can run together: ``{not_run, problems, ranks, addresses, arms, sizes}``.

    `hosts`, in the order of their ranks: ``{host, look, lost, own_probe}``; `look` None where the host was not looked
    at, with the reason in `lost`; `own_probe` says what speaks against the host's own probe. `not_run`: what forbids to
    run anything (a GPU that works, a host that is not here). `problems`: what keeps these hosts from meeting, a
    sentence each. `ranks`: by host; `arms`: ``[{name, environment: by host}]``, none where nothing is to be run.
    """
    plan: Facts = {"not_run": None, "problems": [], "ranks": {}, "addresses": [], "arms": [], "sizes": []}
    if len(hosts) < 2:
        return {**plan, "not_run": "the group has %d hosts" % len(hosts)}
    for one in hosts:
        look, name = one["look"], one["host"]
        if look is None:
            why = one["lost"] or "it is not part of this run, or not ready by itself"
            return {**plan, "not_run": "%s was not looked at: %s" % (name, why)}
        if look["busy"]:
            return {**plan, "not_run": "%s: %s" % (name, look["busy"])}
        if one["own_probe"]:
            return {**plan, "not_run": "%s: %s" % (name, one["own_probe"])}
        if not look["gpus"]:
            return {**plan, "not_run": "%s: nvidia-smi shows no GPU" % name}
    looks = {one["host"]: one["look"] for one in hosts}
    plan["problems"] = _find_problems(looks)
    for name, look in looks.items():
        plan["ranks"][name] = list(range(len(plan["addresses"]), len(plan["addresses"]) + len(look["gpus"])))
        plan["addresses"] += look["gpus"]
    if not plan["problems"]:
        plan.update(arms=_plan_arms(looks), sizes=choose_sizes(looks.values()))
    return plan


def _find_problems(looks: dict[str, Facts]) -> list[str]:
    problems = []
    for number, (name, look) in enumerate(looks.items()):
        if number and look["way"]["problem"]:
            problems.append("%s: %s" % (name, look["way"]["problem"]))
        elif number and (look["way"]["address"] or "").startswith("127."):
            text = "%s: the address of rank 0, %s, is this host itself (inference_server_rank0_address names another)"
            problems.append(text % (name, look["way"]["address"]))
        if not look["nccl"]["version"]:
            problems.append("%s: no NCCL can be loaded: %s" % (name, look["nccl"]["reason"]))
    versions = {name: look["nccl"]["version"] for name, look in looks.items() if look["nccl"]["version"]}
    if len(set(versions.values())) > 1:
        told = ", ".join(
            "%s on %s (%s)" % (version, name, looks[name]["nccl"]["path"]) for name, version in versions.items()
        )
        problems.append("the versions of NCCL differ: %s" % told)
    return problems


def find_own_problem(probe: Facts | None) -> str | None:
    """What in a host's own probe speaks against measuring it together with others; None where nothing does."""
    if not probe or not probe.get("attempted"):
        return "its own probe did not run"
    if (probe.get("cuda") or {}).get("initialised") is not True:
        return "CUDA does not initialise"
    if probe.get("hung_pairs") or any(
        (event or {}).get("kind") == "left_behind" for event in probe.get("events") or ()
    ):
        return "its own probe hung"
    if probe.get("all_delivered") is False:
        return "P2P does not deliver on this host"
    verdict = (probe.get("collective") or {}).get("verdict")
    return "the all-reduce on this host alone: %s" % verdict.replace("_", " ") if verdict not in (None, "ok") else None


def make_token() -> str:
    """What the hosts of one run know one another by."""
    return secrets.token_hex(16)


def _plan_arms(looks: dict[str, Facts]) -> list[Facts]:
    def make_arm(name: str, environment: dict[str, dict[str, str]]) -> Facts:
        return {"name": name, "environment": environment}

    arms = [make_arm(CONFIGURED, {name: {} for name in looks})]
    if all(any(port["active"] for port in look["rdma"]) for look in looks.values()):
        # LOC: never [NCCL, user guide, NCCL_NET_GDR_LEVEL]; reading is set apart
        off = {"NCCL_NET_GDR_LEVEL": "LOC", "NCCL_NET_GDR_READ": "0"}
        arms.append(make_arm("gdr_off", dict.fromkeys(looks, off)))
        arms.append(make_arm("ib_disabled", {name: {"NCCL_IB_DISABLE": "1"} for name in looks}))
    shared = find_shared_networks({name: look["addresses"] for name, look in looks.items()})
    if len(shared) > 1:
        for network, interfaces in list(shared.items())[:NETWORKS_AT_MOST]:
            chosen = {name: {"NCCL_SOCKET_IFNAME": "=" + interfaces[name], "NCCL_IB_DISABLE": "1"} for name in looks}
            arms.append(make_arm("network %s" % network, chosen))
    return arms


def find_shared_networks(addresses: dict[str, list[dict[str, str]]]) -> dict[str, dict[str, str]]:
    """Networks that have an address of every host, and the interface of each there.

    A bridge of a host's own (docker0) has the same network, and mostly the same address, on each: it joins no hosts.
    """
    found: dict[str, dict[str, str]] = {}
    hosts = list(addresses)
    for row in addresses[hosts[0]] if hosts else ():
        rows = [next((one for one in addresses[host] if one["network"] == row["network"]), None) for host in hosts]
        there = [one for one in rows if one and not is_own_bridge(one["interface"])]
        if len(there) == len(hosts) and len({one["address"] for one in there}) == len(hosts):
            found[row["network"]] = {host: one["interface"] for host, one in zip(hosts, there)}
    return found


def choose_sizes(looks: Iterable[Facts]) -> list[int]:
    """Bytes. Over a slow link large ones would take minutes: each is sent some two dozen times, the middle one 300."""
    slowest = None
    for look in looks:
        speeds = [port["gigabits_s"] * 1000 for port in look["rdma"] if port["active"] and port["gigabits_s"]]
        if not speeds:
            known = {row["interface"]: look["speeds"].get(row["interface"]) for row in look["addresses"]}
            numbers = {name: speed for name, speed in known.items() if isinstance(speed, (int, float))}
            speeds = [numbers.get(look["way"]["interface"]) or min(numbers.values())] if numbers else []
        if speeds and (slowest is None or min(speeds) < slowest):
            slowest = min(speeds)
    if slowest is not None and slowest < 2500:
        return [SMALL, MIDDLE // 4, LARGE // 4]
    return [SMALL, MIDDLE, LARGE, VERY_LARGE] if slowest is not None and slowest >= 100_000 else [SMALL, MIDDLE, LARGE]


def make_order(
    plan: Facts, host: str, look: Facts, environment: dict[str, str], identifiers: Facts | None, token: str
) -> Facts:
    """What host_ranks.start_detached is to do on `host`. `identifiers`: of the arms, None on rank 0's host."""
    arms = [
        {
            "name": arm["name"],
            "environment": arm["environment"][host],
            "identifier": None if identifiers is None else identifiers.get(arm["name"]),
        }
        for arm in plan["arms"]
    ]
    if identifiers is not None:  # an arm that rank 0 could not begin
        arms = [arm for arm in arms if arm["identifier"]]
    return {
        "host": host,
        "ranks": plan["ranks"][host],
        "addresses": plan["addresses"],
        "library": look["nccl"]["path"],
        "owner": look["nccl"]["owner"],
        "environment": environment,
        "sizes": plan["sizes"],
        "arms": arms,
        "first": identifiers is None,
        "token": token,
    }


def join_results(group: str, host: str, plan: Facts, said: dict[str, Facts]) -> Facts:
    """What a bundle of `host` holds, from what each host of the group said, in the order of their ranks:

    ``{host: {look, started, fetched}}``; `started`: what the step that starts its ranks returned, `fetched` their
    result; each {} where the host did not come so far.
    """
    raw: Facts = {"group": group, "host": host, **{name: plan[name] for name in ("not_run", "problems", "sizes")}}
    first = next(iter(said.values()))["started"]
    raw.update(arms=[arm["name"] for arm in plan["arms"]], hosts=[])
    for number, (name, one) in enumerate(said.items()):
        started, fetched, look = one["started"], one["fetched"], one["look"] or {}
        why = started.get("problem") or fetched.get("why")
        if plan["arms"] and not started.get("directory") and not why:
            why = str(started.get("msg") or "") or ("the host was lost" if started.get("unreachable") else None)
            why = why or (
                "rank 0 did not begin" if number and not first.get("directory") else "its ranks were not started"
            )
        if number and first.get("problem"):
            why = None  # rank 0's own reason is enough
        nccl = look.get("nccl") or {}
        raw["hosts"].append(
            {
                "host": name,
                "ranks": plan["ranks"].get(name) or [],
                "gpus": look.get("gpus") or [],
                "why": why,
                "look": {
                    "nccl": {key: nccl.get(key) for key in ("version", "path")},
                    **{key: look.get(key) or {} for key in ("way", "speeds")},
                    "rdma": look.get("rdma") or [],
                },
                "result": fetched.get("result"),
            }
        )
    return raw


# -- what it means
# ------------------------------------------------------------------------------------------------------------------


def empty_facts(reason: str) -> Facts:
    """The facts of a host on which it was not run, and why."""
    names = ("group", "host", "nccl", "seconds", "verdict", "explanation", "network", "link", "bus_bandwidth_gb_s")
    result: Facts = {"asked": False, "ran": False, "reason": reason, **dict.fromkeys((*names, "share_of_link"))}
    result.update(connected=None, completed=None)
    result.update(hosts=[], rank_count=None, problems=[], missing=[], wrong=[], slow=[], faster_controls=[], arms={})
    return {**result, "rdma_everywhere": False, "gdr": None}


def unread_facts() -> Facts:
    """Of a result that cannot be read, nothing is known."""
    lists = ("problems", "missing", "wrong", "slow", "faster_controls", "rdma_everywhere")
    return {**empty_facts("its result cannot be read"), **dict.fromkeys(lists), "asked": True, "ran": None}


def summarise_between(raw: Facts) -> Facts:
    """`raw`, which playbooks/tasks/between_hosts.yml puts together, as facts.

    ``{asked, ran, reason, group, host, hosts, rank_count, nccl, seconds, problems, verdict, explanation, connected,
    completed, missing, wrong, network, gdr, rdma_everywhere, link, bus_bandwidth_gb_s, share_of_link, slow,
    faster_controls, arms}``.

    - ``problems``: what keeps the hosts from meeting, found before anything was run (versions, routes, no NCCL)
    - ``verdict``: ok | wrong_values | no_connection | hangs | fails | None (not known; not run)
    - ``connected``: every rank came; ``completed``: every rank came to the end of the arm `configured`, whatever its
      values
    - ``missing``: ranks that did not come, each with its host and why
    - ``network``: of this host ``{kind, devices: [names], channels, gdr_channels, disabled}``; ``gdr``: whether every
      channel between hosts goes through GPUDirect RDMA; ``rdma_everywhere``: every host has an active RDMA port
    - ``link``: ``{gb_s, text}``, what the slowest host's links in use carry, gb_s "n/a" where the kernel has no speed
      of one; ``bus_bandwidth_gb_s``: ``{median, min, max, size_bytes}`` of the largest size; ``share_of_link`` of the
      two; ``slow``: a sentence where that is less than `LEAST_SHARE`
    - ``faster_controls``: sentences on arms that are clearly faster than what NCCL chose
    - ``arms``: ``{state, detail, network: kinds, devices, sizes: {bytes: {wrong, bus_bandwidth_gb_s, latency_us}}}``
    """
    facts = {**empty_facts(""), "asked": True, "reason": raw.get("not_run")}
    hosts = [one for one in raw.get("hosts") or () if one]
    facts.update(
        group=raw.get("group"), host=raw.get("host"), problems=[text for text in raw.get("problems") or () if text]
    )
    facts.update(hosts=[one.get("host") for one in hosts], rank_count=sum(len(one.get("ranks") or ()) for one in hosts))
    if raw.get("not_run") or facts["problems"]:
        facts["reason"] = raw.get("not_run") or "; ".join(facts["problems"])
        return facts
    if len(hosts) < 2:
        return unread_facts()
    facts["ran"] = True
    facts["arms"] = {name: _join_arm(name, hosts) for name in raw.get("arms") or ()}
    facts["missing"] = _find_missing(hosts)
    facts["seconds"] = max([(one.get("result") or {}).get("seconds") or 0.0 for one in hosts])
    configured = facts["arms"].get(CONFIGURED)
    if configured is None:
        return unread_facts()
    facts["nccl"] = configured["nccl"]
    facts["wrong"] = configured["wrong"]
    facts["verdict"], facts["explanation"] = _judge(facts, configured, hosts, raw.get("sizes") or ())
    if facts["verdict"] == "not_begun":
        return {**facts, "ran": None, "verdict": None, "reason": facts["explanation"]}
    facts["connected"] = facts["verdict"] != "no_connection"
    facts["completed"] = configured["state"] == "finished" and not facts["missing"]
    _describe_network(facts, hosts)
    _compare_speeds(facts, configured)
    return facts


def _arm_of(one: Facts, name: str) -> Facts:
    return ((one.get("result") or {}).get("arms") or {}).get(name) or {}


def _join_arm(name: str, hosts: Sequence[Facts]) -> Facts:
    """One arm from what every host measured of it."""
    parts = [(one, _arm_of(one, name)) for one in hosts]
    states = [part.get("state") for _one, part in parts]
    details = ["%s: %s" % (one.get("host"), part["detail"]) for one, part in parts if part.get("detail")]
    bad = [state for state in states if state != "finished"]
    kinds = sorted({(part.get("network") or {}).get("kind") or "" for _one, part in parts} - {""})
    devices = {
        str(one.get("host")): [
            device.get("name") for device in (part.get("network") or {}).get("devices") or () if device
        ]
        for one, part in parts
    }
    world = sum(len(one.get("ranks") or ()) for one in hosts)
    sizes, wrong = _join_sizes(parts, world)
    state = next((one for one in ("failed", "hung", "left_behind") if one in bad), None) if bad else "finished"
    return {
        "state": state,
        "detail": "; ".join(details) or None,
        "network": "+".join(kinds) or None,
        "devices": devices,
        "nccl": next((part["nccl"] for _one, part in parts if part.get("nccl")), None),
        "sizes": sizes,
        "wrong": wrong,
    }  # fmt: skip


def _join_sizes(parts: Sequence[tuple[Facts, Facts]], world: int) -> tuple[Facts, list[str]]:
    """(by bytes ``{wrong, ranks, latency_us, bus_bandwidth_gb_s}``, sentences on wrong values). The slowest rank
    counts."""
    sizes: Facts = {}
    wrong = []
    for one, part in parts:
        for message in part.get("sizes") or ():
            size = (message or {}).get("size_bytes")
            if not size:
                continue
            entry = sizes.setdefault(str(size), {"wrong": 0, "ranks": 0, "seconds": []})
            count = message.get("wrong")
            entry["ranks"] += 1
            entry["wrong"] = None if entry["wrong"] is None or count is None else entry["wrong"] + count
            seconds = [value for value in message.get("seconds") or () if value]
            if sum(seconds) > sum(entry["seconds"]):
                entry["seconds"] = seconds
            if count:
                text = "%d bytes: %d wrong elements on rank %s (%s), the first at %s: %s in place of %s"
                got = [message.get(key) for key in ("first_wrong", "got", "wanted")]
                wrong.append(text % (size, count, message.get("rank"), one.get("host"), *got))
    for size, entry in sizes.items():
        seconds = entry.pop("seconds")
        entry.update(bus_bandwidth_gb_s=None, latency_us=None)
        if seconds and world > 1:
            # as nccl-tests reckon the bus bandwidth
            share = 2 * (world - 1) / world * values.number_in_name(size) / 1e9
            entry["bus_bandwidth_gb_s"] = _spread([share / value for value in seconds])
            entry["latency_us"] = _spread([value * 1e6 for value in seconds])
    return sizes, wrong


def _spread(numbers: Sequence[float]) -> Facts:
    digits = 3 if max(numbers) < 10 else 1
    return {
        "median": round(statistics.median(numbers), digits),
        "min": round(min(numbers), digits),
        "max": round(max(numbers), digits),
    }


def _find_missing(hosts: Sequence[Facts]) -> list[str]:
    """Ranks that never came. What rank 0's host waited for is told by those that did not come, not by it."""
    found = []
    for one in hosts:
        why = one.get("why")
        if why or one.get("result") is None:
            found.append("%s (%s): %s" % (_name_ranks(one), one.get("host"), why or "its result did not come back"))
    return found


def _name_ranks(one: Facts) -> str:
    ranks = one.get("ranks") or []
    return (
        "rank %s" % ranks[0] if len(ranks) == 1 else "ranks %s to %s" % (ranks[0], ranks[-1]) if ranks else "its ranks"
    )


def _judge(facts: Facts, arm: Facts, hosts: Sequence[Facts], asked: Sequence[int]) -> tuple[str | None, str | None]:
    """(the verdict, why)."""
    if facts["missing"]:
        return "no_connection", "; ".join(facts["missing"])
    parts = [(one, _arm_of(one, CONFIGURED)) for one in hosts]
    bad = [(one, part) for one, part in parts if part.get("state") != "finished"]
    if bad:
        # The host that says why first: where one rank fails, the others lose their connection to it.
        bad.sort(key=lambda entry: _rank_of_cause(entry[1]))
        told = "; ".join("%s: %s" % (one.get("host"), _explain_end(one, part)) for one, part in bad)
        failures = [part.get("failure") or {} for _one, part in bad]
        if failures[0].get("kind") in NOT_BEGUN:
            return "not_begun", told
        if any(not part.get("ready") for _one, part in bad):
            return "no_connection", told
        hung = any(part.get("state") in ("hung", "left_behind") for _one, part in bad)
        return ("hangs" if hung and not facts["wrong"] else "wrong_values" if facts["wrong"] else "fails"), told
    if facts["wrong"]:
        return "wrong_values", "; ".join(facts["wrong"])
    proven = arm["sizes"] and all(
        arm["sizes"].get(str(size), {}).get("wrong") is not None
        and arm["sizes"][str(size)]["ranks"] == facts["rank_count"]
        for size in asked or (0,)
    )
    return ("ok", None) if proven else (None, "not every rank says of every size whether its values are right")


def _rank_of_cause(part: Facts) -> tuple[bool, bool]:
    failure = part.get("failure") or {}
    return not failure, failure.get("name") == "ncclRemoteError" or failure.get("kind") == "signal"


def _explain_end(one: Facts, part: Facts) -> str:
    stopped = (one.get("result") or {}).get("stopped")
    said = [part.get("detail") or stopped or (one.get("result") or {}).get("problem") or "its ranks did not begin"]
    said += [text for text in (part.get("warnings") or [])[:1] if text]
    return ", ".join(said)


def _describe_network(facts: Facts, hosts: Sequence[Facts]) -> None:
    """The network that NCCL took, and what its links carry."""
    own = next((one for one in hosts if one.get("host") == facts["host"]), hosts[0])
    network = _arm_of(own, CONFIGURED).get("network") or {}
    names = [device.get("name") for device in network.get("devices") or () if device]
    kept = {name: network.get(name) for name in ("kind", "channels", "gdr_channels", "disabled")}
    facts["network"] = {**kept, "devices": names}
    if kept["channels"]:
        facts["gdr"] = None if kept["gdr_channels"] is None else kept["gdr_channels"] == kept["channels"]
    ports = [(one.get("look") or {}).get("rdma") for one in hosts]
    known = [None if rows is None else any((row or {}).get("active") for row in rows) for rows in ports]
    facts["rdma_everywhere"] = False if False in known else None if None in known else True
    facts["link"] = _find_slowest_link(hosts)


def _find_slowest_link(hosts: Sequence[Facts]) -> Facts | None:
    """``{gb_s, text}``: all bytes of a ring go through the links of each host once, so the slowest host is the
    limit."""
    found: list[Facts] = []
    for one in hosts:
        network, look = _arm_of(one, CONFIGURED).get("network") or {}, one.get("look") or {}
        total: Any = 0.0
        texts = []
        for device in network.get("devices") or ():
            name = str((device or {}).get("name"))
            speed = _link_speed(str(network.get("kind")), name, look)
            texts.append("%s %s" % (name, "%g Gbit/s" % speed if isinstance(speed, float) else "of no speed"))
            total = speed if not isinstance(speed, float) else total + speed / 8 if isinstance(total, float) else total
        if not texts or total is None:
            return None
        found.append({"gb_s": total, "text": "%s on %s" % (" and ".join(texts), one.get("host"))})
    numbers = [one for one in found if isinstance(one["gb_s"], float)]
    if len(numbers) < len(found):
        return next(one for one in found if not isinstance(one["gb_s"], float))
    return min(numbers, key=lambda one: one["gb_s"]) if numbers else None


def _link_speed(kind: str, device: str, look: Facts) -> float | str | None:
    """Gbit/s, "n/a" where the kernel has none, None where it is not known."""
    if kind == "Socket":
        speed = (look.get("speeds") or {}).get(device)
        return speed / 1000 if isinstance(speed, (int, float)) else NOT_TOLD if speed == NOT_TOLD else None
    if kind != "IB":
        return NOT_TOLD  # a plugin's devices are not the kernel's
    name, _colon, port = device.partition(":")
    for row in look.get("rdma") or ():
        if row and row.get("device") == name and row.get("port") == values.whole_number(port):
            speed = row.get("gigabits_s")
            return 1.0 * speed if isinstance(speed, (int, float)) else None
    return None


def _compare_speeds(facts: Facts, configured: Facts) -> None:
    """The bandwidth against the links, and the controls against what NCCL chose."""
    measured = {values.number_in_name(size): entry["bus_bandwidth_gb_s"] for size, entry in configured["sizes"].items()}
    if not measured or not facts["completed"]:
        facts.update(slow=None, faster_controls=None)
        return
    size = max(measured)
    figure = measured[size]
    if not figure:
        facts.update(slow=None, faster_controls=None)
        return
    facts["bus_bandwidth_gb_s"] = {**figure, "size_bytes": size}
    link = facts["link"]
    if link is None:
        facts["slow"] = None
    elif isinstance(link["gb_s"], float) and link["gb_s"]:
        facts["share_of_link"] = round(figure["median"] / link["gb_s"], 3)
        if facts["share_of_link"] < LEAST_SHARE:
            text = "%g GB/s (%g to %g) of %d MiB, which is %d %% of %g GB/s: %s"
            share = round(100 * facts["share_of_link"])
            spread = (figure["median"], figure["min"], figure["max"])
            facts["slow"] = [text % (*spread, size >> 20, share, round(link["gb_s"], 3), link["text"])]
    for name, arm in facts["arms"].items():
        other = (arm["sizes"].get(str(size)) or {}).get("bus_bandwidth_gb_s")
        if name == CONFIGURED or arm["state"] != "finished" or arm["wrong"] or not other:
            continue
        if other["median"] > CLEARLY_FASTER * figure["median"] and other["min"] > figure["max"]:
            chosen = "%s over %s" % (configured["network"], _name_devices(configured, facts["host"]))
            ours = "%g GB/s (%g to %g)" % (other["median"], other["min"], other["max"])
            theirs = "%g GB/s (%g to %g)" % (figure["median"], figure["min"], figure["max"])
            taken = "%s over %s" % (arm["network"], _name_devices(arm, facts["host"]))
            facts["faster_controls"].append("%s, %s: %s; as NCCL chose, %s: %s" % (name, taken, ours, chosen, theirs))


def _name_devices(arm: Facts, host: Any) -> str:
    return ", ".join(str(name) for name in arm["devices"].get(str(host)) or ()) or "an unknown device"
