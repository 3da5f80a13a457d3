#!/bin/sh
# make_image.sh NAME: makes a container's image of this host's own Python and of the engine in /srv/engine, without a registry.
set -eu
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
python=$(python3 -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
for directory in bin sbin lib lib64; do
  mkdir -p "$root/usr/$directory"
  ln -s "usr/$directory" "$root/$directory"
done
mkdir -p "$root/usr/lib/$python" "$root/usr/local/lib/$python/dist-packages" "$root/run" "$root/proc" "$root/sys" "$root/dev" "$root/etc" "$root/root" "$root/var" "$root/tmp"
chmod 755 "$root"
chmod 1777 "$root/tmp"
for program in python3 sh env; do cp -L "$(command -v "$program")" "$root/usr/bin/"; done
tar -C / --exclude=__pycache__ --exclude="usr/lib/$python/test" -c "usr/lib/$python" | tar -C "$root" -x
for file in "$root"/usr/bin/* "$root/usr/lib/$python"/lib-dynload/*.so; do ldd "$file" 2> /dev/null || true; done |
  grep -o '/[^ ]*\.so[^ ]*' | sort -u | while read -r library; do
  directory=$(readlink -f "$(dirname "$library")")
  mkdir -p "$root$directory"
  cp -L "$library" "$root$directory/"
done
cp -r /srv/engine/. "$root/usr/local/lib/$python/dist-packages/"
# Its own entry point is of no use, as with the images of engines: the role names the program.
tar -C "$root" -c . | podman import --quiet --change 'ENTRYPOINT ["/bin/false"]' --change 'ENV PATH=/usr/local/bin:/usr/bin:/bin' - "$1"
