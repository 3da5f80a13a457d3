"""Which worker looks at which hosts of an inventory.

Hosts that are judged together stay together: a guest with its Proxmox host (`proxmox_host`), and hosts that serve one
model together (`inference_server_group`).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from typing import Any

from ansible import constants
from ansible.cli import CLI
from ansible.errors import AnsibleError
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from ansible.vars.manager import VariableManager

collector = importlib.import_module("ansible.module_utils.gpu_report.collector")

# Variables of a host that tie it to others: the name of one, or the name of a group that they share.
OTHER_HOST, COMMON_GROUP = "proxmox_host", "inference_server_group"


class FleetError(ValueError):
    """An inventory that cannot be spread; the message says why."""


def read_ties(sources: Sequence[str], limit: str = "", vault_files: Sequence[str] = ()) -> dict[str, tuple[str, str]]:
    """Host -> (its Proxmox host, the group that serves with it), "" where it has none; the hosts of the inventory."""
    try:
        loader = DataLoader()
        identities = list(constants.DEFAULT_VAULT_IDENTITY_LIST)
        loader.set_vault_secrets(
            CLI.setup_vault_secrets(loader, identities, vault_password_files=list(vault_files), auto_prompt=False)
        )
        inventory = InventoryManager(loader=loader, sources=list(sources))
        inventory.subset(limit or None)
        variables = VariableManager(loader=loader, inventory=inventory)
        return {host.name: _read_ties_of_host(loader, variables, host) for host in inventory.get_hosts()}
    except AnsibleError as error:
        raise FleetError(" ".join(str(error).split())) from error


def _read_ties_of_host(loader: Any, variables: Any, host: Any) -> tuple[str, str]:
    found = variables.get_vars(host=host)
    templar = Templar(loader=loader, variables=found)
    one, other = (str(templar.template(found.get(name)) or "") for name in (OTHER_HOST, COMMON_GROUP))
    return one, other


def plan_shares(ties: dict[str, tuple[str, str]], count: int) -> list[list[str]]:
    """At most `count` shares of about the same size, the largest groups placed first. None is empty."""
    shares: list[list[str]] = [[] for _number in range(count)]
    groups = _group_hosts(ties)
    for members in sorted(groups, key=lambda names: (-len(names), collector.natural_key(names[0]))):
        min(shares, key=len).extend(members)
    return [sorted(share, key=collector.natural_key) for share in shares if share]


def _group_hosts(ties: dict[str, tuple[str, str]]) -> Iterable[list[str]]:
    """The hosts, those that are tied to one another in one list."""
    leader = {name: name for name in ties}

    def find(name: str) -> str:
        while leader[name] != name:
            leader[name] = leader[leader[name]]
            name = leader[name]
        return name

    first_of: dict[str, str] = {}
    for name, (other, group) in ties.items():
        if other in leader:
            leader[find(name)] = find(other)
        if group:
            leader[find(name)] = find(first_of.setdefault(group, name))
    groups: dict[str, list[str]] = {}
    for name in ties:
        groups.setdefault(find(name), []).append(name)
    return groups.values()
