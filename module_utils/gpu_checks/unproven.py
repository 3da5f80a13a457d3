"""What was not proven on a host, beside the highest that was: no check fails for it, and a verdict must not hide it."""

from __future__ import annotations

from typing import Any

Facts = dict[str, Any]


def list_unproven(host: Facts) -> list[str]:
    """Sentences about `host` as the checks see it: P2P that was granted and not measured, hosts that serve one model
    together and were not measured together, a machine that the inventory names and nobody looked at, a server that was
    not asked."""
    found = [explain_p2p(host), _between_hosts(host), _hypervisor(host), _server(host)]
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


def _between_hosts(host: Facts) -> str:
    """The hosts that the inventory groups to serve one model, where no all-reduce between them has shown that they can.

    A result that cannot be read, or that found something, is for the checks."""
    inventory = host.get("inventory") or {}
    others, group = inventory.get("serves_with") or [], inventory.get("serves_in")
    found = (host.get("probe") or {}).get("between_hosts") or {}
    if not others or found.get("problems") or found.get("ran", False) is not False:
        return ""
    asked = found.get("asked")
    why = str(found.get("reason")) if asked else "it was not asked for"
    hint = "" if asked else " (ansible-playbook validate.yml -l %s -e probe_between_hosts=true)" % group
    shown = ", ".join(others[:3]) + (" and %d more" % (len(others) - 3) if len(others) > 3 else "")
    if inventory.get("generated_from"):
        text = (
            "that a collective between it and %s works is proven by a generation of the server over all their ranks "
            "(rank 0 on %s); that its values are right, and how fast it is, was not proven: no all-reduce ran between "
            "them, %s"
        )
        return text % (shown, inventory["generated_from"], why) + hint
    text = "that it serves one model together with %s was not proven: no all-reduce ran between them, %s"
    return text % (shown, why) + hint


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
