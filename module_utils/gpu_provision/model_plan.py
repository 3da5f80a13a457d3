"""What has to be downloaded before a server can load its model: the cache, the hub's list and the free space."""

from __future__ import annotations

import json
import os
from typing import Any

from . import hub_cache
from .hub_client import REPOSITORY, REVISION, Hub, HubProblem

DEFAULT_REVISION = "main"
YES = ("1", "on", "true", "yes")
# Engines that fetch from another hub where this is set.
OTHER_HUBS = ("VLLM_USE_MODELSCOPE", "SGLANG_USE_MODELSCOPE", "LMDEPLOY_USE_MODELSCOPE", "LMDEPLOY_USE_OPENMIND_HUB")


def plan_download(
    model: str,
    revision: str | None,
    environment: dict[str, str],
    *,
    cache: str,
    left_out: list[str] | None = None,
    record: str | None = None,
) -> dict[str, Any]:
    """``{state, why, repository, revision, commit, cache, directory, files, present_files, total_bytes, present_bytes,
    missing_bytes, free_bytes, left_out, other_repositories}``.

    `state`: ``other`` (no repository of the hub, `why` says what else), ``complete`` (every file is there, by the
    hub's list or by `record`, the file in which a download before this one was noted), ``whole`` (the hub was not
    reached, and the weights in the cache are whole by their index and their own headers), ``missing``.
    HubProblem where files are missing and the hub does not give them, or the space for them is missing (``space``).
    """
    revision = revision or DEFAULT_REVISION
    plan: dict[str, Any] = {
        "state": "other", "why": None, "repository": model, "revision": revision, "commit": None, "cache": cache,
        "directory": None, "files": None, "present_files": None, "total_bytes": None, "present_bytes": None,
        "missing_bytes": None, "free_bytes": None, "left_out": [], "other_repositories": [],
    }  # fmt: skip
    plan["why"] = _find_other_source(model, environment)
    if plan["why"]:
        return plan
    if not REVISION.match(revision):
        raise HubProblem("no_revision", "The argument `revision` is %r, which is no name of a revision." % revision)
    directory = hub_cache.name_directory(cache, model)
    snapshot = hub_cache.read_snapshot(directory, revision)
    if snapshot and _is_as_recorded(snapshot, record, model):
        return {**plan, **_describe_snapshot(snapshot), "state": "complete", "why": "as it was downloaded"}
    offline = next((name for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE") if _is_set(environment, name)), None)
    try:
        if offline:
            text = "%s is set in inference_server_environment, and %s is not whole in %s. Unset it for the download."
            raise HubProblem("offline", text % (offline, model, cache))
        hub = Hub(environment)
        listed = hub.list_files(model, revision)
        selected = hub_cache.select_files(listed["files"], left_out)
        if not selected:
            raise HubProblem("not_found", "%s has no files at revision %s." % (model, revision))
        _measure(plan, directory, snapshot, listed, selected)
        if plan["state"] == "missing":
            hub.prove_access(model, listed["commit"], max(selected, key=lambda one: listed["files"][one]["size"] or 0))
    except HubProblem as problem:
        # What the hub said of a model matters less than that the model is here; what it said of the space does not.
        if snapshot and problem.kind != "space" and not hub_cache.find_faults(snapshot["path"]):
            why = "its weights are whole by their index and headers; not compared with the hub: %s" % problem.text
            return {**plan, **_describe_snapshot(snapshot), "state": "whole", "why": why}
        raise
    return plan


def _find_other_source(model: str, environment: dict[str, str]) -> str | None:
    if model.startswith("/"):
        return "it is a directory or a file of the host"
    if not REPOSITORY.match(model):
        return "it is no name of a repository (org/name)"
    other = next((name for name in OTHER_HUBS if _is_set(environment, name)), None)
    return "%s is set: the engine fetches it from another hub" % other if other else None


def _is_set(environment: dict[str, str], name: str) -> bool:
    return str(environment.get(name, "")).lower() in YES


def _measure(
    plan: dict[str, Any], directory: str, snapshot: dict[str, Any] | None, listed: dict[str, Any], selected: list[str]
) -> None:
    files = {name: listed["files"][name] for name in selected}
    here = snapshot["files"] if snapshot and snapshot["commit"] == listed["commit"] else {}
    # A mirror may list no sizes; then what is there is proven by its own header.
    absent = {name: one for name, one in files.items() if name not in here or one["size"] not in (None, here[name])}
    blobs = {one["etag"]: one["size"] for one in absent.values() if one["etag"] and one["size"]}
    partly = hub_cache.measure_blobs(directory, blobs)
    total = sum(one["size"] or 0 for one in files.values())
    missing = max(0, sum(one["size"] or 0 for one in absent.values()) - partly)
    left_out = sorted(set(listed["files"]) - set(selected))
    plan.update(
        commit=listed["commit"], directory=os.path.join(directory, "snapshots", listed["commit"]), files=len(files),
        present_files=len(files) - len(absent), total_bytes=total, present_bytes=total - missing,
        missing_bytes=missing, free_bytes=hub_cache.measure_free(directory), left_out=left_out,
        sizes={name: one["size"] for name, one in files.items()},
    )  # fmt: skip
    if not absent:
        plan.update(state="complete", why="every file of the hub's list is there", other_repositories=(
            hub_cache.find_other_repositories(plan["directory"])))  # fmt: skip
        return
    plan.update(state="missing", why="%d of %d files are missing" % (len(absent), len(files)))
    if plan["free_bytes"] is not None and missing > plan["free_bytes"]:
        text = (
            "%s needs %s more in %s, and only %s are free there: %s are missing. Free them, or name a larger place "
            "with HF_HOME in inference_server_environment."
        )
        short = missing - plan["free_bytes"]
        sizes = [format_bytes(one) for one in (missing, plan["free_bytes"], short)]
        raise HubProblem("space", text % (plan["repository"], sizes[0], plan["cache"], sizes[1], sizes[2]))


def _describe_snapshot(snapshot: dict[str, Any]) -> dict[str, Any]:
    total = sum(snapshot["files"].values())
    return {
        "commit": snapshot["commit"], "directory": snapshot["path"], "files": len(snapshot["files"]),
        "present_files": len(snapshot["files"]), "total_bytes": total, "present_bytes": total, "missing_bytes": 0,
        "other_repositories": hub_cache.find_other_repositories(snapshot["path"]),
    }  # fmt: skip


def _is_as_recorded(snapshot: dict[str, Any], record: str | None, model: str) -> bool:
    """Whether every file that was verified after a download is there, as large as it was."""
    try:
        with open(record or "", encoding="utf-8") as file:
            noted = json.load(file)
        same = noted["repository"] == model and noted["commit"] == snapshot["commit"]
        return bool(same and noted["files"]) and all(
            snapshot["files"].get(name) == size for name, size in noted["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def write_record(path: str, plan: dict[str, Any], sizes: dict[str, int]) -> None:
    """Note what was verified, for the run after this one."""
    noted = {"repository": plan["repository"], "commit": plan["commit"], "files": sizes}
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(noted, file, indent=1, sort_keys=True)
    os.replace(path + ".new", path)


def format_bytes(number: int) -> str:
    """ "405 GB": in powers of ten, as the hub and disks count."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return "%.3g %s" % (number / size, unit) if number < 1000 * size else "%d %s" % (number // size, unit)
    return "%d bytes" % number


def describe_plan(plan: dict[str, Any]) -> str:
    """What would be downloaded, and where to; one line."""
    text = "%s (revision %s, commit %s): %d of %d files, %s of %s, into %s" % (
        plan["repository"], plan["revision"], plan["commit"][:12], plan["files"] - plan["present_files"], plan["files"],
        format_bytes(plan["missing_bytes"]), format_bytes(plan["total_bytes"]), plan["cache"],
    )  # fmt: skip
    if plan["free_bytes"] is not None:
        text += " (%s free)" % format_bytes(plan["free_bytes"])
    return text + ("; left out: %s" % ", ".join(plan["left_out"][:4]) if plan["left_out"] else "")
