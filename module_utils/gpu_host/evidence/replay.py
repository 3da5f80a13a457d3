"""Facts of a recorded host, computed on the controller by the very code that runs on a live one."""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Iterable
from typing import Any, Callable

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from . import bundle as bundles

Load = Callable[[str], bundles.BundleEvidence]


def replay_facts(
    module_path: str, arguments: dict[str, Any], bundle_path: str, load: Load = bundles.load_bundle
) -> dict[str, Any]:
    """The result of the facts module at `module_path` for the evidence in `bundle_path`, which `load` reads.

    The module has ``facts(evidence, params) -> result`` and ARGUMENT_SPEC. ValueError (BundleError) names what is
    wrong.
    """
    module = _module(module_path)
    validation = ArgumentSpecValidator(module.ARGUMENT_SPEC).validate(arguments)
    if validation.error_messages:
        raise ValueError("; ".join(validation.error_messages))
    result: dict[str, Any] = module.facts(_bundle(bundle_path, load), validation.validated_parameters)
    return result


@functools.lru_cache(maxsize=1)
def _bundle(path: str, load: Load) -> bundles.BundleEvidence:
    return load(path)


@functools.cache
def _module(path: str) -> Any:
    name = "gpu_replay_" + os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError("%s cannot be imported" % path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def find_bundle(path: str, directories: Iterable[str | None]) -> str:
    """`path` itself if absolute, else the first existing one below `directories`, else below the first of them."""
    path = os.path.expanduser(path)
    if os.path.isabs(path):
        return path
    candidates = [os.path.join(directory, path) for directory in directories if directory]
    return next((candidate for candidate in candidates if os.path.exists(candidate)), candidates[0])
