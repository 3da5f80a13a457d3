"""Load generators: how each is started, which options it must know, what it prints. Pure functions.

Read in the sources of, and run in, the versions that docs/benchmark.md names. Options are few on purpose: what is left
at its default cannot be renamed. Every one is looked up in the installed generator's own --help first.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import engines
from ..arguments import parse_options
from . import result_files
from .job import Job

TAIL_LINES, TAIL_CHARACTERS, LINE_CHARACTERS = 6, 900, 300
_BAR = re.compile(r"(\d+)/(\d+) \[")  # tqdm
_BAR_LINE = re.compile(r"^.*?\d+/\d+ \[[^\]]*\]")
_COUNTS = re.compile(r"successful=(\d+) errored=(\d+)")  # guidellm's own lines


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


def _sglang_required(job: Job) -> list[tuple[str, str | None]]:
    # "random" would fetch the ShareGPT data set; a range ratio of 1 is the exact length here, and anything down to one
    # token at its default.
    return [
        ("--backend", "sglang-oai"), ("--base-url", job.base), ("--model", job.model), ("--dataset-name", "random-ids"),
        ("--random-input-len", str(job.prompt_tokens)), ("--random-output-len", str(job.output_tokens)),
        ("--random-range-ratio", "1.0"),
        ("--num-prompts", str(job.requests)), ("--max-concurrency", str(job.concurrency)), ("--seed", str(job.seed)),
        ("--output-file", job.result),
    ]  # fmt: skip


def _sglang_optional(job: Job) -> list[tuple[str, str | None]]:
    found: list[tuple[str, str | None]] = [("--output-details", None)]
    found += [("--tokenizer", job.tokenizer)] if job.tokenizer else []
    return found


def _vllm_required(job: Job) -> list[tuple[str, str | None]]:
    # Not --random-range-ratio: the exact length is 1.0 up to 0.8 and 0.0 after it, and the default in both. Not
    # --backend: up to 0.10 it is
    # --endpoint-type, and the OpenAI API is the default of either.
    directory, _slash, name = job.result.rpartition("/")
    return [
        ("--base-url", job.base), ("--model", job.model), ("--dataset-name", "random"),
        ("--random-input-len", str(job.prompt_tokens)),
        ("--random-output-len", str(job.output_tokens)), ("--num-prompts", str(job.requests)),
        ("--max-concurrency", str(job.concurrency)),
        ("--seed", str(job.seed)), ("--ignore-eos", None), ("--metric-percentiles", "95"), ("--save-result", None),
        ("--result-dir", directory),
        ("--result-filename", name),
    ]  # fmt: skip


def _vllm_optional(job: Job) -> list[tuple[str, str | None]]:
    found: list[tuple[str, str | None]] = [("--save-detailed", None), ("--temperature", "0"), ("--num-warmups", "1")]
    found += [("--tokenizer", job.tokenizer)] if job.tokenizer else []
    found += [("--trust-remote-code", None)] if job.trust_remote_code else []
    return found


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


SGLANG = Generator(
    name="sglang",
    distribution="sglang",
    modules=(
        ("sglang.benchmark.serving",),
        ("sglang.bench_serving",),
    ),  # the second is the name up to 0.5.12, and deprecated after it
    program=None,
    verb=(),
    key_variable="OPENAI_API_KEY",
    required=_sglang_required,
    optional=_sglang_optional,
    choices={"--backend": "sglang-oai", "--dataset-name": "random-ids"},
    parse=result_files.parse_serving,
)
VLLM = Generator(
    name="vllm",
    distribution="vllm",
    modules=(("vllm.entrypoints.cli.main",),),
    program=None,
    verb=("bench", "serve"),
    key_variable="OPENAI_API_KEY",
    required=_vllm_required,
    optional=_vllm_optional,
    choices={"--dataset-name": "random"},
    parse=result_files.parse_serving,
    needs_tokenizer=True,
    helps=("--help=all", "--help"),  # without "all" it names groups only; argparse, which 0.8 had, refuses the value
)
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
GENERATORS = {generator.name: generator for generator in (SGLANG, VLLM, GUIDELLM)}
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


# What every generator asks of a server, and this one refuses: `transformers serve` answers 422 to a request with
# ignore_eos, of any value.
REFUSED_BY = {"transformers": "transformers serve refuses its requests (the field ignore_eos)"}


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
    bars = [int(match[1]) for match in _BAR.finditer(text) if int(match[2]) == requests]
    counts = [int(match[1]) + int(match[2]) for match in _COUNTS.finditer(text)]
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
    settings = engines.parse_flags(words)
    given = (settings.get(name) for name in ("tokenizer-path", "tokenizer"))
    return next((value for value in given if isinstance(value, str)), None) or engines.find_model_path(engine, words)


def describe_server(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What a generator must know, from the facts of the server:

    ``{engine, python, environment, user_id, tokenizer, trust_remote_code}``.
    """
    process = facts.get("process")
    process = process if isinstance(process, dict) else {}
    arguments = process.get("arguments")
    words = [str(word) for word in arguments] if isinstance(arguments, list) else []
    named = facts.get("environment")
    return {
        "engine": facts.get("engine"),
        "python": process.get("python"),
        "environment": {str(name): str(value) for name, value in named.items()} if isinstance(named, dict) else {},
        "user_id": process.get("user_id"),
        "tokenizer": find_tokenizer(facts.get("engine"), words),
        "trust_remote_code": "trust-remote-code" in engines.parse_flags(words),
    }
