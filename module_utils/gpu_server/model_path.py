"""Is a model that is given as a path there, and can the server's user read it?

The engine's own message for that is about names on a hub.
"""

from __future__ import annotations

import posixpath

from ..gpu_host.evidence.interface import ABSENT, Evidence

SECONDS = 20.0


def find_problem(evidence: Evidence, model: str, user: str | None) -> str | None:
    """One sentence, or None: nothing is wrong, or `model` is a name on a hub."""
    if not model.startswith("/"):
        return None
    path = model.rstrip("/") or "/"
    around = evidence.list(posixpath.dirname(path))
    if around.status == ABSENT or (around.ok and posixpath.basename(path) not in around.entries):
        return "The model %s is not on this host" % path
    if not user:
        return None
    outcome = evidence.run(unreadable_command(path, user), SECONDS)
    if not outcome.ok or ("Permission denied" not in outcome.error_text and not outcome.text.strip()):
        return None
    which = outcome.text.strip() or path
    return "The server's user %s cannot read %s: chmod or chown it, or a directory above it" % (user, which)


def unreadable_command(path: str, user: str) -> tuple[str, ...]:
    """Prints the first file of the model that the user cannot read."""
    return ("runuser", "-u", user, "--", "find", "-L", path, "-maxdepth", "1", "!", "-readable", "-print", "-quit")
