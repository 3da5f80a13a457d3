#!/usr/bin/env python3
"""Make and remove real test hosts: Debian with systemd as process 1, reached by SSH, about a second each.

    make_hosts.py install                                packages that this machine needs (packages.txt)
    make_hosts.py rootfs [bookworm trixie]               make the root file systems ahead of time
    make_hosts.py up deb12=bookworm deb13=trixie         boot hosts; prints an inventory (--format json: a list)
    make_hosts.py up gpu1=trixie --bind-ro=DIR:/srv/repo     further options go to systemd-nspawn
    make_hosts.py enter deb12 mount --bind DIR /sys/module   in the host's mount namespace, with this machine's programs
    make_hosts.py list | down NAME... | down --all

Needs root. State lies in .test-hosts/ of the checkout (or GPU_TEST_HOSTS); hosts stop by themselves after --lifetime.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import machine
import rootfs

STATE = Path(os.environ.get("GPU_TEST_HOSTS") or HERE.parent.parent / ".test-hosts")
SSH_ARGS = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"


def why_not() -> str:
    """The reason why this machine cannot make hosts; empty if it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "test hosts need root on Linux"
    missing = [
        name
        for name in ("systemd-nspawn", "mmdebstrap", "ip", "ssh-keygen", "unshare", "nsenter")
        if not shutil.which(name)
    ]
    return "test hosts need %s; run tests/hosts/make_hosts.py install" % ", ".join(missing) if missing else ""


def install() -> None:
    names = [
        line.strip()
        for line in (HERE / "packages.txt").read_text().splitlines()
        if line.strip() and not line.startswith("#")
    ]
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    for argv in (["apt-get", "update", "-q"], ["apt-get", "install", "-y", "-q", "--no-install-recommends", *names]):
        subprocess.run(argv, check=True, env=environment, stdout=sys.stderr)


def up(pairs: list[str], options: list[str], lifetime: int) -> list[machine.Host]:
    wanted = [pair.partition("=")[::2] for pair in pairs]
    releases = {release or "bookworm" for _name, release in wanted}
    with ThreadPoolExecutor(2) as pool:
        trees = dict(zip(releases, pool.map(lambda release: rootfs.ensure(release, STATE), releases)))
    hosts = []
    for name, release in wanted:
        hosts.append(
            machine.boot(
                name, release or "bookworm", trees[release or "bookworm"], STATE, options=options, lifetime=lifetime
            )
        )
    for host in hosts:
        machine.wait_ready(host, STATE)
    return hosts


def inventory(hosts: list[machine.Host]) -> str:
    lines = ["all:", "  hosts:"]
    for host in hosts:
        lines += ["    %s:" % host.name, "      ansible_host: %s" % host.address, "      ansible_user: root"]
        lines += ["      ansible_ssh_private_key_file: %s" % host.key, "      ansible_ssh_common_args: %s" % SSH_ARGS]
        lines += ["      ansible_python_interpreter: /usr/bin/python3"]
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("install")
    commands.add_parser("why-not")
    commands.add_parser("list").add_argument("--format", choices=["inventory", "json"], default="inventory")
    commands.add_parser("rootfs").add_argument("releases", nargs="*", default=list(rootfs.RELEASES))
    maker = commands.add_parser("up")
    maker.add_argument("names", nargs="+", metavar="NAME=RELEASE")
    maker.add_argument("--format", choices=["inventory", "json"], default="inventory")
    maker.add_argument("--lifetime", type=int, default=3600, help="seconds after which a host stops by itself")
    remover = commands.add_parser("down")
    remover.add_argument("names", nargs="*")
    remover.add_argument("--all", action="store_true")
    entering = commands.add_parser("enter")
    entering.add_argument("name")
    entering.add_argument("argv", nargs=argparse.REMAINDER)
    options, rest = parser.parse_known_args(arguments)
    if rest and options.command != "up":
        parser.error("unknown arguments: %s" % " ".join(rest))
    if options.command == "install":
        install()
        return 0
    reason = why_not()
    if options.command == "why-not":
        print(reason)
        return 0
    if reason:
        raise machine.HostError(reason)
    return act(options, rest)


def act(options: argparse.Namespace, rest: list[str]) -> int:
    if options.command == "rootfs":
        with ThreadPoolExecutor(2) as pool:
            for tree in pool.map(lambda release: rootfs.ensure(release, STATE), options.releases):
                print(tree)
    elif options.command == "down":
        names = [path.name for path in (STATE / "hosts").glob("*")] if options.all else options.names
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda name: machine.remove(STATE / "hosts" / name), names))
    elif options.command == "enter":
        host = machine.load(STATE / "hosts" / options.name)
        if host is None:
            raise machine.HostError("no host %s" % options.name)
        return machine.enter(host, STATE, options.argv)
    else:
        hosts = up(options.names, rest, options.lifetime) if options.command == "up" else machine.running(STATE)
        as_json = json.dumps([machine.as_dict(host, STATE) for host in hosts], indent=1) + "\n"
        sys.stdout.write(as_json if options.format == "json" else inventory(hosts))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (machine.HostError, rootfs.RootfsError) as error:
        sys.exit("make_hosts.py: %s" % error)
