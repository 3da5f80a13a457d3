"""The expectations that checks read are those that the role accepts, and each is documented."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.gpu_checks import checks, engine, expressions
from ansible.module_utils.gpu_host.virtualization import PLACEMENTS

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = yaml.safe_load((ROOT / "roles/host_validation/meta/argument_specs.yml").read_text())["argument_specs"][
    "main"
]["options"]
EXPECTED = OPTIONS["gpu_host_expected"]["options"]


def read_by_checks() -> dict[tuple[str, ...], str]:
    """Every expected.… path in the checks, with the check that reads it."""
    found: dict[tuple[str, ...], str] = {}
    for path in sorted((ROOT / "checks").glob("*.yml")):
        for item in checks.with_on(yaml.safe_load(path.read_text())):
            read: list[tuple[str, ...]] = [tuple(need.split(".")) for need in item.get("needs", ())]
            for _where, condition in checks._conditions_of(item):
                read += expressions.reads(str(condition)).paths
            for _where, text in checks._texts_of(item):
                read += expressions.reads_of_text(text).paths
            found.update({where: item["id"] for where in read if where[0] == "expected"})
    return found


def test_every_expectation_of_a_check_is_accepted_by_the_role() -> None:
    unknown = {}
    for where, check in read_by_checks().items():
        options: Any = EXPECTED
        for part in where[1:]:
            if options is None:  # a free dictionary: modules.options
                break
            if part not in options:
                unknown[".".join(where)] = check
                break
            options = options[part].get("options")
    assert unknown == {}


def test_every_expectation_of_the_role_is_read_by_a_check() -> None:
    read = {where[1:3] for where in read_by_checks()}
    unread = [
        (section, name) for section, spec in EXPECTED.items() for name in spec["options"] if (section, name) not in read
    ]
    assert unread == []


def test_every_section_is_there_for_the_checks() -> None:
    assert set(EXPECTED) <= set(engine.SECTIONS)


def test_every_default_and_option_agree() -> None:
    defaults = yaml.safe_load((ROOT / "roles/host_validation/defaults/main.yml").read_text())
    assert set(defaults) <= set(OPTIONS)
    assert {name: value for name, value in defaults.items() if OPTIONS[name].get("default") != value} == {}


def test_every_placement_can_be_expected() -> None:
    spec = OPTIONS["gpu_host_expected"]["options"]["virtualization"]["options"]["placement"]
    assert spec["choices"] == list(PLACEMENTS)


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ({"gpus": {"cuont": 8}}, "gpu_host_expected.gpus.cuont"),
        ({"gpu": {"count": 8}}, "gpu_host_expected.gpu"),
        ({"gpus": {"count": "eight"}}, "count"),
        ({"virtualization": {"placement": "metal"}}, "placement"),
    ],
)
def test_a_misspelt_expectation_is_refused(expected: dict[str, Any], message: str) -> None:
    result = ArgumentSpecValidator(OPTIONS).validate({"gpu_host_expected": expected})
    assert message in "\n".join(result.error_messages)
