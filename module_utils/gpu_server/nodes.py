"""A server over several hosts: which rank this host has, which part of the ranks runs here, and who is connected.

Each host runs the engine with the number of hosts and its own rank ("node rank"). Rank 0 serves the API and waits at
an address for the others. SGLang 0.5: entrypoints/engine.py, _calculate_rank_ranges; vLLM: v1/executor/
multiproc_executor.py, which takes world_size / nnodes ranks per host.
"""

from __future__ import annotations

from typing import Any

from ..gpu_host.evidence import values
from ..gpu_host.evidence.errors import Errors
from ..gpu_host.evidence.interface import Evidence
from . import engines, ports
from .engines import Engine, Settings

SOURCE = "the command line of the server"


def read_node(engine: Engine, live: Settings, errors: Errors) -> dict[str, Any]:
    """``{rank, nodes, address, port, follower, ray, first_rank, spans_hosts, peers, peers_missing}``.

    `ray`: Ray runs its ranks, and ray_nodes.py says the rest. `address` and `port` of rank 0, None where they are not
    given. `follower`: it is another rank than 0, which serves no API. `rank` and `nodes` are None where the arguments
    for them are no numbers. `first_rank`: the lowest tensor-parallel rank of this host, None where several pipeline
    stages make its number say nothing. `spans_hosts`: every generation takes the ranks of all hosts, since one copy of
    the model is cut over them (tensor or pipeline parallel, no data parallel replicas); None where the arguments do not
    say. Of the last two see `count_peers`.
    """
    node: dict[str, Any] = {"rank": 0, "nodes": 1, "address": None, "port": None, "follower": False, "ray": False}
    node.update(first_rank=0, spans_hosts=False, peers=None, peers_missing=0)
    if not engine.nodes_name or engine.nodes_name not in live:
        return node
    node["nodes"] = engines.find_count(live, (engine.nodes_name,))
    given = live.get(engine.node_rank_name, "0")
    node["rank"] = values.whole_number(given) if isinstance(given, str) and values.is_digits(given) else None
    for name, number in ((engine.nodes_name, node["nodes"]), (engine.node_rank_name, node["rank"])):
        if number is None:
            errors.odd(SOURCE, "--%s is no number" % name, live.get(name))
    node["address"], node["port"] = _find_meeting(engine, live)
    node["follower"] = bool((node["nodes"] or 2) > 1 and node["rank"])
    node["peers_missing"] = 0 if node["nodes"] == 1 or node["follower"] else None
    local = count_local_ranks(engine, live, node)
    alone = engines.find_count(live, engine.pipeline_parallel) == 1
    node["first_rank"] = local * node["rank"] if alone and local is not None and node["rank"] is not None else None
    node["spans_hosts"] = find_span(engine, live, node["nodes"])
    return node


def find_span(engine: Engine, live: Settings, nodes: int | None) -> bool | None:
    """Whether every generation takes the ranks of all hosts; None where the arguments do not say."""
    replicas = engines.find_count(live, engine.data_parallel)
    tensor, pipeline = engines.find_tensor_parallel(engine, live), engines.find_count(live, engine.pipeline_parallel)
    if nodes is None or replicas is None or tensor is None or pipeline is None:
        return None
    return nodes > 1 and replicas == 1 and tensor * pipeline >= nodes


def _find_meeting(engine: Engine, live: Settings) -> tuple[str | None, int | None]:
    """The address and the port at which rank 0 waits."""
    address = port = None
    for name, form in engine.meeting:
        given = live.get(name)
        if not isinstance(given, str):
            continue
        text = given.rpartition("//")[2]
        if "{address}" in form and "{port}" in form:
            address, _colon, number = text.rpartition(":")
            port = values.whole_number(number) if values.is_digits(number) else None
        elif "{address}" in form:
            address = text
        else:
            port = values.whole_number(text) if values.is_digits(text) else None
    return (address or "").strip("[]") or None, port


def count_local_ranks(engine: Engine, live: Settings, node: dict[str, Any]) -> int | None:
    """How many ranks this host runs; None where the arguments do not say."""
    tensor = engines.find_tensor_parallel(engine, live)
    if node["nodes"] == 1 or tensor is None:
        return tensor
    pipeline = engines.find_count(live, engine.pipeline_parallel)
    if node["nodes"] is None or pipeline is None or not node["nodes"] or not pipeline:
        return None
    return max(pipeline // node["nodes"], 1) * (tensor // max(node["nodes"] // pipeline, 1))


def count_peers(evidence: Evidence, node: dict[str, Any], pid: int | None = None) -> None:
    """Of rank 0: `peers`, the addresses of the other hosts that hold a connection to where it waits, and how many
    hosts are missing there. Every rank keeps its connection to the store of torch.distributed as long as it runs.
    `pid`: a process whose network namespace is meant, in the place of ours."""
    if node["nodes"] in (None, 1) or node["follower"] or node["port"] is None:
        return
    peers = ports.find_clients(evidence, node["port"], pid)
    if peers is not None:
        node.update(peers=peers, peers_missing=max(0, node["nodes"] - 1 - len(peers)))
