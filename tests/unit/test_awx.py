"""awx/survey.json asks for what validate.yml takes, and execution-environment.yml holds what the project needs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import tomllib
import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.gpu_checks import check_cache
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

ROOT = Path(__file__).resolve().parents[2]
SURVEY = json.loads((ROOT / "awx" / "survey.json").read_text())
QUESTIONS = {question["variable"]: question for question in SURVEY["spec"]}
ROLE = ROOT / "roles" / "host_validation"
OPTIONS = yaml.safe_load((ROLE / "meta" / "argument_specs.yml").read_text())["argument_specs"]["main"]["options"]
ENVIRONMENT = yaml.safe_load((ROOT / "execution-environment.yml").read_text())
# Type of a question -> of the option that it may answer. The answers of AWX are strings, or a list of them.
TYPES = {"multiplechoice": {"str", "bool"}, "multiselect": {"list"}, "text": {"str", "path"}, "integer": {"int"}}


@pytest.fixture(scope="module")
def defaults() -> dict[str, Any]:
    """The defaults of the role, as they are where nobody says anything."""
    loader = DataLoader()
    values = loader.load_from_file(str(ROLE / "defaults" / "main.yml"), trusted_as_template=True)
    return dict(Templar(loader=loader, variables={}).template(values))


def test_it_is_a_survey() -> None:
    """The form that AWX asks for (awx/api/views, JobTemplateSurveySpec)."""
    assert set(SURVEY) == {"name", "description", "spec"} and SURVEY["spec"]
    assert len(QUESTIONS) == len(SURVEY["spec"]), "a variable is asked for twice"
    for question in SURVEY["spec"]:
        wanted = {"question_name", "question_description", "variable", "type", "choices", "default", "required"}
        assert set(question) == wanted and isinstance(question["required"], bool)
        assert re.fullmatch(r"\w+", question["variable"])
        assert all(isinstance(choice, str) for choice in question["choices"])
        assert question["default"] in question["choices"] or (question["default"] == "" and not question["required"])


@pytest.mark.parametrize("variable", QUESTIONS)
def test_it_asks_for_what_the_playbook_takes(variable: str, defaults: dict[str, Any]) -> None:
    question, option = QUESTIONS[variable], OPTIONS[variable]
    assert option["type"] in TYPES[question["type"]]
    if "choices" in option:
        assert sorted(question["choices"]) == sorted(option["choices"]), "it offers all of them"
    spec = ArgumentSpecValidator({variable: {name: option[name] for name in ("type", "choices") if name in option}})
    for choice in question["choices"]:
        answer = [choice] if question["type"] == "multiselect" else choice
        assert spec.validate({variable: answer}).error_messages == []
    unchanged = spec.validate({variable: question["default"] or []}).validated_parameters[variable]
    assert unchanged == defaults[variable], "who changes nothing in the survey gets what a run without it does"


def test_the_tags_are_those_of_checks() -> None:
    known = {tag for check in check_cache.load_checks_cached() for tag in check.tags}
    assert set(QUESTIONS["host_validation_tags"]["choices"]) <= known


def test_the_playbook_is_the_one_of_that_role() -> None:
    plays = yaml.safe_load((ROOT / "playbooks" / "validate.yml").read_text())
    assert plays[0]["tasks"][0]["ansible.builtin.import_role"]["name"] == "host_validation"


def test_the_image_holds_the_dependencies_by_our_versions() -> None:
    named = ENVIRONMENT["dependencies"]
    packages = {named["ansible_core"]["package_pip"], named["ansible_runner"]["package_pip"], *named["python"]}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert packages == {re.match(r"[\w-]+", words)[0].lower() for words in project}
    pinned = {line.partition("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert packages <= pinned
    steps = ENVIRONMENT["additional_build_steps"]["prepend_base"]
    for file in ENVIRONMENT["additional_build_files"]:
        assert (ROOT / file["src"]).is_file()
        assert any(step.startswith("COPY _build/%s/%s " % (file["dest"], file["src"])) for step in steps)
