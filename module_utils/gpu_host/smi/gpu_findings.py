"""What stands out among the GPUs, for checks that only ask "is it empty?".

Lists of the ones that are slowed, lost, dirty and so on.

Every list is None (unknown) when no GPU offends but one of them could not be judged, or a GPU is missing from the
output: only a look at every GPU makes an empty list, and none at all makes no list. Lost GPUs stand in ``lost`` alone
and are not judged elsewhere.
"""

from __future__ import annotations

from typing import Any, Callable, Union

from .log_fields import judge_fabric_health
from .smi_values import NOT_APPLICABLE

Facts = dict[str, Any]
# A judge answers None (cannot tell), False (fine, or does not apply) or the details of the offence.
Verdict = Union[dict[str, Any], bool, None]

HARDWARE_REASONS = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
# More memory in use than a driver needs for itself on an idle card; a container does not see the processes of other
# containers.
IDLE_MEMORY_MIB = 1024


def known_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def label_gpu(address: str, index: int | None) -> str:
    """What a person calls the GPU: its index of nvidia-smi, where that is known, and its address."""
    return "GPU at %s" % address if index is None else "GPU %s (%s)" % (index, address)


def list_offenders(
    devices: dict[str, Facts] | None, whole: bool, judge: Callable[[Facts], Verdict]
) -> list[dict[str, Any]] | None:
    """``[{address, index, label, …details}]`` of the GPUs that `judge` objects to; None as the module's text says."""
    if devices is None:
        return None
    found, unsure = [], not whole or all(facts["lost"] for facts in devices.values())
    for where, facts in devices.items():
        if facts["lost"]:
            continue
        verdict = judge(facts)
        if verdict is None:
            unsure = True
        elif verdict is not False:
            named = {"address": where, "index": facts["index"], "label": label_gpu(where, facts["index"])}
            found.append({**named, **(verdict if isinstance(verdict, dict) else {})})
    return found if found or not unsure else None


def find_offenders(devices: dict[str, Facts] | None, whole: bool, every_field: bool = True) -> dict[str, Any]:
    """Every computed list, by name; the same names always. Each entry has ``address``, ``index``, ``label`` and what is
    named here.

    - ``recovery_needed`` (`action`), ``ecc_errors`` (`uncorrectable`, …), ``ecc_change_pending`` (`current`,
      `pending`),
      ``remapping_unfinished`` (`pending`, `failure`), ``slowed`` by hardware (`reasons`, `power_draw_w`,
      `power_limit_w`, and those of `hot`), ``hot`` (`temperature_c`, `limit_c`, `slowdown_c`, `margin_c`,
      `margin_slowdown_c`, `memory_temperature_c`, `memory_limit_c`, `thermal_reasons`)
    - ``mig_enabled``, ``compute_mode_restricted`` (`compute_mode`), ``persistence_off``, ``unlicensed`` (`license`),
      ``fabric_not_ready`` (`state`, `status`, `health`: members of the fabric's health that are not well)
    - ``width_reduced`` (`width`, `width_max`), ``generation_reduced`` under load (`generation`, `generation_max`),
      ``bar1_smaller_than_memory`` (`bar1_mib`, `memory_mib`, `name`, `vbios_version`, and `twin`: ``{label, bar1_mib,
      vbios_version}`` of a card of the same model whose BAR1 covers its memory, None without one)

    GPUs of one model that differ, and GPUs of one fabric that stand in different parts of it: ``vbios_differing``,
    ``bar1_differing``, ``fabric_split``: ``[{of, values: [{value, gpus: [label]}]}]``, `of` the model, or what of the
    fabric differs (clique, cluster).

    Distinct values over all GPUs, None where one is unknown: ``models``, ``memory_sizes_mib``, ``architectures``,
    ``vbios_versions``,
    ``power_limits_w``, ``ecc_modes``, ``addressing_modes``, ``mig_modes``; ``differing``: names of those of the first
    kinds that have several. Whether any GPU shows a value at all: ``recovery_reported``, ``link_reported``,
    ``fabric_present``,
    ``vgpu_present``: False only where every GPU was read, by an output that has the field (`every_field`: the log, not
    the table or a query), and no value was unreadable. The lowest over all:
    ``link_width_lowest``, ``link_generation_max_lowest``. ``loaded``: addresses under load. ``idle``; ``busy``:
    ``[{address, index, reason}]``.
    """
    lists = {name: list_offenders(devices, whole, judge) for name, judge in _JUDGES.items()}
    for entry in lists["bar1_smaller_than_memory"] or ():
        entry["twin"] = _find_twin(devices or {}, entry)
    return {
        **lists,
        **_spread(devices, whole, every_field),
        **_differences(devices, whole, every_field),
        **_use(devices, whole),
    }


def _differences(devices: dict[str, Facts] | None, whole: bool, every_field: bool) -> dict[str, Any]:
    if devices is None:
        return dict.fromkeys(DIFFERENCES)
    alive = {where: facts for where, facts in devices.items() if not facts["lost"]}
    if not alive:
        return dict.fromkeys(DIFFERENCES)
    own = {where: facts for where, facts in alive.items() if not _is_vgpu(facts)}  # a vGPU has neither of its own
    return {
        "vbios_differing": _differing(own, whole, every_field, "vbios_version"),
        "bar1_differing": _differing(own, whole, every_field, "bar1_mib"),
        "fabric_split": _fabric_split(alive, whole, every_field),
    }


def _differing(
    devices: dict[str, Facts], whole: bool, every_field: bool, field: str, group: str | None = None
) -> list[dict[str, Any]] | None:
    """Groups (`group`, else the model) with several values of `field`; None where none was found and a GPU could not be
    read. A field that this driver does not print applies to none."""
    groups: dict[str, dict[Any, list[str]]] = {}
    unsure = not whole
    for where, facts in devices.items():
        name, value = group or facts["name"], facts[field]
        unprinted = value is None and every_field and field not in facts["unreadable"]
        if unprinted or value == NOT_APPLICABLE:
            continue
        if name is None or value is None:
            unsure = True
            continue
        groups.setdefault(str(name), {}).setdefault(value, []).append(label_gpu(where, facts["index"]))
    found = [
        {"of": name, "values": [{"value": value, "gpus": gpus} for value, gpus in sorted(seen.items(), key=str)]}
        for name, seen in sorted(groups.items())
        if len(seen) > 1
    ]
    return found or (None if unsure else [])


def _fabric_split(devices: dict[str, Facts], whole: bool, every_field: bool) -> list[dict[str, Any]] | None:
    """Only a GPU that the fabric has registered (Completed) has ids; an N/A there means that there is no fabric."""
    registered = {where: facts for where, facts in devices.items() if facts["fabric_state"] == "Completed"}
    if not registered:
        return [] if _reported(list(devices.values()), whole, every_field, "fabric_state") is not None else None
    clusters = _differing(registered, whole, every_field, "fabric_cluster_uuid", "cluster")
    cliques = _differing(registered, whole, every_field, "fabric_clique_id", "clique")
    if clusters is None or cliques is None:
        return (clusters or []) + (cliques or []) or None
    return clusters + cliques


def _find_twin(devices: dict[str, Facts], entry: dict[str, Any]) -> dict[str, Any] | None:
    """A card of the same model whose BAR1 covers its memory: the platform can do it."""
    for where, facts in devices.items():
        alike = entry["name"] and facts["name"] == entry["name"] and not facts["lost"]
        if alike and known_number(facts["bar1_mib"]) and _bar1(facts) is False:
            label = label_gpu(where, facts["index"])
            return {"label": label, "bar1_mib": facts["bar1_mib"], "vbios_version": facts["vbios_version"]}
    return None


def _spread(devices: dict[str, Facts] | None, whole: bool, every_field: bool) -> dict[str, Any]:
    """Distinct values over all GPUs (None where unknown for one), and what kind of judgement the driver's output
    allows."""
    alive = [facts for facts in (devices or {}).values() if not facts["lost"]]

    def values(name: str) -> list[Any] | None:
        seen = [facts[name] for facts in alive]
        if not alive or not whole or any(value is None for value in seen):
            return None
        return sorted(set(seen), key=str)

    spread = {
        "models": values("name"),
        "memory_sizes_mib": values("memory_total_mib"),
        "architectures": values("architecture"),
        "vbios_versions": values("vbios_version"),
        "power_limits_w": values("power_limit_w"),
        "ecc_modes": values("ecc"),
        "addressing_modes": values("addressing_mode"),
        "mig_modes": values("mig"),
    }
    compared = {name: spread[name] for name in ("models", "memory_sizes_mib", "power_limits_w", "ecc_modes")}
    differing = [name for name, seen in compared.items() if seen is not None and len(seen) > 1]
    return {
        **spread,
        "differing": differing if differing or None not in compared.values() else None,
        # Drivers before 515 name no recovery action; a guest may see no PCIe link; not every GPU has each feature.
        "recovery_reported": _reported(alive, whole, every_field, "recovery_action", "reset_required"),
        "link_reported": _reported(alive, whole, every_field, "link_width"),
        "vgpu_present": _vgpu_present(alive, whole),
        "fabric_present": _reported(alive, whole, every_field, "fabric_state"),
        "link_width_lowest": _lowest(alive, "link_width", whole),
        "link_generation_max_lowest": _lowest(alive, "link_generation_max", whole),
        "loaded": _loaded(devices, whole),
    }


def _loaded(devices: dict[str, Facts] | None, whole: bool) -> list[str] | None:
    """Addresses of the GPUs under load; None if none is seen to be and one could not be judged."""
    if devices is None:
        return None
    loads = {where: _under_load(facts) for where, facts in devices.items()}
    found = [where for where, load in loads.items() if load]
    return found if found or (whole and loads and None not in loads.values()) else None


def _vgpu_present(alive: list[Facts], whole: bool) -> bool | None:
    if any(_is_vgpu(facts) for facts in alive):
        return True
    known = whole and alive and all(facts["virtualization_mode"] is not None for facts in alive)
    return False if known else None


def _lowest(alive: list[Facts], name: str, whole: bool) -> Any:
    """The lowest over all GPUs; None where it is unknown, or no number, for one of them."""
    seen = [facts[name] for facts in alive]
    return min(seen) if seen and whole and all(known_number(value) for value in seen) else None


def _reported(alive: list[Facts], every_gpu: bool, every_field: bool, *names: str) -> bool | None:
    """Whether a GPU shows a value in one of `names`; False if all say N/A or the driver lacks the field; None if a GPU
    or the field was not read, or if there is an error in the place of the value."""
    seen = [(facts[name], name in facts["unreadable"]) for facts in alive for name in names]
    if any(value not in (None, NOT_APPLICABLE) for value, _unreadable in seen):
        return True
    known = every_gpu and all(value == NOT_APPLICABLE or (every_field and not unreadable) for value, unreadable in seen)
    return False if alive and known else None


def _use(devices: dict[str, Facts] | None, whole: bool) -> dict[str, Any]:
    """``idle``: True only if every GPU is seen to have no process, no load and no memory taken."""
    if not devices:
        return {"idle": None, "busy": None}
    reasons, unsure = [], not whole
    for where, facts in devices.items():
        load, used = facts["utilization_percent"], facts["memory_used_mib"]
        compute = [process for process in facts["processes"] or () if process["type"] != "G"]
        reason = None
        if compute:
            reason = "process %s (%s)" % (compute[0]["pid"], compute[0]["name"] or "no name")
        elif known_number(load) and load > 0:
            reason = "%s %% utilisation" % load
        elif known_number(used) and used > IDLE_MEMORY_MIB:
            reason = "%s MiB of memory in use" % used
        if reason is not None:
            reasons.append({"address": where, "index": facts["index"], "reason": reason})
        elif facts["lost"] or load is None or used is None or facts["processes"] is None:
            unsure = True
    return {
        "busy": reasons if reasons or not unsure else None,
        "idle": False if reasons else (None if unsure else True),
    }


def _recovery(facts: Facts) -> Verdict:
    action, reset = facts["recovery_action"], facts["reset_required"]
    if action not in (None, NOT_APPLICABLE, "None"):
        return {"action": action}
    if reset is True:
        return {"action": "Reset"}
    return None if action is None and reset is None else False


def _ecc_errors(facts: Facts) -> Verdict:
    found = {}
    count: Any = (facts["ecc_volatile"] or {}).get("uncorrectable")
    if known_number(count) and count > 0:
        found["uncorrectable"] = count
    for name in (
        "ecc_sram_threshold_exceeded",
        "ecc_channel_repair_pending",
        "ecc_tpc_repair_pending",
        "ecc_unrepairable_memory",
    ):
        if facts[name] is True:
            found[name[4:]] = True
    if found:
        return found
    if facts["ecc"] in (False, NOT_APPLICABLE):
        return False
    return None if count is None else False


def _ecc_change(facts: Facts) -> Verdict:
    if facts["ecc"] is None or facts["ecc_pending"] is None:
        return None
    return {"current": facts["ecc"], "pending": facts["ecc_pending"]} if facts["ecc"] != facts["ecc_pending"] else False


def _remapping(facts: Facts) -> Verdict:
    rows = facts["remapped_rows"]
    if facts["retired_pages_pending"] is True:
        return {"pending": True, "failure": False, "uncorrectable": None}
    if not isinstance(rows, dict):
        # N/A: a card without row remapping.
        return None if rows is None else False
    if rows["pending"] is True or rows["failure"] is True:
        return {"pending": rows["pending"], "failure": rows["failure"], "uncorrectable": rows["uncorrectable"]}
    return None if rows["pending"] is None or rows["failure"] is None else False


def _slowed(facts: Facts) -> Verdict:
    reasons = facts["clock_event_reasons"]
    if reasons is None:
        return None
    active = [name for name in HARDWARE_REASONS if name in reasons] if isinstance(reasons, list) else []
    return (
        {
            "reasons": active,
            "power_draw_w": facts["power_draw_w"],
            "power_limit_w": facts["power_limit_w"],
            **_temperatures(facts),
        }
        if active
        else False
    )


THERMAL_REASONS = ("sw_thermal_slowdown", "hw_thermal_slowdown")


def _temperatures(facts: Facts) -> dict[str, Any]:
    """The numbers that go with a thermal reason. A card has limits, or (from Ada on) margins to them; `None` and "n/a"
    for the other kind."""
    reasons = facts["clock_event_reasons"]
    return {
        "temperature_c": facts["temperature_c"],
        "limit_c": facts["temperature_max_operating_c"],
        "slowdown_c": facts["temperature_slowdown_c"],
        "margin_c": facts["temperature_margin_c"],
        "margin_slowdown_c": facts["temperature_margin_slowdown_c"],
        "memory_temperature_c": facts["memory_temperature_c"],
        "memory_limit_c": facts["memory_temperature_max_c"],
        "thermal_reasons": [name for name in THERMAL_REASONS if isinstance(reasons, list) and name in reasons],
    }


def _hot(facts: Facts) -> Verdict:
    """At or over the highest operating temperature, or slowed by software for its heat."""
    now, margin = facts["temperature_c"], facts["temperature_margin_c"]
    limit = facts["temperature_max_operating_c"]
    memory, memory_limit = facts["memory_temperature_c"], facts["memory_temperature_max_c"]
    details = _temperatures(facts)
    if known_number(margin) and margin <= 0:
        return details
    if known_number(now) and known_number(limit) and now >= limit:
        return details
    if known_number(memory) and known_number(memory_limit) and memory >= memory_limit:
        return details
    if isinstance(facts["clock_event_reasons"], list) and "sw_thermal_slowdown" in facts["clock_event_reasons"]:
        return details
    return None if now is None else False


def _mig(facts: Facts) -> Verdict:
    return {"pending": facts["mig_pending"]} if facts["mig"] is True else (None if facts["mig"] is None else False)


def _compute_mode(facts: Facts) -> Verdict:
    mode = facts["compute_mode"]
    return None if mode is None else ({"compute_mode": mode} if mode not in ("Default", NOT_APPLICABLE) else False)


def _persistence(facts: Facts) -> Verdict:
    return None if facts["persistence"] is None else facts["persistence"] is False


def _is_vgpu(facts: Facts) -> bool:
    return str(facts["virtualization_mode"]).upper() == "VGPU"


def _width(facts: Facts) -> Verdict:
    now, full = facts["link_width"], facts["link_width_max"]
    if _is_vgpu(facts):
        return False
    if not known_number(now) or not known_number(full) or now <= 0:
        return None
    return {"width": now, "width_max": full} if now < full else False


def _under_load(facts: Facts) -> bool | None:
    """None where the utilisation, or the performance state of a GPU that is used, could not be read."""
    load, state = facts["utilization_percent"], facts["performance_state"]
    if facts["lost"] or (known_number(load) and load == 0) or load == NOT_APPLICABLE:
        return False
    if load is None or state is None:
        return None
    return state in ("P0", "P1", "P2", "P3", "P4")


def _generation(facts: Facts) -> Verdict:
    """Judged under load only: an idle link drops its speed to save power. Host Max of 0 or N/A says nothing."""
    loaded = False if _is_vgpu(facts) else _under_load(facts)
    if not loaded:
        return loaded
    limits = [
        facts[name]
        for name in ("link_generation_max", "link_generation_host_max")
        if known_number(facts[name]) and facts[name] > 0
    ]
    now = facts["link_generation"]
    if not known_number(now) or not known_number(facts["link_generation_max"]):
        return None
    return {"generation": now, "generation_max": min(limits)} if limits and now < min(limits) else False


def _bar1(facts: Facts) -> Verdict:
    bar1, memory = facts["bar1_mib"], facts["memory_total_mib"]
    if _is_vgpu(facts) or NOT_APPLICABLE in (bar1, memory):
        return False
    if not known_number(bar1) or not known_number(memory):
        return None
    if bar1 >= memory:
        return False
    named = {"name": facts["name"], "vbios_version": facts["vbios_version"]}
    return {"bar1_mib": bar1, "memory_mib": memory, **named}


def _license(facts: Facts) -> Verdict:
    if not _is_vgpu(facts):
        return False if facts["virtualization_mode"] is not None else None
    state = facts["vgpu_license"]
    return None if state is None else ({"license": state} if not state.startswith("Licensed") else False)


def _fabric(facts: Facts) -> Verdict:
    """State, status and every member of the health: a GPU may be registered (Completed, Success) and have no route."""
    state, status = facts["fabric_state"], facts["fabric_status"]
    bad, unsure = judge_fabric_health(facts["fabric_health"])
    details = {"state": state, "status": status, "health": bad}
    if bad or state not in ("Completed", NOT_APPLICABLE, None):
        return details
    if state == NOT_APPLICABLE:
        return False
    if state == "Completed" and status not in ("Success", NOT_APPLICABLE, None):
        return details
    return None if state is None or status is None or unsure else False


_JUDGES: dict[str, Callable[[Facts], Verdict]] = {
    "recovery_needed": _recovery,
    "ecc_errors": _ecc_errors,
    "ecc_change_pending": _ecc_change,
    "remapping_unfinished": _remapping,
    "slowed": _slowed,
    "hot": _hot,
    "mig_enabled": _mig,
    "compute_mode_restricted": _compute_mode,
    "persistence_off": _persistence,
    "width_reduced": _width,
    "generation_reduced": _generation,
    "bar1_smaller_than_memory": _bar1,
    "unlicensed": _license,
    "fabric_not_ready": _fabric,
}
LISTS = tuple(_JUDGES)
DIFFERENCES = ("vbios_differing", "bar1_differing", "fabric_split")
