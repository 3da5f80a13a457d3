"""A load generator as data. Each engine's entry holds its own; generators.py lists all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import result_files
from .job import Job

Arguments = Callable[[Job], "list[tuple[str, str | None]]"]


@dataclass(frozen=True)
class Generator:
    """`required` and `optional` give ``[(option, value)]``.

    An optional one that the installed version lacks is left out.
    """

    name: str
    distribution: str
    modules: tuple[tuple[str, ...], ...]  # ways to start it after `python -m`, the present one first
    program: str | None  # its name on PATH, where it is one of its own
    verb: tuple[str, ...]
    key_variable: str
    required: Arguments
    optional: Arguments
    choices: dict[str, str]  # option -> what its help must name
    parse: result_files.Parser
    needs_tokenizer: bool = False
    helps: tuple[str, ...] = ("--help",)  # what prints every option, the present form first
