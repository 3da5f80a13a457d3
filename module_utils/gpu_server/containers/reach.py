"""Where a port of a container can be asked from its host, and who else reaches it.

A port that the runtime publishes is asked where clients ask it; one that it does not publish, on the container's own
address, which the host has a route to.
"""

from __future__ import annotations

from typing import Any

_EVERY_ADDRESS = ("", "0.0.0.0", "::", "*")  # noqa: S104  compared, not bound
_LOOPBACK = ("127.", "::1", "localhost")


def find_way(
    port: int, bindings: list[dict[str, Any]], addresses: list[str], *, in_pod: bool, own_loopback: bool | None
) -> dict[str, Any]:
    """``{address, port, published, beyond_this_host}`` to ask; `address` None where no way is known.

    `bindings`: ``{port, host_address, host_port}``; `addresses`: of the container. `in_pod`: each pod of a cluster
    reaches the address of each other one (the Kubernetes network model). `own_loopback`: the server listens on the
    container's own loopback only, so that nothing from outside arrives.
    """
    binding = next((one for one in bindings if one["port"] == port), None)
    found: dict[str, Any] = {"address": None, "port": port, "published": bool(binding), "beyond_this_host": None}
    if binding:
        given = str(binding["host_address"])
        everywhere = given in _EVERY_ADDRESS
        found.update(
            address="127.0.0.1" if everywhere else "[%s]" % given if ":" in given else given,
            port=binding["host_port"],
            beyond_this_host=everywhere or not given.startswith(_LOOPBACK),
        )
    elif addresses:
        found.update(address=addresses[0], beyond_this_host=in_pod)
    if own_loopback:
        found["beyond_this_host"] = False
    return found
