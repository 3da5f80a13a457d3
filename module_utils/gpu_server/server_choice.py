"""Which of a host's servers is looked at: by its unit, its container's name, its port, or the oldest one."""

from __future__ import annotations

from typing import Any

from ..gpu_host.evidence import values
from ..gpu_host.evidence.errors import Errors
from ..gpu_host.evidence.interface import Evidence
from . import engines, other_servers, processes
from .containers import container_reader, namespaces
from .engines import Engine


def choose_server(
    evidence: Evidence,
    found: list[other_servers.Found],
    params: dict[str, Any],
    table: dict[int, processes.Process],
    errors: Errors,
) -> Any:
    """The server that the parameters name (by unit, else by port); the oldest where they name none."""
    if params.get("unit"):
        wanted = name_service(params["unit"])
        by_unit = (
            one
            for one in found
            if processes.is_of_unit(evidence, one[0].pid, wanted)
            or find_unit_of_server(evidence, one[0].pid, table, errors) == wanted
        )
        return next(by_unit, None) or _find_named(evidence, found, params["unit"], errors)
    if params.get("port"):
        for top, words, engine in found:
            environment = processes.read_environment(evidence, top.pid, errors) if engine.settings_prefix else None
            if find_port(engine, engines.find_settings(engine, words, environment)) == params["port"]:
                return top, words, engine
        return _find_published(evidence, found, params["port"], table, errors)
    return found[0] if found else None


def _find_named(
    evidence: Evidence, found: list[other_servers.Found], name: str, errors: Errors
) -> other_servers.Found | None:
    """The server in the container of this name or id."""
    return next((one for one in found if container_reader.is_named(evidence, one[0].pid, name, errors)), None)


def _find_published(
    evidence: Evidence,
    found: list[other_servers.Found],
    port: int,
    table: dict[int, processes.Process],
    errors: Errors,
) -> other_servers.Found | None:
    """The server in a container whose runtime publishes its port as `port` of the host."""
    proxied = list_proxied(evidence, table, errors)
    for top, words, engine in found:
        _inside, container = container_reader.read_container(evidence, top.pid, None, errors, light=True)
        if container:
            bindings = container_reader.list_bindings(container, proxied)
            own = find_port(engine, engines.find_settings(engine, words))
            if any(one["host_port"] == port and one["port"] == own for one in bindings):
                return top, words, engine
    return None


def name_service(name: str) -> str:
    return name if name.endswith(".service") else name + ".service"


def find_port(engine: Engine, live: dict[str, Any]) -> int | None:
    given = engines.find_value(live, engine.port_names)
    value = str(engine.default_port) if given is None else given
    port = values.whole_number(value) if values.is_digits(value) else None
    return port if port is not None and port < 65536 else None


def find_unit_of_server(
    evidence: Evidence, pid: int, table: dict[int, processes.Process], errors: Errors
) -> str | None:
    """The service of the process, else the one whose client (`docker run`) waits for its container."""
    found = processes.find_unit(evidence, pid)
    if found:
        return found
    words = [
        (process.pid, processes.read_arguments(evidence, process.pid, errors) or [])
        for process in table.values()
        if process.name in container_reader.CLIENTS
    ]
    clients = [(number, given) for number, given in words if container_reader.is_client(given)]
    return container_reader.find_client_unit(evidence, pid, clients, errors) if clients else None


def list_proxied(evidence: Evidence, table: dict[int, processes.Process], errors: Errors) -> list[dict[str, Any]]:
    """What the docker-proxy processes of the host pass on."""
    lines = list_command_lines(evidence, table, "docker-proxy", errors)
    return [one for one in map(namespaces.find_proxied, lines) if one]


def list_command_lines(
    evidence: Evidence, table: dict[int, processes.Process], name: str, errors: Errors
) -> list[list[str]]:
    """Of every process of this name."""
    named = [process.pid for process in table.values() if process.name == name]
    return [processes.read_arguments(evidence, pid, errors) or [] for pid in named]
