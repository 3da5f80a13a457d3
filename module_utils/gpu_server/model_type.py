"""Is the type of a model known to what is installed? Read from files; importing the libraries would take a minute."""

from __future__ import annotations

import posixpath
import re
from typing import Any

from ..gpu_host.evidence import values
from ..gpu_host.evidence.interface import Evidence
from . import installed, launch
from .engines import ENGINES

_PLACES = (
    "transformers/models/auto/configuration_auto.py",
    "transformers/models/auto/auto_mappings.py",
    *(place for engine in ENGINES.values() for place in engine.model_type_files),
)


def read_model_type(evidence: Evidence, model: str, words: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """``{model_type, known, transformers, config}``.

    `model_type` None where the model's config.json is not on this host (yet).
    """
    result: dict[str, Any] = {"model_type": None, "known": None, "transformers": None, "config": None}
    words, environment = launch.unwrap_command(words, environment)
    result["transformers"] = (installed.find_packages(evidence, words, environment) or {}).get("transformers")
    for path in _configs(evidence, model, environment):
        reading = evidence.read(path, 4 << 20)
        if reading.ok:
            try:
                content = values.json_value(reading.text)
            except ValueError:
                continue
            if isinstance(content, dict) and isinstance(content.get("model_type"), str):
                result.update(config=path, model_type=content["model_type"])
                result["known"] = (
                    True if content.get("auto_map") else _known(evidence, content["model_type"], words, environment)
                )
                break
    return result


def _configs(evidence: Evidence, model: str, environment: dict[str, str]) -> list[str]:
    if model.startswith("/"):
        return [model.rstrip("/") + "/config.json"]
    home = environment.get("HF_HOME") or posixpath.join(environment.get("HOME") or "/root", ".cache/huggingface")
    snapshots = "%s/hub/models--%s/snapshots" % (home.rstrip("/"), model.replace("/", "--"))
    return ["%s/%s/config.json" % (snapshots, name) for name in evidence.list(snapshots).entries]


def _known(evidence: Evidence, model_type: str, words: list[str], environment: dict[str, str]) -> bool | None:
    """Whether a table of the installed libraries names it; None where none of the tables is found."""
    sign = re.compile(r"""["']%s["']""" % re.escape(model_type))
    seen = None
    for directory in installed.find_directories(evidence, words, environment):
        for place in _PLACES:
            reading = evidence.read("%s/%s" % (directory, place), 4 << 20)
            if reading.ok:
                if sign.search(reading.text):
                    return True
                seen = False if place.startswith("transformers") else seen
    return seen
