#!/bin/sh
# What runs the server on this host, and with what: one line for each, WORD VALUE.
main=$(systemctl show inference-server --property=MainPID --value)
echo "main $main $(cat "/proc/$main/comm")"
systemctl show inference-server --property=FragmentPath,UnitFileState,LimitMEMLOCK
systemctl list-units --all --plain --no-legend 'inference*.service'
podman ps --all --no-trunc --format 'container {{.Names}} {{.ImageID}}'
ls /etc/containers/systemd /var/lib/inference-server.ansible
pid=$(pgrep -f '^[^ ]*python3? -m sglang.launch_server')
echo "user $(stat -c %U "/proc/$pid")"
echo "shm $(sed -n 's/.* \/dev\/shm .*size=\([0-9]*k\).*/\1/p' "/proc/$pid/mountinfo")"
for kind in net ipc; do
  [ "$(readlink "/proc/$pid/ns/$kind")" = "$(readlink "/proc/1/ns/$kind")" ] && echo "$kind host" || echo "$kind own"
done
[ ! -e "/proc/$pid/root/dev/nvidia0" ] || echo "gpu nvidia0"
grep CapBnd "/proc/$pid/status"
echo "secret" $(grep -rlF 'secret$1' /etc /run/systemd/generator)
tr '\0' '\n' < "/proc/$pid/environ" | grep -E '^(ODD|HF_HUB_OFFLINE)='
model=/proc/$pid/root/var/lib/inference-server/.cache/huggingface/hub/models--lukealonso--GLM-5-NVFP4
echo "model $(stat -c %U "$model/blobs") $(find "$model"/snapshots/* -type l | wc -l) files"
podman inspect inference-server --format 'command {{.Config.Cmd}} {{.Args}}' 2> /dev/null || true
