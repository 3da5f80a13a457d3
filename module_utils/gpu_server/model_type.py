"""Is the type of a model known to what is installed? Read from files; importing the libraries would take a minute."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
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
    words, environment = launch.unwrap_command(words, environment)
    result, own_code = _read_config(evidence, model, environment)
    result["transformers"] = (installed.find_packages(evidence, words, environment) or {}).get("transformers")
    if result["model_type"] is not None:
        result["known"] = True if own_code else _known(evidence, result["model_type"], words, environment)
    return result


# Finds the tables without importing what they stand in; prints JSON.
_QUESTION = """
import json, os, sys
kind, places = sys.argv[1], sys.argv[2:]
found = {"transformers": None, "known": None}
for path in filter(None, sys.path):
    for name in os.listdir(path) if os.path.isdir(path) else ():
        if name.startswith("transformers-") and name.endswith(".dist-info"):
            found["transformers"] = found["transformers"] or name[len("transformers-"):-len(".dist-info")]
    for place in places:
        try:
            text = open(os.path.join(path, place), encoding="utf-8", errors="replace").read()
        except OSError:
            continue
        if '"%s"' % kind in text or "'%s'" % kind in text:
            found["known"] = True
        elif place.startswith("transformers") and found["known"] is None:
            found["known"] = False
print(json.dumps(found))
"""


def read_type_of_image(
    evidence: Evidence, model: str, environment: dict[str, str], ask: Callable[[list[str]], str]
) -> dict[str, Any]:
    """As `read_model_type`, with the engine of an image: `ask` runs words in it and gives back what they print."""
    result, own_code = _read_config(evidence, model, environment)
    if result["model_type"] is None:
        return result
    printed = ask(["python3", "-c", _QUESTION, result["model_type"], *_PLACES])
    try:
        told = values.parse_mapping(values.json_value(printed))
    except ValueError:  # an image without Python
        told = {}
    result["transformers"] = told.get("transformers")
    result["known"] = True if own_code else told.get("known")
    return result


def _read_config(evidence: Evidence, model: str, environment: dict[str, str]) -> tuple[dict[str, Any], bool]:
    """(what the model's config.json says; whether the model brings code of its own)."""
    result: dict[str, Any] = {"model_type": None, "known": None, "transformers": None, "config": None}
    for path in _configs(evidence, model, environment):
        reading = evidence.read(path, 4 << 20)
        if reading.ok:
            try:
                content = values.json_value(reading.text)
            except ValueError:
                continue
            if isinstance(content, dict) and isinstance(content.get("model_type"), str):
                result.update(config=path, model_type=content["model_type"])
                return result, bool(content.get("auto_map"))
    return result, False


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
