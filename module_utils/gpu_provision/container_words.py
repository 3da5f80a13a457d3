"""The words that run an engine in a container, for `podman run` and `docker run`.

One container holds the whole server, with all its ranks: it has the network of the host, an IPC namespace of its own
with a large /dev/shm, the GPUs, its home and the directories of the model at the same paths as on the host.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ..gpu_host.evidence.interface import Evidence

STOP_SECONDS = 90
TRIAL_HOME = "/tmp"  # noqa: S108  in a container that is removed
NOBODY = "65534:65534"
_SECRET = re.compile(r"\$\{(\w+)\}\Z")
# Where engines and hubs keep gigabytes, or what makes their next start fast.
CACHES = (
    "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE", "XDG_CACHE_HOME", "TRITON_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR", "VLLM_CACHE_ROOT", "SGLANG_CACHE_DIR",
)  # fmt: skip


def make_run_words(plan: Mapping[str, Any]) -> dict[str, Any]:
    """``{options, image, words}`` of a container that serves; each option is one word, `--name` or `--name=value`.

    `plan`: runtime (podman, docker), name, image, user ("999:998"), home, nofile, shm_size, gpu_options, init, selinux,
    slice (for docker), volumes (make_volumes), environment, secrets (their names: the client has the values in its
    environment), options (of the inventory, which override), command, arguments.
    """
    podman = plan["runtime"] == "podman"
    command, options = _make_command(plan)
    common = [
        "--name=%s" % plan["name"],
        # The host's network: the server listens where its arguments say, behind the host's own firewall (docker's
        # published ports go around it), and NCCL sees the interfaces that lead to other hosts.
        "--network=host",
        # The host's /dev/shm would keep what a server leaves that was killed.
        *([] if any(str(one).startswith("--ipc") for one in plan["options"]) else ["--shm-size=%s" % plan["shm_size"]]),
        *_make_surroundings(plan, podman),
        *_make_security(plan, podman),
        *(["--init"] if plan["init"] else []),
        "--stop-timeout=%d" % STOP_SECONDS,
        "--workdir=%s" % plan["home"],
        "--pull=never",  # it was fetched before the former server stopped
        *plan["gpu_options"],
        *("--volume=%s" % one for one in plan["volumes"]),
        *("--env=%s=%s" % item for item in sorted(_text(plan["environment"]).items())),
        *("--env=%s" % name for name in sorted(plan["secrets"])),
        *options,
        *(str(one) for one in plan["options"]),
    ]
    return {"options": common, "image": plan["image"], "words": command}


def _make_surroundings(plan: Mapping[str, Any], podman: bool) -> list[str]:
    """Limits, where its output goes, its cgroup."""
    if podman:
        # The limits of the unit: systemd lowers what the host does not allow (in a container, say), podman would fail.
        # Podman's own limit of 2048 threads is too low for eight ranks. Its output is the unit's.
        return ["--ulimit=host", "--pids-limit=0", "--log-driver=passthrough"]
    return [
        "--ulimit=memlock=-1", "--ulimit=stack=67108864:-1", "--ulimit=nofile=%d:%d" % ((plan["nofile"],) * 2),
        # What it prints comes out of the client as well, and that is the unit's; docker's own copy would grow for ever.
        "--log-driver=none",
        "--cgroup-parent=%s" % plan["slice"],
    ]  # fmt: skip


def _make_security(plan: Mapping[str, Any], podman: bool) -> list[str]:
    found = ["--user=%s" % plan["user"], "--cap-drop=all", "--security-opt=no-new-privileges"]
    if not podman:
        # Its user gets neither. Docker's seccomp profile allows mbind only with the one, pidfd_getfd (by which ranks
        # hand on GPU memory) only with the other; podman's allows both.
        found += ["--cap-add=SYS_NICE", "--cap-add=SYS_PTRACE"]
    if plan["selinux"]:
        # As NVIDIA's toolkit asks for; a new label on a shared directory of models would lock others out of it.
        found += ["--security-opt=label=disable"]
    return found


def make_trial_words(plan: Mapping[str, Any], words: Sequence[str], with_gpus: bool = False) -> list[str]:
    """A throw-away container of the image, without network and without GPUs, that runs `words` and is removed.

    `plan` as above: program, name, image, user, environment, gpu_options, readable.
    """
    environment = {**_text(plan["environment"]), "HOME": TRIAL_HOME}
    # A user that is not there yet, in check mode, is known to no image by its name.
    plan = {**plan, "user": plan["user"] if ":" in plan["user"] else NOBODY}
    for name in CACHES:  # on no disk that it sees
        environment.pop(name, None)
    return [
        plan["program"], "run", "--rm", "--name=%s" % make_trial_name(plan["name"]), "--network=none", "--pull=never",
        *(["--pids-limit=0"] if plan["runtime"] == "podman" else []),
        *_make_security(plan, plan["runtime"] == "podman"),
        *(plan["gpu_options"] if with_gpus else []),
        *("--volume=%s:%s:ro" % (one, one) for one in plan["readable"]),
        *("--env=%s=%s" % item for item in sorted(environment.items())),
        *(str(one) for one in plan["options"] if not str(one).startswith("--network")),
        "--entrypoint=%s" % words[0], plan["image"], *words[1:],
    ]  # fmt: skip


def make_trial_name(name: str) -> str:
    return name + "-check"


def _make_command(plan: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """(the words behind the image, the option that names the program).

    An argument that is a secret is filled in by a shell inside, so that its value stands in no command line but the
    engine's own, and not in what the runtime notes of the container.
    """
    words, secret = list(plan["command"]), []
    for name, value in plan["arguments"].items():
        if value is None or value is False:
            continue
        given = [] if value is True else list(value) if isinstance(value, (list, tuple)) else [value]
        given = [str(one) for one in given]
        names = [match[1] for match in map(_SECRET.match, given) if match]
        if any(one in plan["secrets"] for one in names):
            secret += ["--%s" % name, *(_quote(one, plan["secrets"]) for one in given)]
        else:
            words += ["--%s" % name, *given]
    if secret:
        return ["-c", 'exec "$@" %s' % " ".join(secret), plan["name"], *words], ["--entrypoint=sh"]
    return words[1:], ["--entrypoint=%s" % words[0]]


def _quote(text: str, secrets: Sequence[str]) -> str:
    match = _SECRET.match(text)
    return '"$%s"' % match[1] if match and match[1] in secrets else shlex.quote(text)


def make_volumes(home: str, model: str, readable: Sequence[str], writable: Sequence[str]) -> list[str]:
    """`path:path` and `path:path:ro`: the home and what is written to, the model and what is read.

    What lies in a directory that is there already is not mounted again. The model of a hub's cache is mounted with its
    blobs, which its files are links to.
    """
    found: dict[str, str] = {}
    for path in sorted({home, *(one.lstrip("+-") for one in writable)}):
        if not _find_holder(path, found):
            found[path] = "%s:%s" % (path, path)
    for path in sorted({*readable, *([find_model_root(model)] if model.startswith("/") else [])}):
        if not _find_holder(path, found):
            found[path] = "%s:%s:ro" % (path, path)
    return list(found.values())


def find_model_root(model: str) -> str:
    """The directory to mount for a model: models--ORG--NAME of a hub's cache, else its own.

    A model of one file is in the directory that holds it, together with its other parts.
    """
    match = re.match(r"(/.*?/models--[^/]+)/snapshots/", model)
    if match:
        return match[1]
    return model.rpartition("/")[0] if model.endswith(".gguf") else model.rstrip("/")


def _find_holder(path: str, mounted: Mapping[str, str]) -> str | None:
    return next((one for one in mounted if path == one or path.startswith(one.rstrip("/") + "/")), None)


def find_unseen(volumes: Sequence[str], settings: Mapping[str, Any]) -> list[str]:
    """The names of those `settings` whose value is an absolute path that no volume holds."""
    mounted = {one.partition(":")[0]: one for one in volumes}
    return [
        str(name)
        for name, value in settings.items()
        if isinstance(value, str) and value.startswith("/") and not _find_holder(value, mounted)
    ]


def find_outside_links(evidence: Evidence, model: str, volumes: Sequence[str]) -> list[str]:
    """The links in the directory of a model whose target no volume holds."""
    if not model.startswith("/"):
        return []
    found = []
    for name, entry in sorted(evidence.list(model.rstrip("/")).entries.items()):
        if entry.target:
            target = posixpath.normpath(posixpath.join(model, entry.target))
            if find_unseen(volumes, {name: target}):
                found.append("%s -> %s" % (name, entry.target))
    return found


def _text(environment: Mapping[str, Any]) -> dict[str, str]:
    return {str(name): str(value) for name, value in environment.items()}
