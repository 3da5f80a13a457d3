"""The facts of the P2P probe, from what its worker measured (`worker_run.py`) or what a bundle recorded of that.

The GPUs are touched only where nothing else works on them: the idle gate reads nvidia-smi first.
"""

from __future__ import annotations

from typing import Any, Callable

from . import p2p, topology
from .evidence import values
from .evidence.errors import Errors
from .evidence.interface import ABSENT, NOT_CAPTURED, Evidence, Outcome
from .probe import (
    all_reduce,
    between_hosts,
    cuda_results,
    engine_all_reduce,
    host_link_verdict,
    load_verdict,
    pair_verdict,
    path_classes,
    phase_counters,
    phase_results,
    result_shape,
    shared_ports,
)
from .probe.worker_run import APPS_COMMAND, GPUS_COMMAND, PROBE_COMMAND, was_to_run
from .smi.smi_values import is_not_applicable

GATE_SECONDS = 30.0
BUSY_MEMORY_MIB = 1024  # an idle GPU holds less, also with a display server on it
BUSY_UTILIZATION_PERCENT = 5

# Every list that a check tests; each holds names of directed pairs ("source->target") or of GPUs.
LISTS = (
    "not_granted_pairs", "unusable_pairs", "undelivered_pairs", "mirrored_pairs", "staged_pairs", "slow_pairs",
    "high_latency_pairs",
    "hung_pairs", "unmeasured_pairs", "wrong_control_pairs", "one_way_pairs", "corrupt_under_load",
    "collapsed_under_load", "skipped_gpus", "impossible_pairs", "class_outliers", *host_link_verdict.LISTS,
    *phase_counters.LISTS,
)  # fmt: skip


def gather(
    evidence: Evidence,
    params: dict[str, Any],
    errors: Errors,
    restrict: Callable[[str], None] | None = None,
    taken: str | None = None,
) -> dict[str, Any]:
    """The dictionary `p2p_probe` (`host.probe` in checks): the same keys on every host, None for what is not known.

    - ``attempted``: False only where the probe was not to run; ``ran``: None where its result cannot be read;
      ``skipped_reason``, ``complete`` (no pair is unmeasured), ``seconds``, ``stages`` (seconds by stage), ``gate``
      (see `idle_gate`)
    - ``cuda``: ``{initialised, result_code, result_name, function, hung, detail, library, library_error, seconds,
      driver_version, causes}``
    - ``devices``: by PCI address ``{name, cuda_index, compute_capability, compute_mode, multiprocessors, opened:
      {memory_free_mib, buffer_mib, …},
      link: {speed_gt_s, width, max_speed_gt_s, max_width}, error, mig}``; the link is read while the GPU works
    - ``pairs``: by ``"SOURCE->TARGET"`` (PCI addresses; the source writes) ``{claims: {can_access, access_supported,
      atomics, performance_rank},
      driver_status: {read, write}, peer: {enabled, error}, delivered: {copy_engine, sm_store, sm_load},
      control_delivered, bandwidth_gb_s: {copy, copy_alone, both_ways, sm_store, sm_load, control_copy}, latency_us and
      control_latency_us: {copy_12k_back_to_back, copy_12k_synchronised, flag_round_trip}, path, least_gb_s,
      least_basis, verdict, failed_rung, reason, error}``. Control: with peer access off. A delivery is as
      `gpu_probe/deliver.py` gives it, a figure ``{median, min, max, iterations, size_mib | size_bytes, transfers,
      method}``
    - ``loopback``: the same of a GPU with itself; ``many_to_one`` (by target), ``one_to_many`` (by source) and
      ``all_at_once``: ``{bandwidth_gb_s, corrupt_pairs}``
    - ``phases``: by phase ``{budget_s, seconds, left, counters}``: `left` names the pairs and GPUs for which its budget
      did not suffice, ``counters`` is what the links counted meanwhile (`gpu_probe/counters.py`); empty in a result of
      before there were phases. ``phases_measured``: False there; ``unfinished_phases``: a sentence for each phase that
      left something out
    - ``host_links``: by GPU, see `host_link_verdict.judge_host_links`; ``host_links_measured`` (False in older
      results), ``shared_uplinks``: sentences on GPUs that share an uplink to the host; ``host_memory``: by NUMA node
      ``{mib, placed_by, node_found, error}``
    - ``path_classes``: by class of path, see `path_classes.summarise_classes`; ``compared_pairs``: how many have enough
      others of their class; ``ports_of_bad_pairs``: switches and root ports that only slow pairs cross
    - ``all_usable``, ``all_delivered``, ``all_fast``: False if one pair fails, None while one is not measured
    - ``verdicts``: ``{pairs, ok, …}`` counts; ``lowest_bandwidth_gb_s``; ``events``: stages that hung or broke
      (`probe_run._Child`)
    - lists that a check asks to be empty (`LISTS`), each of directed pairs ("source->target"), of GPUs or of sentences,
      None where nothing is known to be in it and something could not be read:
      ``not_granted_pairs``,
      ``unusable_pairs``, ``undelivered_pairs``, ``mirrored_pairs``, ``staged_pairs``, ``slow_pairs``,
      ``high_latency_pairs``, ``hung_pairs``,
      ``unmeasured_pairs``, ``wrong_control_pairs``, ``one_way_pairs``, ``corrupt_under_load``,
      ``collapsed_under_load``, ``skipped_gpus``, ``impossible_pairs`` (faster than PCI Express can be),
      ``class_outliers`` (far slower than the others of their path class), ``slow_host_links``,
      ``trained_down_host_links``, ``misplaced_gpus`` (faster with memory of another NUMA node than of their own),
      ``collapsed_host_links``, ``link_errors_in_phases``, ``throttled_in_phases``, ``kernel_lines_in_phases``; and
      ``explanations``: by list, a sentence with figures for each entry
    - ``collective``: see `all_reduce.summarise_all_reduce`; ``engine_all_reduce``: see
      `engine_all_reduce.summarise_engine`; ``between_hosts``: see `between_hosts.summarise_between`; ``common`` (added
      where the checks run): see `bad_pairs.find_common_ground`

    `restrict` makes a live probe leave the GPUs alone (cuInit and the driver's claims only); a recorded one has none.
    `taken`: why it has to, whatever nvidia-smi shows (`one_at_a_time.take_turn`).
    """
    result = _empty()
    gate = check_idle(evidence, errors)
    result["gate"] = gate
    forced = params.get("when_busy") == "force"
    if restrict and (gate["reason"] or taken) and not forced:
        restrict(taken or "")
    if gate["busy"] is None and gate["reason"]:
        errors.add("nvidia-smi", gate["reason"])
    answer = evidence.run(PROBE_COMMAND)
    if answer.status == NOT_CAPTURED and not was_to_run(evidence):
        result["skipped_reason"] = gate["reason"] or "this bundle holds no probe"
        return result
    result["attempted"] = True
    problems: list[tuple[tuple[str, ...], str]] = []
    raw = decode_result(answer, result_shape.PROBE, problems, errors)
    if raw is None:
        result.update(_unread(), skipped_reason="the probe's result cannot be read")
    else:
        fill_result(raw, result, gather_context(evidence), problems)
        for name in ("unmeasured_pairs", "hung_pairs"):
            for sentence in result["explanations"][name][:4]:
                errors.add("p2p_probe", sentence)
        for sentence in result["unfinished_phases"] or ():
            errors.add("p2p_probe", sentence)
        pathless = [name for name, pair in result["pairs"].items() if pair["path"] is None]
        if pathless and result["ran"]:
            errors.add("nvidia-smi topo -m", "does not show the path of %d directed pairs" % len(pathless))
    result["collective"] = _collective(evidence, params, result, errors)
    # A bundle is read for what it holds: the probe's options say that it was asked for.
    asked = bool(params.get("engine_all_reduce") or ((raw or {}).get("options") or {}).get("engine_all_reduce"))
    result["engine_all_reduce"] = _engine_all_reduce(evidence, None if raw is None else asked, result, errors)
    if params.get("between_hosts") or _is_recorded_between(evidence, raw, restrict is not None):
        result["between_hosts"] = gather_between_hosts(evidence, errors)
    return result


def _is_recorded_between(evidence: Evidence, raw: dict[str, Any] | None, live: bool) -> bool:
    """Whether a recorded host was measured together with others: its bundle holds the result, or the probe's options
    say so and it was lost."""
    if ((raw or {}).get("options") or {}).get("between_hosts"):
        return True
    return not live and evidence.run(between_hosts.BETWEEN_COMMAND).status not in (NOT_CAPTURED, ABSENT)


def gather_between_hosts(evidence: Evidence, errors: Errors) -> dict[str, Any]:
    """The all-reduce over several hosts, where it was asked for (see `between_hosts.summarise_between`)."""
    answer = evidence.run(between_hosts.BETWEEN_COMMAND)
    problems: list[tuple[tuple[str, ...], str]] = []
    raw = decode_result(answer, result_shape.BETWEEN_HOSTS, problems, errors)
    found = between_hosts.unread_facts() if raw is None else between_hosts.summarise_between(raw)
    if problems and found["verdict"] in ("ok", None):
        found = between_hosts.unread_facts()
    elif found["ran"] is None or (found["ran"] and found["verdict"] is None):
        why = found["reason"] or found["explanation"] or "does not say whether its values are right"
        errors.add(answer.argv[0], why)
    return found


def _unread() -> dict[str, Any]:
    """What is known of a probe whose result cannot be read: nothing."""
    names = ("ran", "cuda", "devices", "pairs", "loopback", "many_to_one", "one_to_many", "events")
    return dict.fromkeys((*LISTS, *names, *_OF_PHASES))


_OF_PHASES = ("phases", "phases_measured", "unfinished_phases", "host_links", "host_links_measured", "shared_uplinks")


def _why_no_all_reduce(result: dict[str, Any]) -> str | None:
    """Not on GPUs that work, nor after a hang that may still hold a GPU."""
    if result["ran"] is False:
        return str(result["skipped_reason"])
    if result["ran"] and len(result["devices"] or ()) < 2:
        return "one GPU"
    if result["hung_pairs"] or any((event or {}).get("kind") == "left_behind" for event in result["events"] or ()):
        return "not tried after a hang"
    return None


def _engine_all_reduce(
    evidence: Evidence, asked: bool | None, result: dict[str, Any], errors: Errors
) -> dict[str, Any]:
    """The engine's own all-reduce; after NCCL's, whose hang would be taken for its. `asked` None: not known."""
    if asked is None:
        unknown = "whether it was asked for is not known: the probe's result cannot be read"
        return {**engine_all_reduce.summarise_engine(None, unknown), "ran": None}
    reason = _why_no_all_reduce(result) if asked else engine_all_reduce.HINT
    arms = (result["collective"] or {}).get("arms") or {}
    if not reason and any((arm or {}).get("state") == "left_behind" for arm in arms.values()):
        reason = "not tried after a hang"
    if reason:
        return engine_all_reduce.summarise_engine(None, reason)
    answer = evidence.run(engine_all_reduce.ENGINE_COMMAND)
    problems: list[tuple[tuple[str, ...], str]] = []
    raw = decode_result(answer, result_shape.ENGINE_ALL_REDUCE, problems, errors)
    if raw is None or not (raw.get("runs") or raw.get("reason")):
        return {**engine_all_reduce.summarise_engine(None, "its result cannot be read"), "ran": None}
    if not raw.get("runs"):
        return engine_all_reduce.summarise_engine(None, raw["reason"])
    found = engine_all_reduce.summarise_engine(raw, None)
    if problems and found["verdict"] in ("ok", "not_used"):
        found.update(verdict=None, needed=None)
    if found["ran"] is None or found["verdict"] is None:
        errors.add("p2p_engine_all_reduce", found["reason"] or "does not say whether its values are right")
    return found


def _collective(evidence: Evidence, params: dict[str, Any], result: dict[str, Any], errors: Errors) -> dict[str, Any]:
    """The all-reduce by NCCL, once the pairs are known."""
    reason = "not asked for" if params.get("collective") == "false" else _why_no_all_reduce(result)
    if reason:
        return all_reduce.summarise_all_reduce(None, reason)
    answer = evidence.run(all_reduce.COLLECTIVE_COMMAND)
    problems: list[tuple[tuple[str, ...], str]] = []
    raw = decode_result(answer, result_shape.COLLECTIVE, problems, errors)
    if raw is None:
        return {**all_reduce.summarise_all_reduce(None, "its result cannot be read"), "ran": None}
    if not raw.get("arms"):
        reason = raw.get("reason")
        return {
            **all_reduce.summarise_all_reduce(None, reason or "its result cannot be read"),
            "ran": False if reason else None,
        }
    found = all_reduce.summarise_all_reduce(raw, None)
    if found["ran"] is None:
        errors.add("p2p_collective", "the all-reduce could not begin: %s" % found["reason"])
    if problems and found["verdict"] == "ok":
        found["verdict"] = None
    if found["ran"] and found["verdict"] is None:
        errors.add("p2p_collective", "does not say of every size whether its values are right")
    if found["ran"] and found["pairs_without_p2p"] is None:
        errors.add("p2p_collective", "names no transport of NCCL")
    return found


def _empty() -> dict[str, Any]:
    names = (
        "skipped_reason",
        "gate",
        "cuda",
        "all_at_once",
        "collective",
        "engine_all_reduce",
        "seconds",
        "verdicts",
        "lowest_bandwidth_gb_s",
    )
    result: dict[str, Any] = dict.fromkeys((*names, "all_usable", "all_delivered", "all_fast", "complete"))
    result.update(attempted=False, ran=False, devices={}, pairs={}, loopback={}, many_to_one={}, events=[], stages={})
    result.update(one_to_many={}, phases={}, phases_measured=False, unfinished_phases=[], counter_sources={})
    result.update(host_links={}, host_links_measured=False, host_memory={}, shared_uplinks=[])
    result.update(path_classes={}, compared_pairs=0, ports_of_bad_pairs=[])
    result.update((name, []) for name in LISTS)
    result["explanations"] = {name: [] for name in LISTS}
    result["between_hosts"] = between_hosts.empty_facts(between_hosts.HINT)
    return result


def make_unasked(reason: str) -> dict[str, Any]:
    """The facts of a host whose probe was not to run, and why."""
    return {**_empty(), "skipped_reason": reason, "errors": [], "unread": []}


def check_idle(evidence: Evidence, errors: Errors) -> dict[str, Any]:
    """Whether anything works on the GPUs: ``{busy, reason, processes, gpus}``.

    Busy None where nvidia-smi does not say.
    """
    for argv in (APPS_COMMAND, GPUS_COMMAND):
        evidence.start(argv, GATE_SECONDS)
    apps, gpus = evidence.run(APPS_COMMAND, GATE_SECONDS), evidence.run(GPUS_COMMAND, GATE_SECONDS)
    gate: dict[str, Any] = {"busy": None, "reason": None, "processes": [], "gpus": []}
    for answer in (apps, gpus):
        if not answer.succeeded:
            errors.unanswered(answer)
            said = (answer.text or answer.error_text).strip().splitlines()
            gate["reason"] = "nothing says whether the GPUs are idle: nvidia-smi %s" % (
                answer.reason or answer.status
                if not answer.ok
                else "exit status %s%s" % (answer.rc, ": " + said[0] if said else "")
            )
            return gate
    for line in apps.text.splitlines():
        cells = [cell.strip() for cell in line.rsplit(",", 1)]
        if len(cells) == 2 and "," in cells[0]:
            pid, name = cells[0].split(",", 1)
            gate["processes"].append(
                {
                    "pid": errors.read_whole(" ".join(APPS_COMMAND), "the number of a process", pid),
                    "name": name.strip(),
                    "memory_mib": cuda_results.parse_number(cells[1]),
                }
            )
    for line in gpus.text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 4:
            gate["gpus"].append({
                "pci_address": cuda_results.normalise_address(cells[0]),
                "memory_used_mib": cuda_results.parse_number(cells[1]),
                "utilization_percent": 0.0 if is_not_applicable(cells[2]) else cuda_results.parse_number(cells[2]),
                "mig": {"Enabled": True, "Disabled": False}.get(cells[3]),
            })  # fmt: skip
    if not gate["gpus"]:
        gate["reason"] = "nothing says whether the GPUs are idle: nvidia-smi shows no GPU"
        return gate
    gate["reason"] = _why_busy(gate)
    gate["busy"] = gate["reason"] is not None
    unknown = [
        gpu["pci_address"] for gpu in gate["gpus"] if None in (gpu["memory_used_mib"], gpu["utilization_percent"])
    ]
    if unknown and not gate["busy"]:
        row = next(told for told in gpus.text.splitlines() if unknown[0][4:] in told.lower())
        gate.update(
            busy=None,
            reason="nothing says whether the GPUs are idle: GPU %s shows no number: %s"
            % (unknown[0], values.format_value(row)),
        )
    return gate


def _why_busy(gate: dict[str, Any]) -> str | None:
    if gate["processes"]:
        first = gate["processes"][0]
        more = " and %d more" % (len(gate["processes"]) - 1) if len(gate["processes"]) > 1 else ""
        return "the GPUs are in use by %s (pid %s)%s" % (first["name"], first["pid"], more)
    for gpu in gate["gpus"]:
        if (gpu["memory_used_mib"] or 0) > BUSY_MEMORY_MIB:  # a container does not see the processes of others
            return "GPU %s has %d MiB in use" % (gpu["pci_address"], gpu["memory_used_mib"])
        if (gpu["utilization_percent"] or 0) > BUSY_UTILIZATION_PERCENT:
            return "GPU %s is %d %% busy" % (gpu["pci_address"], gpu["utilization_percent"])
    return None


def decode_result(
    answer: Outcome, shape: Any, problems: list[tuple[tuple[str, ...], str]], errors: Errors
) -> dict[str, Any] | None:
    """The result in `answer`, everything in it of the kind that `shape` says; None where there is none."""
    name = answer.argv[0]
    if not answer.succeeded:
        errors.unsuccessful(answer)
        return None
    try:
        raw = values.json_value(answer.text)
    except ValueError as error:
        errors.add(name, "its result is not JSON: %s" % error)
        return None
    if not isinstance(raw, dict):
        errors.add(name, "its result is not a JSON object")
        return None
    found: dict[str, Any] = result_shape.conform_result(raw, shape, problems)
    for sentence in result_shape.describe_oddities(problems):
        errors.add(name, "its result has another shape than this version writes: %s" % sentence)
    return found


def _in_guest(evidence: Evidence) -> bool | None:
    """x86's CPU flag `hypervisor`; None on other machines, where the flags have other names."""
    text = evidence.read("/proc/cpuinfo").text
    flags = next((line for line in text.splitlines() if line.startswith("flags")), None)
    return None if flags is None else "hypervisor" in flags.split()


def fill_result(
    raw: dict[str, Any],
    result: dict[str, Any],
    context: dict[str, Any],
    problems: list[tuple[tuple[str, ...], str]] | None = None,
) -> dict[str, Any]:
    """Fill `result` from a raw result: what was measured, the verdicts and the lists. `problems`: values in it that
    were of another kind (`result_shape.conform`); what they could have changed is unknown."""
    damaged: dict[str, list[str]] = {}
    for place, what in problems or ():
        damaged.setdefault(place[0], []).append(".".join(place[1:] or place) + " " + what)
    for name in ("devices", "pairs", "loopback", "many_to_one", "one_to_many", "phases", "host_memory"):
        result[name] = {key: entry or {} for key, entry in (raw.get(name) or {}).items()}
    result["events"] = [
        {"stage": "", "kind": "", "seconds": None, "detail": None, **event}
        for event in raw.get("events") or ()
        if event
    ]
    result["stages"], result["counter_sources"] = raw.get("stages") or {}, raw.get("counter_sources") or {}
    whole = [address for address, device in result["devices"].items() if not device.get("mig")]
    for name in ("%s->%s" % (one, other) for one in whole for other in whole if one != other):
        result["pairs"].setdefault(name, {})
    result["all_at_once"], result["seconds"] = raw.get("all_at_once"), raw.get("seconds")
    result["cuda"] = _cuda(raw)
    restricted = bool((raw.get("options") or {}).get("only_initialise"))
    measured = any(pair.get("peer") or pair.get("error") for pair in result["pairs"].values()) or bool(
        result["loopback"]
    )
    result["ran"] = measured and not restricted
    unread = {"pairs", "loopback", "devices", "cuda", "events"} & set(damaged) or not (
        raw.get("cuda") or result["events"]
    )
    if unread and not measured and not restricted:
        result["ran"] = None
    if restricted:
        left_alone = (raw.get("options") or {}).get("left_alone")
        result["skipped_reason"] = left_alone or (result["gate"] or {}).get("reason")
    elif not result["ran"]:
        result["skipped_reason"] = _why_not(result)
    result["skipped_gpus"] = sorted(
        "%s: %s"
        % (
            address,
            "MIG is on"
            if device.get("mig")
            else (device.get("error") or {}).get("name") or (device.get("error") or {}).get("kind"),
        )
        for address, device in result["devices"].items()
        if device.get("error") or device.get("mig")
    )
    paths, links = context["topology"].get("links") or {}, context["topology"].get("nvlink") or {}
    granted = {name: context["p2p"].get(name) or {} for name in ("read", "write")}
    for name, pair in result["pairs"].items():
        source, _, target = name.partition("->")
        pair["source"], pair["target"] = source, target
        pair["path"] = paths.get(source, {}).get(target)
        places = [(result["devices"].get(end) or {}).get("place") for end in (source, target)]
        pair["path_class"] = path_classes.classify_path(pair["path"], *places)
        pair["driver_status"] = {way: statuses.get(source, {}).get(target) for way, statuses in granted.items()}
        ends = (result["devices"].get(source) or {}, result["devices"].get(target) or {})
        least = pair_verdict.expect_bandwidth(
            pair["path"], ends, (links.get(source) or {}).get("speed_gb_s"), context["in_guest"]
        )
        pair["least_gb_s"], pair["least_basis"] = least["gb_s"], least["basis"]
        pair["most_gb_s"] = least["most_gb_s"]
        pair.update(pair_verdict.judge_pair(pair, least))
        odd = next((what for what in damaged.get("pairs", ()) if what.startswith(name)), None)
        if odd and pair["verdict"] == "ok":
            pair.update(verdict="unknown", failed_rung=None, reason="not read: %s" % odd[len(name) + 1 :])
        if pair["verdict"] == "unknown":
            pair["reason"] = next(
                (gpu for gpu in result["skipped_gpus"] if gpu.partition(": ")[0] in (source, target)), pair["reason"]
            )
        left = phase_results.find_phase_without_time(result["phases"], name)
        if left and pair["verdict"] in ("ok", "unknown"):
            pair.update(verdict="unknown", failed_rung=None, reason=left)
    _lists(result, restricted, context["in_guest"])
    phase_results.judge_phases(raw, result, restricted, damaged)
    _judge_load(result)
    for part, names in _LISTS_OF.items():
        for name in names:
            if part in damaged and not result[name]:
                result[name] = None
    return result


# Which lists a part of the result that cannot be read could have filled; pairs are unmeasured one by one.
_LISTS_OF = {
    "devices": ("skipped_gpus",),
    "many_to_one": ("corrupt_under_load", "collapsed_under_load"),
    "all_at_once": ("corrupt_under_load", "collapsed_under_load"),
    "one_to_many": ("corrupt_under_load", "collapsed_under_load"),
    "events": ("corrupt_under_load", "collapsed_under_load"),
    "host_links": host_link_verdict.LISTS,
    "phases": phase_counters.LISTS,
}


def _why_not(result: dict[str, Any]) -> str:
    cuda = result["cuda"] or {}
    if not cuda.get("initialised"):
        return "CUDA does not initialise"
    if not result["devices"]:
        return "CUDA shows no GPU"
    failed = next((event for event in result["events"]), None)
    if failed:
        return "stopped in the stage '%s': %s" % (failed["stage"], failed["kind"])
    return "no GPU could be used"


def _cuda(raw: dict[str, Any]) -> dict[str, Any]:
    """Whether CUDA initialises, and why not.

    ``{initialised, result_code, result_name, hung, library, library_error, seconds, driver_version, causes, detail}``.
    """
    found = raw.get("cuda") or {}
    events = [event for event in raw.get("events") or () if event]
    event = next((one for one in events if one.get("stage") in ("start", "load libcuda.so.1", "cuInit")), None)
    error = found.get("error") or {}
    cuda = {name: found.get(name) for name in ("initialised", "library", "library_error", "seconds", "driver_version")}
    cuda.update(
        result_code=error.get("code"),
        result_name=error.get("name"),
        function=error.get("function"),
        hung=False,
        detail=None,
    )
    cuda["causes"] = cuda_results.explain_code(error.get("code"))
    if found.get("library_error"):
        cuda["causes"] = list(cuda_results.MISSING_LIBRARY_CAUSES)
    if found.get("initialised") and not error:
        cuda.update(result_code=0, result_name="CUDA_SUCCESS")
    if event is not None:
        hung, seconds = event.get("kind") in ("hung", "left_behind", "out_of_time"), event.get("seconds")
        cuda.update(initialised=False, hung=hung, detail=event.get("detail"), seconds=seconds)
        cuda["result_name"] = "no answer within %g s" % (seconds or 0.0) if hung else event.get("detail")
        cuda["causes"] = list(cuda_results.HANG_CAUSES) if hung else []
    return cuda


def gather_context(evidence: Evidence) -> dict[str, Any]:
    """What else the verdicts need, by the readers of their subjects: ``{topology, p2p, in_guest}``. Their errors are
    told by gpu_facts."""
    for reader in (topology, p2p):
        for argv, limit in reader.COMMANDS:
            evidence.start(argv, limit)
    return {
        "topology": topology.gather(evidence, Errors("topology")),
        "p2p": p2p.gather(evidence, Errors("p2p")),
        "in_guest": _in_guest(evidence),
    }


def _lists(result: dict[str, Any], restricted: bool, in_guest: bool | None) -> None:
    named = {
        "not_granted": "not_granted_pairs",
        "not_usable": "unusable_pairs",
        "not_delivered": "undelivered_pairs",
        "staged": "staged_pairs",
        "slow": "slow_pairs",
        "hung": "hung_pairs",
        "error": "unmeasured_pairs",
        "unknown": "unmeasured_pairs",
    }
    pairs = result["pairs"]
    for name, pair in sorted(pairs.items()):
        where = named.get(pair["verdict"])
        if where and not (restricted and where == "unmeasured_pairs"):
            result[where].append(name)
            result["explanations"][where].append("%s: %s" % (name, pair["reason"]))
        rate = pair_verdict.find_median(pair.get("bandwidth_gb_s"), "copy_alone", "copy")
        impossible = pair_verdict.name_impossible(rate, pair.pop("most_gb_s", None))
        if impossible:
            result["impossible_pairs"].append(name)
            result["explanations"]["impossible_pairs"].append("%s: %s" % (name, impossible))
        if any((found or {}).get("writer_sees_it") for found in (pair.get("delivered") or {}).values()):
            result["mirrored_pairs"].append(name)
        if (pair.get("control_delivered") or {}).get("status") in ("corrupt", "error"):
            result["wrong_control_pairs"].append(name)
        latency = pair_verdict.find_median(pair.get("latency_us"), "copy_12k_back_to_back")
        if pair["verdict"] in ("ok", "slow") and latency is not None and latency > pair_verdict.HIGH_LATENCY_US:
            result["high_latency_pairs"].append("%s (%.3g us)" % (name, latency))
        back = pairs.get("%s->%s" % (pair["target"], pair["source"]))
        if back and pair["verdict"] != "ok" and back.get("verdict", "ok") == "ok":
            result["one_way_pairs"].append(name)
    counts: dict[str, int] = {}
    for pair in pairs.values():
        counts[pair["verdict"]] = counts.get(pair["verdict"], 0) + 1
    result["verdicts"] = {"pairs": len(pairs), **counts}
    rates = [pair_verdict.find_median(pair.get("bandwidth_gb_s"), "copy_alone", "copy") for pair in pairs.values()]
    result["lowest_bandwidth_gb_s"] = min((rate for rate in rates if rate is not None), default=None)
    left = result["unmeasured_pairs"] or restricted or not pairs
    result["complete"] = not left
    result["all_usable"] = _all(result["not_granted_pairs"] + result["unusable_pairs"], left)
    result["all_delivered"] = _all(
        result["undelivered_pairs"] + result["hung_pairs"] + result["wrong_control_pairs"], left
    )
    # Without its path nothing says how fast a pair should be: NVLink would pass at the speed of PCI Express.
    pathless = [name for name, pair in pairs.items() if pair["path"] is None]
    result["all_fast"] = _all(result["staged_pairs"] + result["slow_pairs"], left or result["hung_pairs"] or pathless)
    classes = path_classes.summarise_classes(pairs, in_guest)
    result["path_classes"], result["compared_pairs"] = classes["classes"], classes["compared"]
    result["class_outliers"] = classes["outliers"]
    result["explanations"]["class_outliers"] = classes["explanations"]
    bad = {*result["slow_pairs"], *result["staged_pairs"], *result["class_outliers"]}
    result["ports_of_bad_pairs"] = shared_ports.find_ports_of_pairs(
        bad, pairs, shared_ports.read_paths(result["devices"])
    )
    for key in ("high_latency_pairs", "impossible_pairs", "class_outliers"):
        if result["unmeasured_pairs"] and not result[key]:
            result[key] = None


def _judge_load(result: dict[str, Any]) -> None:
    """After the host's links, which say which of two switches it is."""
    load_verdict.judge_load(result)
    late = (result["phases"].get("under_load") or {}).get("left")
    if result["pairs"] and result["all_usable"] and (result["all_at_once"] is None or late):
        for name in ("corrupt_under_load", "collapsed_under_load"):
            result[name] = result[name] or None


def _all(failing: list[str], left: Any) -> bool | None:
    return False if failing else None if left else True
