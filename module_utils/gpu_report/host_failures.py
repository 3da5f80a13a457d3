"""Why a host gave no facts, in words that say what to do: of what Ansible, ssh, sudo and Python say of it.

Ansible's own words for a module that did not come to its end are "Module result deserialization failed", whether the
disk is full, sudo is missing or the host is shutting down. What the host said stands beside them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..gpu_host.evidence import secrets
from . import wrong_answers

_LONGEST = 400  # of a line that is repeated
_PREFIX = re.compile(r"^(?:(?:Task failed|Action failed|Module failed): )+")
_NO_ANSWER = "Module result deserialization failed"
# What Ansible says -> what that means and what to do, in the place of its words. `{0}` is what was found.
_ANSIBLE_SAYS: tuple[tuple[str, str], ...] = (
    (
        r"The module interpreter '([^']*)' was not found",
        "the host has no Python at {1}. Install Python 3.9 or newer, or name one with ansible_python_interpreter.",
    ),
    (r"Python 3\.9 or newer is needed[^\n]*", "{0}. Name a newer one with ansible_python_interpreter."),
    (
        r"ansible-core requires a minimum of Python version [\d.]+\. Current version: ([\d.]*\d)",
        "the host's Python is {1}, too old: 3.9 or newer is needed. Name one with ansible_python_interpreter.",
    ),
    (
        r"Missing (\w+) password",
        "{1} on the host wants a password from this user, or does not let it become root. Give the password (-K), let "
        "the user become root without one, or leave out -b: what only root may read is unknown then.",
    ),
    (
        r"Incorrect (\w+) password",
        "{1} on the host does not take the password that was given. Give the right one (-K).",
    ),
)
# The same of what the host says, where the module gave no answer; the first that is found.
_HOST_SAYS: tuple[tuple[str, str], ...] = (
    (
        r"No usable temporary directory found in (\[.*?\])",
        "the host has no directory for temporary files that can be written ({1}): its disk is full or read-only, or "
        "they are not there. Look with df -h, df -i and ls -ld /tmp on the host.",
    ),
    (
        r"No space left on device|Disk quota exceeded",
        "a disk of the host is full ({0}). Look with df -h and df -i on the host, and make room.",
    ),
    (
        r"Read-only file system",
        "a file system of the host is read-only. A kernel that sees errors of a disk makes it so: look with "
        "findmnt -O ro and dmesg on the host.",
    ),
    (
        r"future feature annotations is not defined",
        "the host's Python is older than 3.7: 3.9 or newer is needed. Name one with ansible_python_interpreter.",
    ),
    (
        r"error while loading shared libraries: [^\n]*",
        "the host's Python does not start ({0}). Name one that does with ansible_python_interpreter.",
    ),
    (
        r"(?:[^\n]* is not in the sudoers file|user [^\n]* is not allowed to execute)[^\n]*",
        "sudo on the host does not let this user become root ({0}). Let it, or leave out -b: what only root may read "
        "is unknown then.",
    ),
    (
        r"\b(sudo|doas|su|dzdo|pbrun|ksu): (?:command )?not found",
        "the host has no {1}. Install it, connect as root, or leave out -b: what only root may read is unknown then.",
    ),
    (
        r"[^\n]*(?:/etc/nologin|pam_nologin|System is going down|System is booting up)[^\n]*",
        "the host refuses logins, as one does that starts or shuts down ({0}). Validate it again when it is up.",
    ),
)
_UNREACHABLE: tuple[tuple[str, str], ...] = (
    (r"Permission denied \(", "The host does not let this user in: look at the user (-u) and its key (--private-key)."),
    (
        r"Host key verification failed|REMOTE HOST IDENTIFICATION HAS CHANGED",
        "The host is new to ssh, or another one than before: look at its key, then log in once by hand.",
    ),
    (
        r"nologin|System is (?:going down|booting up)",
        "The host starts or shuts down: validate it again when it is up.",
    ),
    (r"Could not resolve hostname", "Nothing knows this name: look at the inventory (ansible_host) and at DNS."),
    (r"Connection refused", "The machine is there and no sshd listens: it may be starting. Look at its console."),
    (r"timed out|No route to host|Network is unreachable", "Look whether the host is up, and at the way to it."),
    (
        r"Data could not be sent|closed by|Connection reset|Broken pipe|mux_client",
        "The connection was cut, as by a reboot: look whether the host is up, and validate it again.",
    ),
)


def explain_failure(result: Mapping[str, Any]) -> str:
    """One sentence or two on a task that failed: what was wrong where, and what to do where that is known."""
    nonsense = wrong_answers.explain_wrong_answer(result)
    if nonsense:
        return nonsense
    message = _clean(result.get("msg"))
    said = "\n".join(str(result.get(name) or "") for name in ("module_stderr", "module_stdout"))
    for table, text in ((_ANSIBLE_SAYS, message), (_HOST_SAYS, said if _NO_ANSWER in message or not message else "")):
        for pattern, words in table:
            match = re.search(pattern, text)
            if match:
                return words.format(*(_one_line(group or "") for group in (match[0], *match.groups())))
    if (message and _NO_ANSWER not in message) or not said.strip():
        return message
    status = "" if result.get("rc") is None else " (exit status %s)" % result["rc"]
    return "the host ran the module and got no answer from it%s. The last that it printed: %s" % (status, _last(said))


def explain_unreachable(result: Mapping[str, Any]) -> str:
    """What ssh says, and what to do."""
    message = re.sub(r"\[Errno \d+\] ", "", _clean(result.get("msg"))).rstrip(": ")
    advice = next((words for pattern, words in _UNREACHABLE if re.search(pattern, message, re.IGNORECASE)), "")
    return "%s%s %s" % (message, "" if message.endswith((".", "!", "?")) else ".", advice) if advice else message


def _clean(message: Any) -> str:
    return _PREFIX.sub("", " ".join(str(message or "").split()))


def _last(said: str) -> str:
    lines = [line for line in said.splitlines() if line.strip()]
    return _one_line(lines[-1] if lines else "")


def _one_line(text: str) -> str:
    """Data of the host: on one line, of bounded length, without what looks like a secret."""
    shown = secrets.redact_strings(" ".join(text.split()).strip("[]"))
    return shown if len(shown) <= _LONGEST else shown[: _LONGEST - 3] + "..."
