#!/bin/sh
# Starts an unprivileged LXC container on a test host, as root on that host. Its configuration comes from standard input,
# after what every container here has; device nodes of the host must exist. Debian's package lxc has to be installed.
#
#     lxc_container.sh NAME < configuration
set -euf
name=$1
place=/var/lib/lxc/$name
grep -q '^root:100000:' /etc/subuid || echo root:100000:65536 | tee -a /etc/subuid >> /etc/subgid
mkdir -p "$place/rootfs"
cd "$place/rootfs"
# The host's own /usr, read-only: a root file system of its own would add nothing here.
mkdir -p usr proc sys dev run tmp etc root opt/module_utils
for d in bin sbin lib lib64; do ln -sfn usr/$d $d; done
chown -R 100000:100000 .
chmod 755 /var/lib/lxc "$place"
{
  cat <<END
lxc.include = /usr/share/lxc/config/common.conf
lxc.include = /usr/share/lxc/config/userns.conf
lxc.uts.name = $name
lxc.arch = amd64
lxc.net.0.type = empty
lxc.apparmor.profile = unconfined
lxc.idmap = u 0 100000 65536
lxc.idmap = g 0 100000 65536
lxc.rootfs.path = dir:$place/rootfs
lxc.init.cmd = /bin/sleep infinity
lxc.mount.entry = /usr usr none bind,ro 0 0
lxc.mount.entry = /opt/module_utils opt/module_utils none bind,ro 0 0
END
  # userns.conf empties the list of device rules; these are the everyday nodes of common.conf.
  for rule in 1:3 1:5 1:7 1:8 1:9 5:0 5:1 5:2 136:*; do echo "lxc.cgroup2.devices.allow = c $rule rwm"; done
  cat
} > "$place/config"
lxc-start -n "$name" -l ERROR -o "$place/log" || { cat "$place/log" >&2; exit 1; }
lxc-wait -n "$name" -s RUNNING -t 20
