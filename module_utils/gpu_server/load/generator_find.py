"""Which load generator of a host measures: the engine's own, guidellm, or the small one that comes with us; and as whom
it runs."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..engines import ENGINES
from . import generators
from .generators import BUILTIN, GENERATORS, GUIDELLM, Generator, Job

HELP_SECONDS = 240.0  # the first import of an engine from a cold disk
VERSION_SECONDS = 30.0
_VERSION = "import importlib.metadata as m, sys; sys.stdout.write(m.version(%r))"
_HUB = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE")
_PASSED_ON = ("LD_LIBRARY_PATH", "VIRTUAL_ENV", "CUDA_HOME", "PYTHONPATH")


@dataclass
class Found:
    """How a generator is started. `user` None: as whoever asks. `why` holds what spoke against the ones before it."""

    name: str
    version: str | None = None
    start: list[str] = field(default_factory=list)
    known: list[str] = field(default_factory=list)
    user: int | None = None
    why: list[dict[str, str]] = field(default_factory=list)

    def facts(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "version": self.version,
            "start": self.start,
            "known": self.known,
            "user": self.user,
            "passed_over": self.why,
        }


class NoGeneratorError(Exception):
    """The one that was asked for cannot be used; the text says why."""


def find(wanted: str, named: str | None, server: Mapping[str, Any], job: Job, directory: str) -> Found:
    """The generator to use. `wanted` is one of generators.NAMES, `named` a Python (or, for guidellm, its program) of
    the inventory.

    `server`: what the facts know: engine, python (its argv[0]), environment, user_id. Raises NoGeneratorError where
    `wanted` is not "auto".
    """
    why: list[dict[str, str]] = []
    if wanted == BUILTIN:
        return Found(BUILTIN)
    for generator in _order(wanted, server.get("engine")):
        try:
            found = _usable(generator, named, server, job, directory)
        except NoGeneratorError as error:
            if wanted != "auto":
                raise
            why.append({"name": generator.name, "why": str(error)})
            continue
        found.why = why
        return found
    return Found(BUILTIN, why=why)


def _order(wanted: str, engine: Any) -> list[Generator]:
    if wanted != "auto":
        return [GENERATORS[wanted]]
    entry = ENGINES.get(str(engine))
    return [entry.generator, GUIDELLM] if entry and entry.generator else [GUIDELLM]


def _usable(generator: Generator, named: str | None, server: Mapping[str, Any], job: Job, directory: str) -> Found:
    engine = ENGINES.get(str(server.get("engine")))
    if engine and engine.refuses_load:
        raise NoGeneratorError(engine.refuses_load)
    if generator.needs_tokenizer and not job.tokenizer:
        raise NoGeneratorError(
            "it needs the model's tokenizer, and the server's command line does not say where that is"
        )
    starts, version, user = _starts(generator, named, server, directory)
    lacking = _lacking(job.tokenizer, environment(server, user, directory)) if job.tokenizer else None
    if lacking:
        raise NoGeneratorError(lacking)
    problem = "it does not start"
    for start in starts:
        words = [*start, *generator.verb]
        for asked in generator.helps:
            code, text = _run([*words, asked], HELP_SECONDS, server, user, directory)
            if code != 0:
                how = "ended with %d" % code if code is not None else "did not end"
                problem = "%s %s %s: %s" % (" ".join(words), asked, how, generators.tail(text))
                continue
            problems = generators.faults(generator, text, job)
            if not problems:
                return Found(generator.name, version, words, generators.known_options(generator, text, job), user)
            problem = "%s does not fit: %s" % (version or "this version", "; ".join(problems))
    raise NoGeneratorError(problem)


def _lacking(tokenizer: str, settings: Mapping[str, str]) -> str | None:
    """Why the tokenizer cannot be loaded without fetching it; None where it seems to be here."""
    if tokenizer.startswith("/"):
        missing = "the tokenizer %s of the server's command line is not on this host, or not to be seen" % tokenizer
        return None if os.path.exists(tokenizer) else missing
    caches = [settings[name] for name in _HUB if name in settings]
    snapshots = [os.path.join(cache, "models--" + tokenizer.replace("/", "--"), "snapshots") for cache in caches]
    for path in snapshots:
        try:
            if os.listdir(path):
                return None
        except FileNotFoundError:
            continue
        except OSError:
            return None  # another user's, perhaps of the server that the generator runs as
    return "the tokenizer %s of the server's command line is not in the hub's cache (%s)" % (
        tokenizer,
        ", ".join(caches),
    )


def _starts(
    generator: Generator, named: str | None, server: Mapping[str, Any], directory: str
) -> tuple[list[list[str]], str | None, int | None]:
    """Command lines that may start it, its version, and as whom: the server's Python runs as the server's user, never
    as root for it."""
    program = named if named and os.path.basename(named) == generator.program else None
    if generator.program and not named:
        program = shutil.which(generator.program)
        if not program:
            raise NoGeneratorError(
                "it is not on the PATH of this host, and benchmark_generator_python names no environment that has it"
            )
    if program:
        if not os.access(program, os.X_OK):
            raise NoGeneratorError("%s cannot be run" % program)
        code, text = _run([program, "--version"], VERSION_SECONDS, server, None, directory)
        return [[program]], text.split()[-1] if code == 0 and text.strip() else None, None
    python, user = (named, None) if named else _python_of_server(server)
    if not python:
        raise NoGeneratorError("the server's command line does not say which Python it runs on")
    if not os.path.exists(python):
        raise NoGeneratorError(
            "there is no %s on this host%s" % (python, "" if named else " (does the server run in a container?)")
        )
    code, text = _run([python, "-c", _VERSION % generator.distribution], VERSION_SECONDS, server, user, directory)
    if code != 0:
        missing = "PackageNotFoundError" in text
        raise NoGeneratorError(
            "%s has no %s" % (python, generator.distribution) if missing else "%s: %s" % (python, generators.tail(text))
        )
    return (
        [[python, "-m", *module] for module in generator.modules],
        text.strip().splitlines()[-1] if text.strip() else None,
        user,
    )


def _python_of_server(server: Mapping[str, Any]) -> tuple[str | None, int | None]:
    """The server's interpreter, not resolved: a link is what makes a virtual environment. And the user that it belongs
    to."""
    first = str(server.get("python") or "")
    environment = server.get("environment") or {}
    path: str | None = first if first.startswith("/") else None
    if path and not os.path.basename(path).startswith(("python", "pypy")):
        path = os.path.join(
            os.path.dirname(path), "python"
        )  # the engine's own launcher, beside the Python that it uses
    if not path and first and "/" not in first and environment.get("VIRTUAL_ENV"):
        path = os.path.join(environment["VIRTUAL_ENV"], "bin", first)
    if not path and first and "/" not in first:
        path = shutil.which(first, path=environment.get("PATH") or None)
    user = server.get("user_id")
    return path, user if isinstance(user, int) and user != 0 and os.geteuid() == 0 else None


def environment(server: Mapping[str, Any], user: int | None, directory: str) -> dict[str, str]:
    """For a generator: the hub's cache of the server, since the tokenizer is there, but nothing fetched and nothing
    written outside `directory`."""
    theirs: Mapping[str, str] = server.get("environment") or {}
    home = theirs.get("HOME") or os.environ.get("HOME") or "/root"
    cache = theirs.get("HF_HOME") or os.path.join(
        theirs.get("XDG_CACHE_HOME") or os.path.join(home, ".cache"), "huggingface"
    )
    made = {
        "PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8", "PYTHONUNBUFFERED": "1", "TMPDIR": directory,
        "HOME": home if user is not None else os.environ.get("HOME", "/root"),
        "HF_HOME": os.path.join(directory, "huggingface"), "HF_HUB_CACHE": os.path.join(cache, "hub"),
        "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
    }  # fmt: skip
    made.update({name: theirs[name] for name in _HUB if theirs.get(name)})
    if user is not None or os.geteuid() == server.get("user_id"):
        made.update({name: theirs[name] for name in _PASSED_ON if theirs.get(name)})
    return made


def workplace(directory: str, user: int | None) -> str:
    """A directory inside `directory` for what runs as `user`, and nobody else's: `python -m` takes modules from where
    it stands."""
    place = os.path.join(directory, "work" if user is None else "work-%d" % user)
    os.makedirs(place, 0o700, exist_ok=True)
    if user is not None:
        # The way into its own directory; what lies beside that is not listed and not secret.
        os.chmod(directory, 0o711)  # noqa: S103
        os.chown(place, user, as_user(user)["group"])
    return place


def as_user(user: int | None) -> dict[str, Any]:
    """Arguments of Popen that make a child of root another user's."""
    if user is None:
        return {}
    try:
        entry = pwd.getpwuid(user)
    except KeyError:  # a unit's dynamic user
        return {"user": user, "group": user, "extra_groups": []}
    return {"user": user, "group": entry.pw_gid, "extra_groups": os.getgrouplist(entry.pw_name, entry.pw_gid)}


def _run(
    words: Sequence[str], limit: float, server: Mapping[str, Any], user: int | None, directory: str
) -> tuple[int | None, str]:
    """Exit code (None: it did not end) and what it printed."""
    try:
        place = workplace(directory, user)
        done = subprocess.run(
            list(words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=limit, check=False, cwd=place,
            env=environment(server, user, place), **as_user(user),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None, "no answer within %d s" % limit
    except (OSError, subprocess.SubprocessError) as error:
        return 126, "%s: %s" % (words[0], error)
    return done.returncode, done.stdout.decode("utf-8", "replace")
