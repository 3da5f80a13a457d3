"""What `docker inspect`, `podman inspect` and `crictl inspect` print, with the secrets masked by where they stand.

Such an answer holds the whole environment and command line of a container, its labels and its health check. Of an
environment only the names that may leave a host stay, as of /proc/PID/environ; command lines are masked word by word;
of labels, annotations, log and volume options only the values of known names stay. What is not JSON (an answer that
was cut off) is dropped whole: nothing says which of its lines is which.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Callable

from .secret_names import is_secret_name
from .secret_words import MASK
from .values import json_value

_PROGRAMS = frozenset({"docker", "podman", "nerdctl", "crictl", "k3s"})
_MASKED = MASK.decode()
# A list of these is NAME=VALUE or {key, value}: environments.
_ENVIRONMENTS = frozenset({"env", "envs", "environment"})
# Command lines: lists of words, or one text.
_COMMANDS = frozenset(
    {"args", "arguments", "cmd", "command", "createcommand", "entrypoint", "execidscommand", "osarguments", "path"}
)
# Names with values that somebody chose: what is not known stays on the host.
_TABLES = frozenset(
    {"annotations", "labels", "config", "options", "driveropts", "driver_opts", "storageopt", "sysctls"}
)
_KNOWN_NAMES = re.compile(
    r"com\.docker\.compose\.(?:project|service|version|oneoff|container-number|project\.config_files|project\.working_dir)"
    r"|io\.kubernetes\.container\.(?:name|restartCount|hash)|io\.kubernetes\.pod\.(?:name|namespace|uid)"
    r"|io\.kubernetes\.cri(?:-o)?\.[\w.-]*(?:name|namespace|uid|id|type|image)"
    r"|PODMAN_SYSTEMD_UNIT|io\.podman\.compose\.\w+|io\.container\.manager"
    r"|org\.opencontainers\.image\.(?:version|revision|ref\.name|title|created|base\.name)"
    r"|max-size|max-file|max_size|compress|mode|path|size|tag|type|device|o"
)
# The command of a health check and what it printed, and what an image tells a shell.
_DROPPED = frozenset({"test", "log", "shell", "onbuild"})


def is_container_json(argv: Sequence[str]) -> bool:
    """Whether a command prints what this module masks."""
    return bool(argv) and argv[0].rpartition("/")[2] in _PROGRAMS and "inspect" in argv[1:4]


def redact_container_json(
    data: bytes,
    *,
    may_leave: Callable[[bytes], bool],
    redact_arguments: Callable[[list[bytes]], list[bytes]],
    redact_text: Callable[[bytes], bytes],
) -> bytes:
    """The JSON text with its secrets masked; the masked form of what is no JSON. Masking twice is masking once."""
    if not data.strip():
        return data
    try:
        value = json_value(data.decode("utf-8"))
    except ValueError:
        return MASK
    if isinstance(value, str):  # no inspect command prints one
        return MASK
    masker = _Masker(may_leave, redact_arguments, redact_text)
    return json.dumps(masker.mask(value, ""), indent=1).encode() + b"\n"


class _Masker:
    def __init__(
        self,
        may_leave: Callable[[bytes], bool],
        redact_arguments: Callable[[list[bytes]], list[bytes]],
        redact_text: Callable[[bytes], bytes],
    ) -> None:
        self._may_leave, self._redact_arguments, self._redact_text = may_leave, redact_arguments, redact_text

    def mask(self, value: Any, key: str) -> Any:
        """`value`, which stands under `key` (that of the list, for a member of one)."""
        name = key.lower()
        if name in _DROPPED and isinstance(value, (dict, list, str)):
            return _emptied(value)
        if name in _ENVIRONMENTS:
            return self._environment(value)
        if isinstance(value, dict):
            return {self._text(str(inner)): self._field(part, str(inner), name) for inner, part in value.items()}
        if isinstance(value, list):
            if name in _COMMANDS and all(isinstance(part, str) for part in value):
                return self._words(value)
            return [self.mask(part, key) for part in value]
        return self._text(value) if isinstance(value, str) else value

    def _field(self, value: Any, name: str, table: str) -> Any:
        """The value of the field `name` of the dictionary that stands under `table`."""
        if table in _TABLES and isinstance(value, str) and not _is_structure(name, table):
            return self._text(value) if _KNOWN_NAMES.fullmatch(name) else _MASKED if value else value
        if is_secret_name(name.encode("utf-8", "replace")) and value not in (None, "", True, False):
            return _MASKED
        return self.mask(value, name)

    def _environment(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self._text(str(part)) for name, part in value.items() if self._may_leave(name.encode())}
        if not isinstance(value, list):
            return None
        kept: list[Any] = []
        for part in value:
            if isinstance(part, dict):  # of the CRI: {"key": NAME, "value": VALUE}
                name = str(part.get("key") or part.get("name") or "")
                if self._may_leave(name.encode("utf-8", "replace")):
                    kept.append({"key": name, "value": self._text(str(part.get("value", "")))})
            elif isinstance(part, str):
                name, equals, content = part.partition("=")
                if equals and self._may_leave(name.encode("utf-8", "replace")):
                    kept.append("%s=%s" % (name, self._text(content)))
        return kept

    def _words(self, words: list[str]) -> list[str]:
        hidden: list[str] = []
        environment = False  # of `podman run -e NAME=VALUE`, which podman keeps as CreateCommand
        for word in words:
            option, equals, value = word.partition("=")
            if environment:
                hidden.append(self._assignment(word))
            elif option in ("--env", "-e") and equals:
                hidden.append("%s=%s" % (option, self._assignment(value)))
            elif option in ("--label", "-l", "--annotation", "--log-opt", "--secret") and equals:
                hidden.append("%s=%s" % (option, _MASKED))
            else:
                hidden.append(word)
            environment = word in ("-e", "--env")
        for at, word in enumerate(hidden[:-1]):
            if word in ("--label", "-l", "--annotation", "--log-opt", "--health-cmd", "--secret"):
                hidden[at + 1] = _MASKED
        masked = self._redact_arguments([word.encode("utf-8", "surrogatepass") for word in hidden])
        return [word.decode("utf-8", "replace") for word in masked]

    def _assignment(self, word: str) -> str:
        name, equals, _value = word.partition("=")
        if not equals or self._may_leave(name.encode("utf-8", "replace")):
            return word
        return "%s=%s" % (name, _MASKED)

    def _text(self, text: str) -> str:
        return self._redact_text(text.encode("utf-8", "surrogatepass")).decode("utf-8", "replace")


def _is_structure(name: str, table: str) -> bool:
    """Whether a text under `Config` is one of the runtime's own fields (`Config.Image`), not an option."""
    return table == "config" and name in _FIELDS_OF_CONFIG


_FIELDS_OF_CONFIG = frozenset(
    {
        "Hostname", "Domainname", "User", "Image", "WorkingDir", "StopSignal", "MacAddress", "StopTimeout", "Umask",
        "SystemdMode", "sdNotifyMode", "image", "working_dir", "log_path",
    }
)  # fmt: skip


def _emptied(value: Any) -> Any:
    return {} if isinstance(value, dict) else [] if isinstance(value, list) else ""
