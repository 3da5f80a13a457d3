"""How the role downloads a model: files/download_model.py in a sandbox as the server's unit has."""

from __future__ import annotations

from typing import Any


def make_command(
    plan: dict[str, Any],
    *,
    unit: str,
    user: str,
    home: str,
    secrets: str,
    environment: dict[str, Any],
    writable: list[str],
    python: str,
) -> list[str]:
    """The words of systemd-run for what the module inference_server_model has planned.

    As the server's user, with its environment and with what its unit may write: what can be downloaded so can be read
    so. The token comes from the file `secrets`, which only root reads.
    """
    places = [home, plan["cache"], *("-" + path.lstrip("-+") for path in writable)]
    words = ["systemd-run", "--quiet", "--wait", "--pipe", "--collect", "--service-type=exec", "--unit=" + unit]
    words += ["--uid=" + user, "--gid=" + user, "--working-directory=" + home]
    words += ["--property=" + line for line in (
        "EnvironmentFile=" + secrets, "NoNewPrivileges=yes", "ProtectSystem=strict", "ProtectHome=yes",
        "PrivateTmp=yes", "KillMode=mixed", "ReadWritePaths=" + " ".join(places),
    )]  # fmt: skip
    words += ["--setenv=%s=%s" % (name, value) for name, value in sorted(environment.items())]
    tool = plan["tool"]
    words += [python if tool["kind"] == "python" else "/usr/bin/python3", home + "/download_model.py"]
    words += ["--program=" + tool["command"]] if tool["kind"] == "program" else []
    for name, value in (
        ("repository", plan["repository"]), ("revision", plan["revision"]), ("cache", plan["cache"]),
        ("files", plan["files"]), ("present-files", plan["present_files"]),
        ("total-bytes", plan["total_bytes"]), ("present-bytes", plan["present_bytes"]),
    ):  # fmt: skip
        words.append("--%s=%s" % (name, value))
    return words + ["--left-out=" + name for name in plan["left_out"]]


class FilterModule:
    """Filters of the role inference_server."""

    def filters(self) -> dict[str, Any]:
        return {"inference_download_command": make_command}
