"""The command that starts an engine, without what stands before it: env and its variables, numactl, timeout, a shell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from . import engines

# Programs whose words hold the command of another.
WRAPPERS = frozenset(
    [
        "sh", "bash", "dash", "zsh", "timeout", "nohup", "sudo", "su", "setsid", "numactl", "env", "nice", "taskset", "systemd-run",
        "tmux", "screen", "ssh", "grep", "docker", "podman", "ionice", "chrt", "stdbuf", "prlimit", "runuser", "setpriv", "chroot",
        "unshare", "exec",
    ]
)  # fmt: skip
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
# Of env: options whose value is the next word.
_ENV_VALUES = frozenset({"-u", "--unset", "-C", "--chdir", "-a", "--argv0"})
_DEPTH = 8


def unwrap(words: Sequence[str], environment: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """(the words from the engine's own program on, the environment that it gets).

    `words` may begin with `env NAME=VALUE`, `numactl`, `sh -c "..."` and the like, one in another; where no program is
    found behind them, they stay as they are.
    """
    rest, settings = list(words), dict(environment)
    for _step in range(_DEPTH):
        if not rest or _program(rest[0]) not in WRAPPERS:
            break
        inner = _behind_env(rest[1:], settings) if _program(rest[0]) == "env" else _behind(rest[1:], settings)
        if not inner:
            return list(words), settings
        rest = inner
    return rest, settings


def _program(word: str) -> str:
    return word.rpartition("/")[2]


def _behind_env(words: list[str], settings: dict[str, str]) -> list[str]:
    """The command of env, env(1); its variables go into `settings`."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, _equals, value = word.partition("=")
        if word in ("-", "-i", "--ignore-environment"):
            settings.clear()
        elif word in ("-S", "--split-string") and rest:
            rest = _split(rest.pop(0)) + rest
        elif name == "--split-string":
            rest = _split(value) + rest
        elif re.match(r"-[a-zA-Z0]*S", word) and not word.startswith("--"):
            rest = _split(word.partition("S")[2]) + rest
        elif word in _ENV_VALUES and rest:
            after = rest.pop(0)
            if word in ("-u", "--unset"):
                settings.pop(after, None)
        elif name == "--unset":
            settings.pop(value, None)
        elif re.match(r"-u.", word):
            settings.pop(word[2:], None)
        elif match := _ASSIGNMENT.fullmatch(word):
            settings[match[1]] = match[2]
        elif not word.startswith("-"):
            return [word, *rest]
    return []


def _behind(words: list[str], settings: dict[str, str]) -> list[str]:
    """What another wrapper runs: from the first word on that is a wrapper, a Python or a program of an engine.

    A word of several words (`sh -c "..."`) is a command line of its own.
    """
    for position, word in enumerate(words):
        if " " in word.strip() and _split(word):
            inner = _split(word)
            while inner and (match := _ASSIGNMENT.fullmatch(inner[0])):
                settings[match[1]] = match[2]
                inner.pop(0)
            found = inner if inner and _is_command(inner[0]) else _behind(inner, settings)
            if found:
                return found
        elif _is_command(word):
            return words[position:]
        elif match := _ASSIGNMENT.fullmatch(word):  # of sudo
            settings[match[1]] = match[2]
    return []


def _is_command(word: str) -> bool:
    return _program(word) in WRAPPERS or engines.may_run_engine(word)


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # a quotation that does not end
        return []
