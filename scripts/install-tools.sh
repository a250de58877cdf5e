#!/usr/bin/env bash
# Makes sure that the programs which the tests (or the benchmarks) talk to are there.
#
#   scripts/install-tools.sh test|bench
#
# As root on Debian or Ubuntu, what is missing is installed; otherwise it is named, and this fails.
set -euo pipefail

# program:package
common=(fio:fio nbdkit:nbdkit qemu-nbd:qemu-utils taskset:util-linux)
tests=(nbdinfo:libnbd-bin nbdcopy:libnbd-bin nbdfuse:libnbd-bin qemu-img:qemu-utils qemu-io:qemu-utils
    losetup:mount mkfs.ext4:e2fsprogs mkfs.xfs:xfsprogs mkfs.btrfs:btrfs-progs mkfs.vfat:dosfstools
    sfdisk:fdisk fusermount3:fuse3 curl:curl strace:strace setpriv:util-linux
    debootstrap:debootstrap systemd-nspawn:systemd-container lintian:lintian dpkg-shlibdeps:dpkg-dev strip:binutils
    chromium:chromium script:bsdutils)

case "${1:-test}" in
    test) wanted=("${common[@]}" "${tests[@]}") ;;
    bench) wanted=("${common[@]}") ;;
    *) echo "usage: $0 test|bench" >&2; exit 2 ;;
esac

export PATH="$PATH:/usr/sbin:/sbin"
missing_programs() { for pair in "${wanted[@]}"; do command -v "${pair%%:*}" >/dev/null || echo "$pair"; done; }

missing=$(missing_programs)
[ -z "$missing" ] && exit 0

packages=$(sed 's/.*://' <<<"$missing" | sort -u | tr '\n' ' ')
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "these programs are missing: $(sed 's/:.*//' <<<"$missing" | tr '\n' ' ')" >&2
    echo "install them first, for example with: sudo apt-get install $packages" >&2
    exit 1
fi

install_packages() {
    # shellcheck disable=SC2086 # a list of words
    apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $packages
}

echo "installing: $packages"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# Another install may hold the lock of the package database: once more, a little later.
if ! install_packages >"$log" 2>&1 && { sleep 20; ! install_packages >"$log" 2>&1; }; then
    cat "$log" >&2
    echo "could not install: $packages" >&2
    exit 1
fi
missing=$(missing_programs)
if [ -n "$missing" ]; then
    echo "installed, and still not found: $missing" >&2
    exit 1
fi
