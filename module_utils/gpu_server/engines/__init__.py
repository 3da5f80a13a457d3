"""The inference engines that are known: one file beside this one per engine, listed in ENGINES.

Everything that differs from engine to engine stands in its file (engine.py says what that is); what is asked of all of
them is answered here, from the table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from typing import Union

from ...gpu_host.evidence import secrets, values
from . import llamacpp, lmdeploy, sglang, tensorrt_llm, transformers, vllm
from .engine import COMMON_PHASES, PATIENCE_S, Phase
from .engine import Engine as Engine

# A log that two signs match is of the first.
_ENTRIES = (sglang, tensorrt_llm, llamacpp, lmdeploy, vllm, transformers)
ENGINES: dict[str, Engine] = {entry.ENGINE.name: entry.ENGINE for entry in _ENTRIES}

Settings = dict[str, Union[str, bool, list[str]]]

# Units of the role inference_server, whatever engine they run.
ROLE_UNITS = ("inference-server*.service", "inference_server*.service")
UNIT_NAMES: tuple[str, ...] = (*ROLE_UNITS, *(name for engine in ENGINES.values() for name in engine.unit_names))
# Processes whose own name does not say what they run: their command line does.
GENERIC_PROCESS = re.compile(r"(?i)^(?:python|pypy|pt_|uvicorn|gunicorn|ray\b|ray::|torchrun|mainthread|multiproc)")
PHASES: dict[str, Phase] = {phase.name: phase for engine in ENGINES.values() for phase in engine.phases}

for _engine in ENGINES.values():
    secrets.allow_environment(_engine.environment_prefixes)


def find_engine_of_command(words: Sequence[str]) -> Engine | None:
    """The engine that a command line starts."""
    line = " ".join(words)
    return next((engine for engine in ENGINES.values() if engine.command.search(line)), None)


def find_engine_of_log(text: str) -> Engine | None:
    """The engine that wrote a log."""
    return next((engine for engine in ENGINES.values() if engine.log_sign.search(text)), None)


def find_engine_of_process(name: str) -> Engine | None:
    """The engine by the name of one of its processes: /proc/PID/comm, a title, or a path as nvidia-smi shows it."""
    own = name.rpartition("/")[2]
    return next((engine for engine in ENGINES.values() if engine.process_name.search(own)), None)


def may_run_engine(name: str) -> bool:
    """Whether a process of this name can be an engine: it is named as one, or its name says nothing."""
    return bool(GENERIC_PROCESS.match(name.rpartition("/")[2])) or find_engine_of_process(name) is not None


def is_server_unit(name: str) -> bool:
    """Whether the name of a systemd unit says that it serves models."""
    return any(fnmatch(name, pattern) for pattern in UNIT_NAMES)


def describe_phase(name: str | None) -> str | None:
    """What a server does in a phase, for a person; None for a phase that is not known."""
    if name in PHASES:
        return PHASES[name].words
    return COMMON_PHASES[name][0] if name in COMMON_PHASES else None


def find_patience_of_phase(name: str | None) -> float:
    """How long a phase may show nothing new, in seconds."""
    if name in PHASES:
        return PHASES[name].patience_s
    return COMMON_PHASES[name][1] if name in COMMON_PHASES else PATIENCE_S


def make_start_command(engine: Engine, venv: str) -> list[str]:
    """The words that start the engine of a virtual environment, without the model and the arguments."""
    return [word.replace("{venv}", venv) for word in engine.launch]


def make_image_command(engine: Engine) -> list[str]:
    """The words that start the engine of an image, where its programs are on the PATH."""
    words = [word.replace("{venv}/bin/", "") for word in engine.launch]
    # A program of its own; with a module, Python is what starts it, and some images have no `python`.
    own = len(engine.launch) > 1 and engine.launch[1].startswith("{venv}")
    return words[1:] if own else ["python3" if words[0] == "python" else words[0], *words[1:]]


def parse_flags(words: Sequence[str], short: Mapping[str, str] | None = None) -> Settings:
    """`--name value`, `--name=value` and bare flags of a command line: ``{"name": value}``.

    True for a flag without a value. `short`: names with one dash, and the name that each stands for.
    """
    found: Settings = {}
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        if short and word[:1] == "-" and word[1:] in short:
            word = "--" + short[word[1:]]
        if not word.startswith("--") or len(word) < 3:
            continue
        name, equals, value = word[2:].partition("=")
        values = [value] if equals else []
        while not equals and position < len(words) and not _is_flag(words[position]):
            values.append(words[position])
            position += 1
        found[name.replace("_", "-")] = True if not values else values[0] if len(values) == 1 else values
    return found


def _is_flag(word: str) -> bool:
    return word.startswith("--") or bool(re.match(r"-[A-Za-z]", word))


def find_settings(engine: Engine, words: Sequence[str], environment: Mapping[str, str] | None = None) -> Settings:
    """The flags of a command line of this engine, by name, and the settings that its `environment` gives it.

    A shortened name of one that the facts ask for stands under its full name. The server has started, so the shortened
    name was unambiguous to its parser: what begins a name that the engine has is that name.
    """
    found: Settings = {}
    for name, value in parse_flags(words, engine.short).items():
        found[find_full_name(engine, name)] = value
    prefix = engine.settings_prefix + "_"
    for name, value in (environment or {}).items() if engine.settings_prefix else ():
        if name.startswith(prefix):
            found.setdefault(name[len(prefix) :].lower().replace("_", "-"), value)
    return found


def find_value(settings: Mapping[str, str | bool | list[str]], names: Sequence[str]) -> str | bool | list[str] | None:
    """The value of a setting that has several names; None where none of them is given."""
    return next((settings[name] for name in reversed(names) if name in settings), None)


# Names that the facts ask for, beside those of an entry.
_ASKED_NAMES = (
    "nnodes", "node-rank", "dist-init-addr", "master-addr", "master-port", "tokenizer", "tokenizer-path",
    "trust-remote-code",
)  # fmt: skip
# The fields of an entry that hold the names of one setting.
_NAME_FIELDS = (
    "tensor_parallel", "data_parallel", "pipeline_parallel", "model_names", "context_names", "host_names", "port_names",
    "served_names", "key_names", "tls_names",
)  # fmt: skip


def find_full_name(engine: Engine, name: str) -> str:
    """The full name of a shortened one that the facts ask for; any other name as it is."""
    groups = (*list_alias_groups(engine), *((one,) for one in _ASKED_NAMES))
    if not engine.abbreviates or len(name) < 2 or any(name in group for group in groups):
        return name
    begun = [group for group in groups if any(one.startswith(name) for one in group)]
    return begun[0][-1] if len(begun) == 1 else name


def list_alias_groups(engine: Engine) -> tuple[tuple[str, ...], ...]:
    """Names of one setting each, as this engine has them; the last of a group is the full one."""
    groups = (getattr(engine, name) for name in _NAME_FIELDS)
    return tuple(group for group in groups if group)


def find_names_of_setting(name: str) -> list[str]:
    """`name`, and under which other names engines know the same setting."""
    found = {name}
    for kind in _NAME_FIELDS:
        group = {one for engine in ENGINES.values() for one in getattr(engine, kind)}
        found |= group if name in group else set()
    return [name, *sorted(found - {name})]


RANKS_AT_MOST = 4096


def find_tensor_parallel(engine: Engine, settings: Mapping[str, str | bool | list[str]]) -> int | None:
    """The number of tensor-parallel ranks that the arguments ask for; 1 where they say nothing."""
    return find_count(settings, engine.tensor_parallel)


def find_count(settings: Mapping[str, str | bool | list[str]], names: Sequence[str]) -> int | None:
    """The number that one of these arguments gives; 1 where none does, None where it is no possible number."""
    for name in names:
        value = settings.get(name)
        if isinstance(value, str):
            number = values.whole_number(value) if values.is_digits(value) else None
            return number if number is not None and number <= RANKS_AT_MOST else None
    return 1


def find_model_path(engine: str | None, words: Sequence[str]) -> str | None:
    """The model of a command line: a path or a name on a hub; None where it does not say."""
    entry = ENGINES.get(engine or "")
    settings = find_settings(entry, words) if entry else parse_flags(words)
    for name in (*(entry.model_names if entry else ()), "model-path", "model"):
        value = settings.get(name)
        if isinstance(value, str):
            return value
    own_names = [word.rpartition("/")[2] for word in words]
    before = next((word for word in (entry.model_after if entry else ()) if word in own_names), None)
    following = words[own_names.index(before) + 1 :] if before else ()
    return following[0] if following and not following[0].startswith("-") else None


def find_served_name(engine: str | None, words: Sequence[str]) -> str | None:
    """The name by which requests ask for the model.

    The one that is given (the first of several), else the model's own.
    """
    entry = ENGINES.get(engine or "")
    names = entry.served_names if entry else ("served-model-name",)
    given = find_value(find_settings(entry, words) if entry else parse_flags(words), names)
    given = given[0] if isinstance(given, list) and given else given
    return given if isinstance(given, str) else find_model_path(engine, words)
