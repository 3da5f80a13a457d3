"""Variables that are wrong are named, each by the name that the inventory has for it."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.gpu_checks import run_options


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"gpu_host_expected": {"gpus": {"cont": 8}}}, "gpu_host_expected.gpus.cont. Supported parameters include: "),
        ({"gpu_host_expected": "gpus"}, "gpu_host_expected must be a dictionary, and is gpus"),
        ({"gpu_host_expected": '{"gpus": {"count": 8}}'}, 'gpu_host_expected must be a dictionary, and is {"gpus"'),
        ({"gpu_host_expected": None}, "gpu_host_expected must be a dictionary, and is None"),
        ({"gpu_host_expected_here": {"gpus": 8}}, "gpu_host_expected_here.gpus must be a dictionary, and is 8"),
        ({"gpu_host_expected": {"gpus": [8]}}, "gpu_host_expected.gpus must be a dictionary, and is [8]"),
        ({"gpu_host_expected": {"gpus": {"count": "many"}}}, "'count' is of type str found in 'gpu_host_expected"),
        ({"host_validation_probe": "perhaps"}, "host_validation_probe must be one of: auto, true, false, force"),
        ({"host_validation_timeout": "long"}, "'host_validation_timeout' is of type str"),
        ({"gpu_host_waivers": "all"}, "gpu_host_waivers: "),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(variables: dict[str, Any], said: str) -> None:
    found = run_options.find_wrong_variables({**variables, "another": 1}, lambda value: value)
    assert any(said in problem for problem in found), found


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"gpu_host_expected": {"gpus": {"count": 8}, "server": None}},
        {"host_validation_timeout": "300", "host_validation_probe": "auto"},
        {"gpu_host_waivers": [{"check": "pci_acs", "reason": "accepted", "expires": "2027-01-01"}]},
    ],
)
def test_what_is_right_is_not(variables: dict[str, Any]) -> None:
    assert run_options.find_wrong_variables(variables, lambda value: value) == []


def test_values_are_filled_in_before_they_are_judged() -> None:
    found = run_options.find_wrong_variables(
        {"host_validation_timeout": "{{ x }}"}, lambda values: dict.fromkeys(values, "none")
    )
    assert len(found) == 1
    assert "'none' cannot be converted" in found[0] or "\"'none'\" cannot be converted" in found[0], found
