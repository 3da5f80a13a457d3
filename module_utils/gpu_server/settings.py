"""The settings of the process against those that the inventory means: a difference is a restart that is pending, or
never happened."""

from __future__ import annotations

from typing import Any

from ..gpu_host.evidence import secrets
from .engines import Engine, full_name, names_of_setting


def differences(
    expected: dict[str, Any], live: dict[str, Any], environment: dict[str, str] | None, engine: Engine | None = None
) -> list[dict[str, Any]] | None:
    """``[{name, expected, live}]`` of `expected.arguments` and `expected.environment`; `live` None where the process
    has no such setting.

    None where the environment is expected but cannot be read, so that the answer is not known. Secrets are never
    compared.
    """
    found = []
    for name, value in (expected.get("arguments") or {}).items():
        flag = str(name).lstrip("-").replace("_", "-")
        if secrets.is_secret_name(flag.encode()):
            continue
        names = names_of_setting(full_name(engine, flag) if engine else flag)
        have = next((live[one] for one in names if one in live), None)
        want = _words(value)
        if want != _words(have):
            found.append({"name": "--" + flag, "expected": _shown(want), "live": _shown(_words(have))})
    wanted = {str(name): str(value) for name, value in (expected.get("environment") or {}).items()}
    visible = {
        name: value
        for name, value in wanted.items()
        if secrets.redact_environment(("%s=%s" % (name, value)).encode()) != b""
    }
    if visible and environment is None:
        return found or None
    for name, value in visible.items():
        if (environment or {}).get(name) != value:
            found.append({"name": name, "expected": value, "live": (environment or {}).get(name)})
    return found


def _words(value: Any) -> list[str] | None:
    """What a value is on a command line: None for a flag that is absent, [] for a bare one."""
    if value is None or value is False:
        return None
    if value is True:
        return []
    if isinstance(value, (list, tuple)):
        return [str(one) for one in value]
    return [str(value)]


def _shown(words: list[str] | None) -> str | None:
    return None if words is None else " ".join(words) or "set"
