"""What the collection's files say in the place of the clone's short names, and what they leave as it is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import build_collection
import qualify_names
from qualify_names import NamesError, qualify_markdown, qualify_python, qualify_yaml

NAMES = qualify_names.Names(
    collection="a.b",
    modules=frozenset({"look", "look_again"}),
    actions=frozenset({"look", "base"}),
    filters=frozenset({"plan"}),
    fragments=frozenset({"common"}),
    roles=frozenset({"look", "guard"}),
    playbooks=frozenset({"validate"}),
    utils=frozenset({"gpu_x"}),
)

TASKS = """---
# look: stays here, and so does this comment
- name: look at ü
  look:
    look: guard
  register: look  # look
  vars: {look: guard, guard: look}
- block:
    - look_again: {}
    - a.c.look:
    - ansible.builtin.include_role: {name: guard, apply: {tags: [look]}}
      vars: {name: guard}
    - include_role:
        name: "guard"
  rescue:
    - action: look name=guard
    - ansible.builtin.debug:
        msg: "{{ x | plan(1) | planned | a.c.plan }} ansible-playbook validate.yml, validate.yml"
      module_defaults: {look: {}}
      when: look.plan
"""
QUALIFIED = """---
# look: stays here, and so does this comment
- name: look at ü
  a.b.look:
    look: guard
  register: look  # look
  vars: {look: guard, guard: look}
- block:
    - a.b.look_again: {}
    - a.c.look:
    - ansible.builtin.include_role: {name: a.b.guard, apply: {tags: [look]}}
      vars: {name: guard}
    - include_role:
        name: "a.b.guard"
  rescue:
    - action: a.b.look name=guard
    - ansible.builtin.debug:
        msg: "{{ x | a.b.plan(1) | planned | a.c.plan }} ansible-playbook a.b.validate, validate.yml"
      module_defaults: {a.b.look: {}}
      when: look.plan
"""


def test_tasks() -> None:
    assert qualify_yaml(TASKS, NAMES) == QUALIFIED
    assert qualify_yaml(QUALIFIED, NAMES) == QUALIFIED


def test_plays_and_where_they_write() -> None:
    play = "- hosts: look\n  roles: [guard, {role: look}, other]\n  vars: {d: '{{ playbook_dir | dirname }}/reports'}\n"
    wanted = "- hosts: look\n  roles: [a.b.guard, {role: a.b.look}, other]\n  vars: {d: '{{ %s }}/reports'}\n"
    assert qualify_yaml(play, NAMES) == wanted % "playbook_dir | dirname"
    assert qualify_yaml(play, NAMES, in_playbooks=True) == wanted % "'.' | ansible.builtin.realpath"


def test_a_file_of_variables_has_no_tasks() -> None:
    text = "look: 1\nguard: [look]\ntasks_of: {look: guard}\n"
    assert qualify_yaml(text, NAMES) == text


@pytest.mark.parametrize("text", ["- look: [", "- action: >-\n    look\n", "x: *nothing"])
def test_a_text_that_cannot_be_read_is_named(text: str) -> None:
    with pytest.raises(NamesError, match="line"):
        qualify_yaml(text, NAMES)


MODULE = '''"""look, of ansible.module_utils.gpu_x; ansible-playbook validate.yml"""
import importlib
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpu_x.rooms import (
    look,  # ansible.module_utils.gpu_x
)
import ansible.module_utils.gpu_x as x
DOCUMENTATION = r"""
module: look
description: Ö, as M(look), M(other) and C(look)
extends_documentation_fragment:
  - common
  - common.part
  - default_callback
"""
EXAMPLES = r"""
- name: look
  look:
    look: 1
"""
one = importlib.import_module("ansible.module_utils.gpu_x.a")
two = importlib.import_module("ansible.module_utils." + one)
three = importlib.import_module("ansible.module_utils.basic")
Base = action_loader.get("base", class_only=True)
Other = lookup_loader.get("base")
name = "look"
'''
P = "ansible_collections.a.b.plugins.module_utils."


def test_python() -> None:
    wanted = MODULE
    for old, new in (
        ("-playbook validate.yml", "-playbook a.b.validate"),
        ("from ansible.module_utils.gpu_x.", "from %sgpu_x." % P),
        ("import ansible.module_utils.gpu_x", "import %sgpu_x" % P),
        ("M(look)", "M(a.b.look)"),
        ("- common", "- a.b.common"),
        ("\n  look:\n", "\n  a.b.look:\n"),
        ('"ansible.module_utils.gpu_x.a"', '"%sgpu_x.a"' % P),
        ('"ansible.module_utils." +', '"%s" +' % P),
        ('action_loader.get("base"', 'action_loader.get("a.b.base"'),
    ):
        assert old in wanted
        wanted = wanted.replace(old, new)
    assert qualify_python(MODULE, NAMES) == wanted


@pytest.mark.parametrize(
    "text", ["def M(", "from ansible.module_utils import gpu_x", 'DOCUMENTATION = "a: b\\n"', "RETURN = ''.join(x)"]
)
def test_python_that_could_not_work_is_named(text: str) -> None:
    with pytest.raises(NamesError, match="line 1"):
        qualify_python(text, NAMES)


def test_markdown() -> None:
    text = "look, `ansible-playbook validate.yml -b`\n```yaml\n# look\n- hosts: all\n  roles: [guard]\n```\n"
    text += "```\n- look:\n```\n"
    wanted = text.replace("validate.yml", "a.b.validate").replace("[guard]", "[a.b.guard]")
    assert qualify_markdown(text, NAMES) == wanted


def test_what_galaxy_is_told() -> None:
    assert build_collection.name_collection("gpu-host-validation") == ("gpu_host", "validation")
    assert build_collection.find_supported_ansible(["x>=1", "ansible-core>=2.19,<2.22"]) == ">=2.19.0,<2.22.0"
