"""Ray under an engine over several hosts: which part of the cluster this host is, and the ranks that run in it.

Each host runs a node of Ray (the process `raylet`), the first also Ray's table of the cluster (GCS), at whose port the
others join. The engine runs on the first host, and asks Ray for its ranks: each is a process below the raylet of its
host, with the title ray::CLASS or ray::CLASS.METHOD, and no number in it. What a rank says goes into a file of its own
on its host, and comes out in the engine's log as well. [Ray 2.48.0, two nodes seen on one machine: the command lines
and titles; vLLM 0.10, executor/ray_utils.py]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..gpu_host.evidence import values
from ..gpu_host.evidence.errors import Errors
from ..gpu_host.evidence.interface import Evidence
from . import engines, nodes, processes
from .engines import Engine, Settings

Found = tuple[processes.Process, list[str], Engine]


@dataclass(frozen=True)
class RayNode:
    """A raylet. `address`, `port`: of the cluster's GCS; `gpus`: how many GPUs the node gives to its cluster, None
    where its command line does not say."""

    pid: int
    head: bool
    address: str | None
    port: int | None
    gpus: int | None
    python: str | None


def uses_ray(engine: Engine, live: Settings) -> bool:
    """Whether the settings of a server ask for its ranks by Ray."""
    return bool(engine.ray_setting) and live.get(engine.ray_setting[0]) == engine.ray_setting[1]


def find_nodes(evidence: Evidence, table: dict[int, processes.Process], errors: Errors) -> list[RayNode]:
    """Every raylet of the host whose command line can be read, by process."""
    found = []
    for process in table.values():
        if process.name == "raylet" and process.state != "Z":
            words = processes.read_arguments(evidence, process.pid, errors)
            if words:
                found.append(parse_node(process.pid, words))
    return sorted(found, key=lambda node: node.pid)


def parse_node(pid: int, words: list[str]) -> RayNode:
    """From the words of a raylet's command line."""
    given = {word.partition("=")[0]: word.partition("=")[2] for word in words if word.startswith("--")}
    address, _colon, port = given.get("--gcs-address", given.get("--gcs_address", "")).rpartition(":")
    fields = given.get("--static_resource_list", "").split(",")
    resources = dict(zip(fields[::2], fields[1::2]))
    count = values.whole_number(resources.get("GPU", "0").partition(".")[0]) if resources else None
    worker = given.get("--python_worker_command", "").split()
    return RayNode(
        pid,
        "--head" in given,
        address.strip("[]") or None,
        values.whole_number(port) if values.is_digits(port) else None,
        count,
        worker[0] if worker else None,
    )


def find_followers(
    evidence: Evidence, table: dict[int, processes.Process], servers: list[Found], errors: Errors
) -> list[Found]:
    """The nodes of this host that lend their GPUs to a server of another host: (process, words, engine).

    A node is an engine's where one of its ranks runs in it, or where it was started with the variable by which the
    engine finds the host's address. The process is `ray start` where that still runs, as it does with --block.
    """
    if any(uses_ray(engine, engines.find_settings(engine, words)) for _top, words, engine in servers):
        return []
    candidates: list[tuple[processes.Process, list[str], RayNode | None]] = []
    for node in find_nodes(evidence, table, errors):
        parent = table.get(table[node.pid].parent)
        started = _read_start(evidence, parent, errors)
        if not node.head and parent and started:
            candidates.append((parent, started, node))
        elif not node.head:
            candidates.append((table[node.pid], [node.python or "", "raylet"], node))
    known = {top.pid for top, _words, _node in candidates}
    for process in table.values():  # it has no raylet until it has reached the head
        started = _read_start(evidence, process, errors) if process.pid not in known else None
        if started and "--head" not in started:
            candidates.append((process, started, None))
    found = []
    for top, words, of_raylet in candidates:
        engine = _find_engine(evidence, top, of_raylet, table, errors)
        if engine:
            found.append((top, words, engine))
    return found


def _read_start(evidence: Evidence, process: processes.Process | None, errors: Errors) -> list[str] | None:
    """The words of a `ray start`; None of another process."""
    if process is None or process.name != "ray" or process.state == "Z":
        return None
    words = processes.read_arguments(evidence, process.pid, errors)
    return words if words and "start" in words else None


def _find_engine(
    evidence: Evidence,
    top: processes.Process,
    node: RayNode | None,
    table: dict[int, processes.Process],
    errors: Errors,
) -> Engine | None:
    """The engine whose ranks a node is there for."""
    environment = processes.read_environment(evidence, top.pid, errors) or {}
    for engine in engines.ENGINES.values():
        has_rank = node and engine.ray_rank and find_ranks(evidence, engine, node, table, errors)[0]
        if has_rank or (engine.ray_rank and engine.address_variable in environment):
            return engine
    return None


def find_ranks(
    evidence: Evidence, engine: Engine, node: RayNode, table: dict[int, processes.Process], errors: Errors
) -> tuple[list[dict[str, Any]], bool]:
    """(the ranks of the engine that run in a node, whether a title could not be read). No title has a rank's number:
    they are counted in the order in which they were started."""
    found: list[dict[str, Any]] = []
    unread = False
    for process in processes.find_descendants(node.pid, table):
        words = processes.read_arguments(evidence, process.pid, errors) if process.state != "Z" else []
        unread = unread or words is None
        if words and engine.ray_rank and engine.ray_rank.match(words[0]):
            described = processes.describe_process(evidence, process, errors)
            found.append({"rank": len(found), **described, "gpu": None})
    return found, unread


def choose_node(evidence: Evidence, top: int, table: dict[int, processes.Process], errors: Errors) -> RayNode | None:
    """The node that belongs to the server whose process is `top`: itself or below it, of the same unit, or the only
    one of the host."""
    nodes = find_nodes(evidence, table, errors)
    below = {process.pid for process in processes.find_descendants(top, table)}
    unit = processes.find_unit(evidence, top)
    for wanted in (
        [node for node in nodes if node.pid == top or node.pid in below],
        [node for node in nodes if unit and processes.find_unit(evidence, node.pid) == unit],
        nodes,
    ):
        if len(wanted) == 1:
            return wanted[0]
    return None


def read_part(
    evidence: Evidence,
    engine: Engine,
    live: Settings,
    node: RayNode | None,
    table: dict[int, processes.Process],
    errors: Errors,
    *,
    follows: bool,
) -> dict[str, Any]:
    """``{node, ranks, ranks_expected, titles_unread}`` of gather.py. `follows`: the server is on another host."""
    ranks, unread = find_ranks(evidence, engine, node, table, errors) if node else ([], False)
    part, expected = describe_follower(node, len(ranks)) if follows else describe_server(engine, live, node)
    return {"node": part, "ranks": ranks, "ranks_expected": expected, "titles_unread": unread}


def describe_server(engine: Engine, live: Settings, node: RayNode | None) -> tuple[dict[str, Any], int | None]:
    """(what nodes.read_node() says of a server whose ranks Ray runs, the number of ranks on this host).

    How many hosts it takes, no argument says: as many as have the GPUs for its ranks, where each has equally many.
    """
    facts: dict[str, Any] = {"rank": 0, "nodes": None, "address": None, "port": None, "follower": False, "ray": True}
    facts.update(first_rank=None, spans_hosts=None, peers=None, peers_missing=None)
    sizes = [engines.find_count(live, names) for names in (engine.tensor_parallel, engine.pipeline_parallel)]
    if node is None or not node.gpus or sizes[0] is None or sizes[1] is None:
        return facts, None
    facts.update(address=node.address, port=node.port)
    ranks = sizes[0] * sizes[1]
    if ranks <= node.gpus:
        facts.update(nodes=1, spans_hosts=False, peers_missing=0)
        return facts, ranks
    facts["nodes"] = -(-ranks // node.gpus)
    facts["spans_hosts"] = nodes.find_span(engine, live, facts["nodes"])
    return facts, node.gpus


def describe_follower(node: RayNode | None, ranks: int) -> tuple[dict[str, Any], int | None]:
    """The same of a node that lends its GPUs. A server may need fewer of them than there are: where some have a rank
    and others none, nobody here knows how many belong to it."""
    facts: dict[str, Any] = {"rank": None, "nodes": None, "follower": True, "ray": True, "first_rank": None}
    facts.update(address=node and node.address, port=node and node.port, peers=None, peers_missing=0)
    facts["spans_hosts"] = None
    return facts, node.gpus if node and ranks in (0, node.gpus) else None


def waits_for_server(facts: dict[str, Any]) -> bool:
    """Whether a node lends its GPUs to a server of another host, which has started no rank in it yet: whether that one
    works or is stuck, its own host knows."""
    node = facts.get("node")
    return bool(node and node["ray"] and node["follower"] and facts["process"] and not facts["ranks"])
