#!/usr/bin/env bash
# The first five minutes of a stranger: a bare Debian 12 root, a clone, ./build.sh run; then the full build and the tests.
#
#   scripts/clean_room.sh [DIR]      as root; DIR (default: a temporary one) receives the root and keeps the log
#
# The package configuration of this host is used for the new root at run time, so that it works behind a mirror.
set -euo pipefail
repo=$(cd "$(dirname "$0")/.." && pwd)
dir=${1:-$(mktemp -d)}
root=$dir/root
log=$dir/clean_room.log
[ "$(id -u)" -eq 0 ] || { echo "clean_room.sh: needs root for debootstrap and chroot" >&2; exit 2; }
command -v debootstrap >/dev/null || apt-get install -y -qq debootstrap >/dev/null

mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 2>/dev/null | head -1)
[ -d "$root/etc" ] || debootstrap --variant=minbase bookworm "$root" "${mirror:-}" >"$log" 2>&1
cp -r /etc/apt/. "$root/etc/apt/"
for f in /etc/resolv.conf /etc/hosts /etc/pip.conf; do [ -e "$f" ] && cp -L "$f" "$root$f"; done
[ -d /usr/local/share/ca-certificates ] && cp -r /usr/local/share/ca-certificates "$root/usr/local/share/"
[ -d /etc/ssl/certs ] && mkdir -p "$root/etc/ssl" && cp -rL /etc/ssl/certs "$root/etc/ssl/" 2>/dev/null || true
pip_settings=$(env | grep -E '^(PIP_|.*_proxy=|.*_PROXY=|SSL_CERT|REQUESTS_CA)' || true)

inside() {
  env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 $pip_settings chroot "$root" bash -ec "$1"
}
cleanup() { umount -l "$root/proc" "$root/dev" 2>/dev/null || true; }
trap cleanup EXIT
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"

rm -rf "$root/src"
git clone -q "file://$repo" "$root/src"
timed() {
  local label=$1 start=$SECONDS
  shift
  inside "$@" 2>&1 | tee -a "$log"
  echo "clean room: $label took $((SECONDS - start)) s" | tee -a "$log"
}
timed "run" "cd /src && ./build.sh run"
timed "full build" "cd /src && ./build.sh"
timed "rebuild with ccache" "cd /src && rm -rf build && ./build.sh"
timed "tests" "cd /src && ./build.sh test"
grep '^clean room:' "$log"
