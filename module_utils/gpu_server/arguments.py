"""The arguments of a server against the installed engine's own --help, before anything is stopped.

Unknown and renamed flags, choices.
"""

from __future__ import annotations

import difflib
import re
from typing import Any

from .engines import Engine

_OPTION_LINE = re.compile(r"^[ \t│|*]{0,8}(-{1,2}[A-Za-z0-9][^\n]*)$", re.MULTILINE)
_OPTION = re.compile(r"(?<![\w-])(--[A-Za-z0-9][\w.-]*)")
_CHOICES = re.compile(r"\{([^{}\s]+)\}|\[([^\[\]\s|]+(?:\|[^\[\]\s|]+)+)\]")  # argparse: {a,b}; click: [a|b]


def parse_options(text: str) -> dict[str, list[str] | None]:
    """``{"--flag": choices or None}`` of a --help text.

    Only what stands in the column of the options, not what their texts mention.
    """
    found: dict[str, list[str] | None] = {}
    for match in _OPTION_LINE.finditer(text):
        names = re.sub(r",\s+(?=-)", ", ", match[1])  # llama.cpp sets the long name apart: "-c,    --ctx-size N"
        head = re.split(r"\s{3,}| {2}(?=[A-Z][a-z])|│", names)[0]
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

    Empty where the engine takes all of them.
    """
    found = []
    for flag, value in _given(arguments, engine):
        meant = _meant(flag, options, engine)
        if not meant:
            found.append(
                {
                    "argument": flag,
                    "problem": "unknown to the installed %s" % engine.name,
                    "successor": _successor(flag, options, engine),
                }
            )
        elif len(meant) > 1:
            several = "the beginning of several names (%s), so the engine refuses it" % ", ".join(meant)
            found.append({"argument": flag, "problem": several, "successor": None})
        else:
            # Of --name.member the choices are the member's, which --help does not list.
            choices = options[meant[0]] if meant[0].startswith(flag) else None
            wrong = [
                str(one)
                for one in (value if isinstance(value, list) else [value])
                if choices and value is not True and str(one) not in choices
            ]
            if wrong:
                text = "%s is not one of its choices (%s)" % (", ".join(wrong), ", ".join(choices or ()))
                found.append({"argument": flag, "problem": text, "successor": None})
    return found


def find_shortened(arguments: dict[str, Any], options: dict[str, list[str] | None], engine: Engine) -> dict[str, str]:
    """``{"--tp": "--tp-size"}``: the arguments whose name is the beginning of one that the engine has."""
    found = {}
    for flag, _value in _given(arguments, engine):
        meant = _meant(flag, options, engine)
        if len(meant) == 1 and meant[0] != flag and meant[0].startswith(flag):
            found[flag] = meant[0]
    return found


def _given(arguments: dict[str, Any], engine: Engine) -> list[tuple[str, Any]]:
    """The flags that will stand on the command line, as the engine's parser reads them, and their values."""
    found = []
    for name, value in arguments.items():
        if value is None or value is False:
            continue
        flag = "--" + str(name).lstrip("-")
        if engine.underscores:  # in the name; a member after a dot keeps its spelling
            own, dot, member = flag.partition(".")
            flag = own.replace("_", "-") + dot + member
        found.append((flag, value))
    return found


def _meant(flag: str, options: dict[str, list[str] | None], engine: Engine) -> list[str]:
    """The options that the engine's parser may take `flag` for; it takes it where there is exactly one.

    argparse takes a name that stands in its list, else the beginning of exactly one name. Two names of one option are
    two to it (_get_option_tuples, the same in Python 3.9 to 3.14).
    """
    if flag in options:
        return [flag]
    if engine.dotted and "." in flag:
        flag = flag.partition(".")[0]
        if flag in options:
            return [flag]
    if not engine.abbreviates or len(flag) < 3:
        return []
    return [name for name in options if name.startswith(flag)]


def _successor(flag: str, options: dict[str, list[str] | None], engine: Engine) -> str | None:
    """What the flag is called in this version: from the table where the new name exists here, else the nearest name."""
    new = engine.renamed.get(flag)
    if new is not None and (not new.startswith("--") or all(part.partition("=")[0] in options for part in new.split())):
        return new or None
    begun = [name for name in options if name.startswith(flag)]
    if len(begun) == 1 and len(flag) > 3:  # the engine takes no shortened name, or this would be its full one
        return begun[0]
    near = difflib.get_close_matches(flag, list(options), n=1, cutoff=0.75)
    return near[0] if near else None


def describe_faults(faults: list[dict[str, Any]]) -> str:
    """One line for each fault."""
    lines = []
    for fault in faults:
        hint = "; use %s" % fault["successor"] if fault["successor"] else ""
        lines.append("%s: %s%s" % (fault["argument"], fault["problem"], hint))
    return "\n".join(lines)
