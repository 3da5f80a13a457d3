#!/bin/bash
# supervise.sh NAME STATE_DIRECTORY NETNS LIFETIME_SECONDS [nspawn option...]
#
# Runs one host until it is stopped: starts it again when it reboots itself (systemd-nspawn then ends with 133) and stops
# it when its lifetime is over, so that a killed test run leaves nothing behind for ever.
set -u
name=$1 state=$2 netns=$3 lifetime=$4
shift 4
# Its own cgroup, and a mount namespace where /sys/fs/cgroup is cgroup 2 alone, as systemd in the host wants it.
for base in /sys/fs/cgroup/unified /sys/fs/cgroup; do [ -e "$base/cgroup.procs" ] && break; done
mkdir -p "$base/$netns"
echo $$ > "$base/$netns/cgroup.procs" || exit 1
umount -R /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup || exit 1
deadline=$((SECONDS + lifetime))
while [ $SECONDS -lt $deadline ]; do
  timeout --foreground --signal=KILL $((deadline - SECONDS)) \
    systemd-nspawn --quiet --register=no --keep-unit --boot --directory="$state/root" --machine="$name" \
    --network-namespace-path="/run/netns/$netns" --console=pipe --link-journal=no --timezone=off --resolv-conf=off "$@" &
  echo $! > "$state/nspawn.pid"
  wait $!
  code=$?
  [ $code = 133 ] || exit $code
done
