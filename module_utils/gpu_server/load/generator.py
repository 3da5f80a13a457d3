"""A load generator as data, and the load that it makes. Each engine's entry holds its own; generators.py lists all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Job:
    """One load, and the server that gets it."""

    base: str
    model: str
    concurrency: int
    requests: int
    prompt_tokens: int
    output_tokens: int
    time_limit: int
    seed: int
    result: str = "/result.json"  # the file that the generator shall write
    tokenizer: str | None = None
    trust_remote_code: bool = False


Arguments = Callable[[Job], "list[tuple[str, str | None]]"]


@dataclass(frozen=True)
class Generator:
    """`required` and `optional` give ``[(option, value)]``; an optional one that the installed version lacks is left
    out."""

    name: str
    distribution: str
    modules: tuple[tuple[str, ...], ...]  # ways to start it after `python -m`, the present one first
    program: str | None  # its name on PATH, where it is one of its own
    verb: tuple[str, ...]
    key_variable: str
    required: Arguments
    optional: Arguments
    choices: dict[str, str]  # option -> what its help must name
    parse: Callable[[dict[str, Any], Job], dict[str, Any]]
    needs_tokenizer: bool = False
    helps: tuple[str, ...] = ("--help",)  # what prints every option, the present form first
