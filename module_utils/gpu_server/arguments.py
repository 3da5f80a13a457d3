"""The arguments of a server against the installed engine's own --help, before anything is stopped.

Unknown and renamed flags, choices.
"""

from __future__ import annotations

import difflib
import re
from typing import Any

from .engines import VLLM, Engine

_OPTION_LINE = re.compile(r"^[ \t│|*]{1,8}(-{1,2}[A-Za-z0-9][^\n]*)$", re.MULTILINE)
_OPTION = re.compile(r"(?<![\w-])(--[A-Za-z0-9][\w.-]*)")
_CHOICES = re.compile(r"\{([^{}\s]+)\}|\[([^\[\]\s|]+(?:\|[^\[\]\s|]+)+)\]")  # argparse: {a,b}; click: [a|b]


def parse_options(text: str) -> dict[str, list[str] | None]:
    """``{"--flag": choices or None}`` of a --help text.

    Only what stands in the column of the options, not what their texts mention.
    """
    found: dict[str, list[str] | None] = {}
    for match in _OPTION_LINE.finditer(text):
        head = re.split(r"\s{3,}| {2}(?=[A-Z][a-z])|│", match[1])[0]
        choices = _CHOICES.search(head)
        for word in _OPTION.findall(head):
            name = word.rstrip(".")
            if found.get(name) is None:
                found[name] = re.split(r"[,|]", choices[1] or choices[2]) if choices else None
    return found


def find_problems(
    arguments: dict[str, Any], options: dict[str, list[str] | None], engine: Engine
) -> list[dict[str, Any]]:
    """``[{argument, problem, successor}]`` of `arguments` (names without dashes).

    Empty where the engine knows all of them.
    """
    found = []
    for name, value in arguments.items():
        flag = "--" + str(name).lstrip("-")
        flag = flag.replace("_", "-") if engine is VLLM else flag  # its parser takes either
        if value is None or value is False:
            continue
        known = _known(flag, options)
        if known is None:
            successor = _successor(flag, options, engine)
            found.append(
                {"argument": flag, "problem": "unknown to the installed %s" % engine.name, "successor": successor}
            )
        elif known != flag:
            found.append(
                {
                    "argument": flag,
                    "problem": "a shortened name, which argparse takes for %s; write it in full" % known,
                    "successor": known,
                }
            )
        else:
            choices = options[flag]
            wrong = [
                str(one)
                for one in (value if isinstance(value, list) else [value])
                if choices and value is not True and str(one) not in choices
            ]
            if wrong:
                text = "%s is not one of its choices (%s)" % (", ".join(wrong), ", ".join(choices or ()))
                found.append({"argument": flag, "problem": text, "successor": None})
    return found


def _known(flag: str, options: dict[str, list[str] | None]) -> str | None:
    """The option that argparse would take `flag` for: itself, or the only one that begins with it."""
    if flag in options:
        return flag
    longer = [name for name in options if name.startswith(flag)]
    return longer[0] if len(longer) == 1 else None


def _successor(flag: str, options: dict[str, list[str] | None], engine: Engine) -> str | None:
    """What the flag is called in this version: from the table where the new name exists here, else the nearest name."""
    new = engine.renamed.get(flag)
    if new is not None and (not new.startswith("--") or all(part.partition("=")[0] in options for part in new.split())):
        return new or None
    near = difflib.get_close_matches(flag, list(options), n=1, cutoff=0.75)
    return near[0] if near else None


def describe_faults(faults: list[dict[str, Any]]) -> str:
    """One line for each fault."""
    lines = []
    for fault in faults:
        hint = "; use %s" % fault["successor"] if fault["successor"] else ""
        lines.append("%s: %s%s" % (fault["argument"], fault["problem"], hint))
    return "\n".join(lines)
