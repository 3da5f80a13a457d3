"""Every regular expression of the code takes time by the length of a text, not by its square.

A pattern is attacked where it repeats without a limit: with what leads up to the repetition, the repeated part some
thousand times, and an end that does not match. Two lengths are compared, so a slow machine changes nothing.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("gpu_host", "gpu_checks", "gpu_report", "gpu_server", "gpu_provision")
try:
    from re import _constants as constants  # type: ignore[attr-defined]
    from re import _parser as parser  # type: ignore[attr-defined]
except ImportError:  # Python 3.9 and 3.10
    import sre_constants as constants  # type: ignore[no-redef]
    import sre_parse as parser  # type: ignore[no-redef]

SHORT, LONG = 400, 1_600
GROWTH = 8.0  # four times the length: 4 is linear, 16 is the square
SLOW_SECONDS = 0.03  # what takes less than this at the longer length harms nobody
FUNCTIONS = {"compile", "search", "match", "fullmatch", "sub", "subn", "split", "findall", "finditer"}


@cache
def all_patterns() -> dict[tuple[Any, int], str]:
    """(pattern, flags) -> where it is used: the compiled ones of every module, and those written where they are."""
    found: dict[tuple[Any, int], str] = {}
    for package in PACKAGES:
        root = importlib.import_module("ansible.module_utils." + package)
        for info in pkgutil.walk_packages(root.__path__, root.__name__ + "."):
            module = importlib.import_module(info.name)
            for name, value in vars(module).items():
                for pattern in compiled_in(value, 3):
                    found.setdefault((pattern.pattern, pattern.flags), "%s.%s" % (info.name, name))
    compiled = {text for text, _flags in found}
    for path in [*ROOT.glob("module_utils/**/*.py"), *ROOT.glob("library/*.py"), *ROOT.glob("plugins/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if not (
                isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in FUNCTIONS
            ):
                continue
            if isinstance(node.func.value, ast.Name) and node.func.value.id == "re" and node.args:
                first = node.args[0]
                if isinstance(first, ast.Constant) and isinstance(first.value, (str, bytes)):
                    if node.func.attr == "compile" and first.value in compiled:
                        continue  # known by its name, with its flags
                    pattern = re.compile(first.value)
                    found.setdefault((pattern.pattern, pattern.flags), "%s:%d" % (path.relative_to(ROOT), node.lineno))
    return found


def compiled_in(value: Any, depth: int) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif depth and isinstance(value, dict):
        for part in value.values():
            yield from compiled_in(part, depth - 1)
    elif depth and isinstance(value, (list, tuple, set)):
        for part in value:
            yield from compiled_in(part, depth - 1)
    elif depth and hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        yield from compiled_in(list(vars(value).values()) if hasattr(value, "__dict__") else [], depth - 1)


def samples(parsed: Any) -> Iterator[tuple[str, str]]:
    """(what leads up to it, what is repeated) for each repetition without a limit in a parsed pattern."""
    before = ""
    for operator, argument in parsed:
        for lead, unit in repeated(operator, argument):
            yield before + lead, unit
        before += example([(operator, argument)])


def repeated(operator: Any, argument: Any) -> Iterator[tuple[str, str]]:
    name = str(operator)
    if name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
        _least, most, inner = argument
        if most is constants.MAXREPEAT or most > 200:
            unit = example(inner) or "a"
            yield "", unit
            yield "", "".join(dict.fromkeys(unit + "a1 .:-/,"))  # what several classes of the pattern may take
            for mark in marks(inner):  # between two of them a word begins anew
                yield "", unit + mark
        yield from samples(inner)
    elif name == "SUBPATTERN":
        yield from samples(argument[-1])
    elif name == "BRANCH":
        for branch in argument[1]:
            yield from samples(branch)
    elif name in ("ASSERT", "ASSERT_NOT"):
        yield from samples(argument[1])
    elif name == "ATOMIC_GROUP":
        yield from samples(argument)


def example(parsed: Any) -> str:
    """A text that the parsed pattern matches, as short as can be; what it only looks at is left out."""
    found = ""
    for operator, argument in parsed:
        name = str(operator)
        if name == "LITERAL":
            found += chr(argument)
        elif name == "NOT_LITERAL":
            found += "b" if chr(argument) != "b" else "c"
        elif name == "ANY":
            found += "a"
        elif name == "IN":
            found += member(argument)
        elif name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            found += example(argument[2]) * max(1, argument[0])
        elif name == "SUBPATTERN":
            found += example(argument[-1])
        elif name == "BRANCH":
            found += example(argument[1][0])
        elif name == "ATOMIC_GROUP":
            found += example(argument)
    return found


def member(entries: Any) -> str:
    """A character of a class, a letter or a digit if it has one."""
    pattern_of = {"CATEGORY_DIGIT": "1", "CATEGORY_SPACE": " ", "CATEGORY_WORD": "a", "CATEGORY_NOT_SPACE": "a"}
    negated = any(str(operator) == "NEGATE" for operator, _argument in entries)
    taken: list[str] = []
    for operator, argument in entries:
        name = str(operator)
        if name == "LITERAL":
            taken.append(chr(argument))
        elif name == "RANGE":
            taken += [chr(argument[0]), chr(argument[1])]
        elif name == "CATEGORY":
            taken.append(pattern_of.get(str(argument), "a"))
    if negated:
        return next(letter for letter in "a1 .-_xyz" if letter not in taken)
    return taken[0] if taken else "a"


@cache
def sources() -> str:
    return "\n".join(path.read_text() for path in ROOT.glob("module_utils/**/*.py"))


def is_anchored(place: str) -> bool:
    """Whether the pattern is only ever asked at the beginning of a text (match, fullmatch), by its name in the code."""
    if ":" in place:
        path, _colon, line = place.rpartition(":")
        return bool(re.search(r"re\.(?:full)?match\(", (ROOT / path).read_text().splitlines()[int(line) - 1]))
    module, _dot, name = place.rpartition(".")
    text = sources()
    if name.startswith("_"):  # another module's of that name is another pattern
        text = Path(str(importlib.import_module(module).__file__)).read_text()
    used = set(re.findall(r"\b%s\.(match|fullmatch|search|sub|subn|split|findall|finditer)\b" % re.escape(name), text))
    return bool(used) and used <= {"match", "fullmatch"}


def marks(inner: Any) -> list[str]:
    """The literal characters of a class that no word holds."""
    entries = inner[0][1] if len(inner) == 1 and str(inner[0][0]) == "IN" else []
    literals = [chr(argument) for operator, argument in entries if str(operator) == "LITERAL"]
    return [mark for mark in literals if not mark.isalnum() and mark != "_"][:2]


def longest(pattern: re.Pattern[Any], text: Any, anchored: bool) -> float:
    """The least of two tries, in seconds of this thread: what else the machine does must not count."""
    best = float("inf")
    for _ in range(2):
        began = time.thread_time()
        if anchored:
            pattern.match(text)
            pattern.fullmatch(text)
        else:
            for _found in pattern.finditer(text):
                pass
        best = min(best, time.thread_time() - began)
    return best


def attacks(pattern: re.Pattern[Any], times: int) -> list[tuple[str, Any]]:
    parsed = parser.parse(
        pattern.pattern, pattern.flags & ~re.UNICODE if isinstance(pattern.pattern, bytes) else pattern.flags
    )
    found = []
    for lead, unit in dict.fromkeys(samples(parsed)):
        for text in (lead + unit * times + "\x00", (lead + unit) * (times // max(1, len(lead))) + "\x00"):
            found.append(
                (lead + unit, text.encode("latin-1", "replace") if isinstance(pattern.pattern, bytes) else text)
            )
    return found


def grows_too_fast(pattern: re.Pattern[Any], anchored: bool = False, harmless: float = SLOW_SECONDS) -> str:
    """What it was attacked with, where its time grows faster than its text; "" where it does not, or where it takes
    `harmless` seconds at most."""
    for (name, long), (_name, short) in zip(attacks(pattern, LONG), attacks(pattern, SHORT)):
        seconds = longest(pattern, long, anchored)
        if seconds > harmless and seconds > GROWTH * max(longest(pattern, short, anchored), harmless / GROWTH / 2):
            return "%r takes %.3f s at %d characters" % (name, seconds, len(long))
    return ""


def test_every_pattern_is_found() -> None:
    places = list(all_patterns().values())
    assert len(places) > 150
    for module in ("secrets", "virtualization", "phrases", "log_patterns"):
        assert any(".%s." % module in place for place in places), module


@pytest.mark.parametrize("package", [*PACKAGES, "library", "plugins"])
@pytest.mark.slow
def test_time_grows_with_the_length_and_not_with_its_square(package: str) -> None:
    slow = {}
    for (text, flags), place in all_patterns().items():
        if package not in place:
            continue
        problem = grows_too_fast(re.compile(text, flags), is_anchored(place))
        if problem:
            slow[place] = "%r: %s" % (text, problem)
    assert slow == {}


@pytest.mark.parametrize(
    "text",
    [
        r"\b[A-Za-z][A-Za-z0-9+.-]*://[^\s/:@]*:",  # the pattern of URLs that stood in secrets.py
        r"x*y*x*z",
        r"\s+$",
    ],
)
@pytest.mark.slow
def test_the_attack_finds_what_is_slow(text: str) -> None:
    assert grows_too_fast(re.compile(text), harmless=SLOW_SECONDS / 10)  # also on a fast machine
