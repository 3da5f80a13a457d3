"""Load generators: how each is started, which options it must know, what it prints. Pure functions.

Read in the sources of, and run in, the versions that docs/benchmark.md names. Options are few on purpose: what is left
at its default cannot be renamed. Every one is looked up in the installed generator's own --help first.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ...gpu_host.evidence import values
from .. import engines
from ..arguments import parse_options
from ..engines import ENGINES
from . import result_files
from .generator import Generator
from .job import Job

TAIL_LINES, TAIL_CHARACTERS, LINE_CHARACTERS = 6, 900, 300
_BAR = re.compile(r"(?<!\d)(\d{1,9})/(\d{1,9}) \[")  # tqdm
_BAR_LINE = re.compile(r"^.{0,300}?\d{1,9}/\d{1,9} \[[^\]]{0,300}\]")
_COUNTS = re.compile(r"successful=(\d+) errored=(\d+)")  # guidellm's own lines


def _guidellm_required(job: Job) -> list[tuple[str, str | None]]:
    return [
        ("--backend", "kind=openai_http,target=%s,model=%s,request_format=/v1/completions" % (job.base, job.model)),
        ("--profile", "kind=concurrent,streams=%d" % job.concurrency),
        ("--constraint", "kind=max_requests,count=%d" % job.requests),
        ("--tokenizer", "kind=huggingface_auto,model=%s" % (job.tokenizer or job.model)),
        ("--data", "kind=synthetic_text,prompt_tokens=%d,output_tokens=%d" % (job.prompt_tokens, job.output_tokens)),
        ("--seed", "kind=static,value=%d" % job.seed),
        ("--output", "kind=json,path=%s" % job.result),
    ]


def _guidellm_optional(_job: Job) -> list[tuple[str, str | None]]:
    return [("--disable-console-interactive", None)]


GUIDELLM = Generator(
    name="guidellm",
    distribution="guidellm",
    modules=(("guidellm",),),
    program="guidellm",
    verb=("run",),
    key_variable="GUIDELLM__SPEC__BACKEND__API_KEY",
    required=_guidellm_required,
    optional=_guidellm_optional,
    choices={
        "--backend": "openai_http", "--profile": "concurrent", "--constraint": "max_requests",
        "--tokenizer": "huggingface_auto",
        "--data": "synthetic_text", "--output": "json",
    },
    parse=result_files.parse_guidellm,
    needs_tokenizer=True,
)  # fmt: skip
GENERATORS = {
    generator.name: generator
    for generator in (*(engine.generator for engine in ENGINES.values() if engine.generator), GUIDELLM)
}
BUILTIN = "builtin"
NAMES = ("auto", *GENERATORS, BUILTIN)
USUAL = {"concurrency": 1, "requests": 8, "prompt_tokens": 512, "output_tokens": 256}  # of a load that does not say
# Of the module inference_server_load and of its action alike.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "base": {"type": "str", "required": True},
    "model": {"type": "str", "required": True},
    "api_key": {"type": "str", "no_log": True},
    "generator": {"type": "str", "choices": list(NAMES), "default": "auto"},
    "generator_python": {"type": "path"},
    "server": {"type": "dict", "default": {}},
    "cells": {
        "type": "list",
        "elements": "dict",
        "required": True,
        "options": {name: {"type": "int", "default": value} for name, value in USUAL.items()},
    },
    "time_limit": {"type": "int", "default": 600},
}


def find_faults(generator: Generator, text: str, job: Job) -> list[str]:
    """What speaks against this generator, from its --help: options that it lacks, choices that it does not name."""
    known = parse_options(text)
    found = []
    for option in dict.fromkeys(option for option, _value in generator.required(job)):
        wanted = generator.choices.get(option)
        if option not in known:
            near = difflib.get_close_matches(option, list(known), n=1, cutoff=0.7)
            found.append("it knows no %s%s" % (option, " (it has %s)" % near[0] if near else ""))
        elif wanted and not re.search(r"(?<![\w-])%s(?![\w-])" % re.escape(wanted), text):
            found.append("its %s does not offer %s" % (option, wanted))
    if generator is GUIDELLM and any("," in value or "=" in value for value in (job.model, job.tokenizer or "")):
        found.append("the name of the model holds a comma or an equals sign, which its options are made of")
    return found


def select_options(generator: Generator, text: str, job: Job) -> list[str]:
    """Those of the optional options that the installed version has, from its --help."""
    known = parse_options(text)
    return [option for option, _value in generator.optional(job) if option in known]


def make_command(generator: Generator, start: Sequence[str], known: Collection[str], job: Job) -> list[str]:
    """The command line; `start` begins it, `known` are the optional options that it has. The key is not in it."""
    words = list(start)
    for option, value in generator.required(job) + [pair for pair in generator.optional(job) if pair[0] in known]:
        words += [option] if value is None else [option, value]
    return words


def parse_progress(text: str, requests: int) -> int | None:
    """How many of the requests are done, from the end of what was printed; None where it does not say (yet)."""
    number = values.number_in_name
    bars = [number(match[1]) for match in _BAR.finditer(text) if number(match[2]) == requests]
    counts = [number(match[1]) + number(match[2]) for match in _COUNTS.finditer(text)]
    return max(bars[-1:] + counts[-1:], default=None)


def redact_key(text: str, key: str | None) -> str:
    """What a generator printed, without the key of the API."""
    return text.replace(key, "***") if key else text


def select_last_lines(text: str) -> str:
    """The last lines for a message, without progress bars."""
    # The bar goes to another stream, and ends without a line feed: what is printed next stands behind it.
    lines = [_BAR_LINE.sub("", line.rsplit("\r", 1)[-1]).rstrip() for line in text.split("\n")]
    if any(line.startswith("Traceback ") for line in lines):  # its frames are for the generator's authors
        lines = [line for line in lines if not line.startswith(("  ", "Traceback "))]
    lines = [
        line for line in lines if not line.startswith(("Namespace(", "benchmark_args="))
    ]  # a screenful that stands in the command
    lines = [line.strip()[:LINE_CHARACTERS] for line in lines if line.strip() and not set(line) <= set("=-^~ ")]
    return " | ".join(lines[-TAIL_LINES:])[-TAIL_CHARACTERS:] or "it printed nothing"


def find_tokenizer(engine: str | None, words: Sequence[str]) -> str | None:
    """The tokenizer, or else the model, of a server's command line: a path or a name on the hub.

    None where the command does not say.
    """
    entry = ENGINES.get(engine or "")
    settings = engines.find_settings(entry, words) if entry else engines.parse_flags(words)
    given = (settings.get(name) for name in ("tokenizer-path", "tokenizer"))
    return next((value for value in given if isinstance(value, str)), None) or engines.find_model_path(engine, words)


def describe_server(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What a generator must know, from the facts of the server:

    ``{engine, python, environment, user_id, tokenizer, trust_remote_code}``.
    """
    process = facts.get("process")
    process = process if isinstance(process, dict) else {}
    given = process.get("arguments")
    words = [str(word) for word in given] if isinstance(given, list) else []
    named, entry = facts.get("environment"), ENGINES.get(str(facts.get("engine")))
    return {
        "engine": facts.get("engine"),
        "python": process.get("python"),
        "environment": {str(name): str(value) for name, value in named.items()} if isinstance(named, dict) else {},
        "user_id": process.get("user_id"),
        "tokenizer": find_tokenizer(facts.get("engine"), words),
        "trust_remote_code": "trust-remote-code"
        in (engines.find_settings(entry, words) if entry else engines.parse_flags(words)),
    }
