"""What was not proven on a host, beside the highest that was: no check fails for it, and a verdict must not hide it."""

from __future__ import annotations

from typing import Any

Facts = dict[str, Any]


def list_unproven(host: Facts) -> list[str]:
    """Sentences about `host` as the checks see it: P2P that was granted and not measured, a machine that the inventory
    names and nobody looked at, a server that was not asked."""
    found = [explain_p2p(host), _hypervisor(host), _server(host)]
    return [text for text in found if text]


def explain_p2p(host: Facts) -> str:
    """The highest rung that is known of P2P without a probe; "" where the probe measured, or there is no pair to speak
    of."""
    p2p, probe = host.get("p2p") or {}, host.get("probe")
    pairs, granted = p2p.get("pair_count"), len(p2p.get("granted_pairs") or ())
    if (probe or {}).get("ran") or not pairs or not granted:
        return ""
    amount = "all %d" % pairs if granted == pairs else "%d of %d" % (granted, pairs)
    return "P2P of %s pairs is granted by the driver, not proven: the probe did not run because %s" % (
        amount,
        _why_not_probed(host, probe),
    )


def _why_not_probed(host: Facts, probe: Facts | None) -> str:
    if probe is None:
        return (host.get("evidence") or {}).get("probe_not_run") or "it was not asked for"
    return str(probe.get("skipped_reason") or (probe.get("cuda") or {}).get("detail") or "it gave no reason")


def _hypervisor(host: Facts) -> str:
    inventory = host.get("inventory") or {}
    unseen = inventory.get("hypervisor_unseen")
    return "its Proxmox host was not looked at: %s" % unseen if unseen else ""


def _server(host: Facts) -> str:
    server = host.get("server") or {}
    generation = server.get("generation") or {}
    follower = (server.get("node") or {}).get("follower")  # rank 0 is asked, and generates with every rank
    if server.get("state") != "ready" or generation.get("ran") or follower:
        return ""
    why = generation.get("skipped_reason") or server.get("busy_because") or "it was not asked for"
    return "the server says that it is ready; that it generates was not proven: %s" % why
