"""Where the kernel log of this boot is read, in this order, and what counts as a refusal."""

from __future__ import annotations

from ..evidence.errors import Errors
from ..evidence.interface import ABSENT, Evidence, Outcome

DMESG = ("dmesg",)
# The newest lines: a flooded journal must not hide what happened last.
JOURNAL = ("journalctl", "-k", "-b", "-o", "short-unix", "--no-pager", "-n", "100000")
KERN_LOG = ("tail", "-c", "4194304", "/var/log/kern.log")
SECONDS = 20.0
_REFUSALS = ("not permitted", "permission denied", "insufficient permissions", "klogctl: operation")


def is_refused(outcome: Outcome) -> bool:
    text = outcome.error_text.lower()
    return any(words in text for words in _REFUSALS)


def cut_to_this_boot(outcome: Outcome) -> bytes:
    """The output from the last boot on; without its last line if that was cut off."""
    data = outcome.stdout
    if outcome.truncated:
        data = data[: data.rfind(b"\n") + 1]
    if outcome.argv == KERN_LOG:
        boot = data.rfind(b"] Linux version ")
        data = data[data.rfind(b"\n", 0, boot) + 1 :] if boot >= 0 else data
    return data


def explain_unread(outcome: Outcome, errors: Errors, quiet: bool) -> None:
    if quiet:
        return
    if not outcome.ok:
        errors.unanswered(outcome)
    elif is_refused(outcome):
        errors.add(" ".join(outcome.argv), "needs root", needs_root=True)
    else:
        errors.add(" ".join(outcome.argv), "ended with %s: %s" % (outcome.ending, outcome.error_text.strip()[:200]))


def read_first_log(evidence: Evidence, errors: Errors) -> tuple[str, bool]:
    """(the text of the first of the three that answers and reaches back to the boot, whether one answered whole).

    Where none reaches back, the first that answered. Text of one that ended in a refusal, or that was cut off, still
    counts for what it shows. An empty journal is no log: an ordinary user gets one.
    """
    answered, shown = None, ""
    for argv in (DMESG, JOURNAL, KERN_LOG):
        outcome = evidence.run(argv, SECONDS)
        text = cut_to_this_boot(outcome).decode("utf-8", "replace")
        if outcome.succeeded and not is_refused(outcome):
            if "Linux version " in text:
                return text, True
            if answered is None and (text.strip() or argv == DMESG):
                answered = text
        else:
            quiet = argv != DMESG and (answered is not None or outcome.status == ABSENT)
            explain_unread(outcome, errors, quiet)
            shown += text
    return (shown, False) if answered is None else (answered, True)
