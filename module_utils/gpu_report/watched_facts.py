"""What a report keeps of the server, of the kernel log and of the all-reduce between hosts: what is watched."""

from __future__ import annotations

from typing import Any

from ..gpu_host.evidence import secrets
from ..gpu_host.evidence.values import parse_mapping

Facts = dict[str, Any]
SETTINGS_KEPT = 64
_LONGEST_VALUE = 120
_GENERATION = ("ran", "answered", "sane", "finite", "repeatable", "tokens_per_s", "first_token_s", "tokens")
_BETWEEN = ("asked", "ran", "reason", "group", "verdict", "bus_bandwidth_gb_s")


def digest_server(server: Facts) -> Facts:
    """``{state, engine, version, model, in_container, started_at, settings, differences, generation,
    decode_tokens_per_s}`` of the facts of a server; `settings` by name, at most 64, None where there is no process."""
    process = parse_mapping(server.get("process"))
    settings = process.get("settings")
    differences = server.get("differences")
    decode = parse_mapping(parse_mapping(server.get("log")).get("decode"))
    return {
        **{name: server.get(name) for name in ("state", "engine", "model", "in_container")},
        "version": parse_mapping(server.get("api")).get("version"),
        "started_at": process.get("started_at"),
        "settings": _shorten_settings(settings) if isinstance(settings, dict) else None,
        "differences": len(differences) if isinstance(differences, list) else None,
        "generation": {name: parse_mapping(server.get("generation")).get(name) for name in _GENERATION},
        "decode_tokens_per_s": decode.get("median_tokens_per_s"),
    }


def _shorten_settings(settings: Facts) -> dict[str, str]:
    names = [str(name) for name in sorted(settings) if not secrets.is_secret_name(str(name).encode())]
    return {name: _shorten_value(settings[name]) for name in names[:SETTINGS_KEPT]}


def _shorten_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = " ".join(str(one) for one in value) if isinstance(value, (list, tuple)) else str(value)
    return text[:_LONGEST_VALUE]


def digest_kernel_log(log: Facts) -> Facts:
    """``{covers_boot, xids}``: how often each Xid of this boot that counts was logged, by GPU (address), number and
    severity; None where the log could not be read."""
    by_kind = parse_mapping(log.get("by_kind"))
    kinds = [by_kind.get("xid"), by_kind.get("fallen_off_bus")]
    found = [item for kind in kinds for item in kind or () if isinstance(item, dict) and item.get("xid") is not None]
    xids = [{name: item.get(name) for name in ("address", "xid", "severity", "count")} for item in found]
    return {"covers_boot": log.get("covers_boot"), "xids": None if None in kinds and not xids else xids}


def digest_between_hosts(found: Any) -> Facts | None:
    """What is kept of the all-reduce between the hosts of a group; None where none was asked for."""
    between = parse_mapping(found)
    return {name: between.get(name) for name in _BETWEEN} if between else None


def digest_watched(host: Facts) -> Facts:
    """``{kernel_log, server}`` of `host` as the checks see it; each only where it was looked at."""
    log, server = host.get("kernel_log"), host.get("server")
    return {
        **({"kernel_log": digest_kernel_log(log)} if isinstance(log, dict) else {}),
        **({"server": digest_server(server)} if isinstance(server, dict) else {}),
    }
