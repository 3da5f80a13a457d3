"""A host that answers what is no answer, or none within the limit, in words that say what to do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..gpu_host.evidence import secrets

_SHOWN = 60


def explain_wrong_answer(result: Mapping[str, Any]) -> str:
    """What was wrong with a failed task, and what to do. Empty where the host did answer, or says itself what is wrong.

    Ansible ends a task that is over its limit with ``timedout: {period: seconds}``. A module that failed ends with a
    status other than 0: one that ends with 0 and has no result was not run by a Python at all, or its result is lost
    in what something else prints.
    """
    limit = result.get("timedout")
    if limit:
        seconds = limit.get("period") if isinstance(limit, Mapping) else None
        return (
            "the host took the connection and gave no answer%s: a process of it hangs, as on a file system or a device "
            "that is gone. Log in and look at dmesg and at `ps -eo pid,stat,wchan:30,args` (state D: it waits for the "
            "kernel). host_validation_timeout is the limit." % (" within %s s" % seconds if seconds else "")
        )
    printed = str(result.get("module_stdout") or "")
    if result.get("rc") == 0 and printed and not result.get("checks"):
        return (
            "the host printed what is no result of a module, and ended with exit status 0. It begins with: %s. Its "
            "login shell or its Python prints that: look at what `ssh HOST true` prints, which has to be nothing, and "
            "at ansible_python_interpreter." % _show_beginning(printed)
        )
    return ""


def _show_beginning(printed: str) -> str:
    """Data of the host: what of it can be read, on one line, without what looks like a secret."""
    readable = str(secrets.redact_strings(" ".join(re.sub(r"[^\x20-\x7e]+", " ", printed[:2000]).split())))
    return "%s (%d characters in all)" % (readable[:_SHOWN] or "nothing that can be read", len(printed))
