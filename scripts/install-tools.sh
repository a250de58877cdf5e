#!/usr/bin/env bash
# Makes sure that the programs which the tests (or the benchmarks) talk to are there.
#
#   scripts/install-tools.sh test|bench|vm
#
# As root on Debian or Ubuntu, what is missing is installed; otherwise it is named, and this fails. What tests need that
# is no package goes into a folder of the user's, BRAID_TOOLS, else ~/.cache/braid-tools.
set -euo pipefail

# program:package
common=(fio:fio nbdkit:nbdkit qemu-nbd:qemu-utils taskset:util-linux ip:iproute2 nsenter:util-linux)
tests=(nbdinfo:libnbd-bin nbdcopy:libnbd-bin nbdfuse:libnbd-bin qemu-img:qemu-utils qemu-io:qemu-utils
    losetup:mount mkfs.ext4:e2fsprogs mkfs.xfs:xfsprogs mkfs.btrfs:btrfs-progs mkfs.vfat:dosfstools
    sfdisk:fdisk fusermount3:fuse3 curl:curl openssl:openssl strace:strace setpriv:util-linux
    debootstrap:debootstrap systemd-nspawn:systemd-container lintian:lintian dpkg-shlibdeps:dpkg-dev strip:binutils
    chromium:chromium script:bsdutils python3:python3 zsh:zsh fish:fish mandoc:mandoc groff:groff-base
    xz:xz-utils iptables:iptables)
benches=(iperf3:iperf3)
# For the guest: what runs it, and what goes into it.
guests=(qemu-system-x86_64:qemu-system-x86 busybox:busybox-static modprobe:kmod depmod:kmod xz:xz-utils strip:binutils
    mkfs.ext4:e2fsprogs mkfs.xfs:xfsprogs mkfs.btrfs:btrfs-progs lsblk:util-linux mount:mount)

case "${1:-test}" in
    test) wanted=("${common[@]}" "${tests[@]}") ;;
    bench) wanted=("${common[@]}" "${benches[@]}") ;;
    vm) wanted=("${guests[@]}") ;;
    *) echo "usage: $0 test|bench|vm" >&2; exit 2 ;;
esac

export PATH="$PATH:/usr/sbin:/sbin"
missing_programs() { for pair in "${wanted[@]}"; do command -v "${pair%%:*}" >/dev/null || echo "$pair"; done; }

install_packages() {
    apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@"
}

install_programs() {
    local missing packages log
    missing=$(missing_programs)
    [ -z "$missing" ] && return 0

    packages=$(sed 's/.*://' <<<"$missing" | sort -u | tr '\n' ' ')
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "these programs are missing: $(sed 's/:.*//' <<<"$missing" | tr '\n' ' ')" >&2
        echo "install them first, for example with: sudo apt-get install $packages" >&2
        exit 1
    fi

    echo "installing: $packages"
    log=$(mktemp)
    # shellcheck disable=SC2086 # a list of words
    # Another install may hold the lock of the package database: once more, a little later.
    if ! install_packages $packages >"$log" 2>&1 && { sleep 20; ! install_packages $packages >"$log" 2>&1; }; then
        cat "$log" >&2
        echo "could not install: $packages" >&2
        exit 1
    fi
    rm -f "$log"
    missing=$(missing_programs)
    if [ -n "$missing" ]; then
        echo "installed, and still not found: $missing" >&2
        exit 1
    fi
}

tools=${BRAID_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/braid-tools}

# Checkers of the API, in an environment of their own. Their versions are pinned: a newer one judges otherwise.
install_checkers() {
    local wanted=openapi-checks.txt log
    cmp -s "scripts/$wanted" "$tools/venv/$wanted" && return 0
    if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
        if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
            echo "python3 has no module venv: install it first, for example with: sudo apt-get install python3-venv" >&2
            exit 1
        fi
        install_packages python3-venv >/dev/null
    fi
    echo "installing: $(tr '\n' ' ' <"scripts/$wanted")"
    rm -rf "$tools/venv"
    mkdir -p "$tools"
    python3 -m venv "$tools/venv"
    log=$(mktemp)
    local pip=("$tools/venv/bin/pip" install --quiet --disable-pip-version-check -r "scripts/$wanted")
    if ! "${pip[@]}" >"$log" 2>&1 && { sleep 20; ! "${pip[@]}" >"$log" 2>&1; }; then
        cat "$log" >&2
        echo "could not install: $(tr '\n' ' ' <"scripts/$wanted")" >&2
        exit 1
    fi
    rm -f "$log"
    cp "scripts/$wanted" "$tools/venv/$wanted"
}

# promtool without the server of its package, which would be started.
install_promtool() {
    command -v promtool >/dev/null && return 0
    [ -x "$tools/bin/promtool" ] && return 0
    if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
        echo "promtool is missing: install it first (it comes with Prometheus)" >&2
        exit 1
    fi
    echo "installing: promtool"
    local folder
    folder=$(mktemp -d)
    mkdir -p "$tools/bin"
    # The lists of packages may be old, or not there at all.
    if ! (cd "$folder" && { apt-get download -q prometheus || { apt-get update -q && apt-get download -q prometheus; }; } >log 2>&1 &&
        dpkg-deb -x prometheus_*.deb . && install -m 0755 usr/bin/promtool "$tools/bin/promtool"); then
        cat "$folder/log" >&2
        rm -rf "$folder"
        echo "could not install: promtool" >&2
        exit 1
    fi
    rm -rf "$folder"
}

# PostgreSQL, without the server that its package would begin: the tests have their own.
install_postgresql() {
    compgen -G '/usr/lib/postgresql/*/bin/pg_amcheck' >/dev/null && compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null && return 0
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "PostgreSQL is missing: install it first, for example with: sudo apt-get install postgresql" >&2
        exit 1
    fi
    echo "installing: postgresql"
    # The package reads this before it makes a server; afterwards it is as if it had never been there.
    local place=/etc/postgresql-common/createcluster.d log
    log=$(mktemp)
    mkdir -p "$place"
    echo "create_main_cluster = false" >"$place/of-the-tests-of-braid.conf"
    if ! install_packages postgresql >"$log" 2>&1 && { sleep 20; ! install_packages postgresql >"$log" 2>&1; }; then
        cat "$log" >&2
        rm -f "$place/of-the-tests-of-braid.conf"
        echo "could not install: postgresql" >&2
        exit 1
    fi
    rm -f "$place/of-the-tests-of-braid.conf" "$log"
}

# The guest's kernel and the programs for it whose packages would begin something on the host: unpacked, not installed.
install_guest() {
    local vm=$tools/vm packages folder name
    [ -s "$vm/kernel-version" ] && return 0
    if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
        echo "the guest's kernel is Debian's package linux-image-6.12-amd64, which needs apt-get and dpkg-deb to be had" >&2
        exit 1
    fi
    folder=$(mktemp -d)
    echo "fetching: the guest's kernel"
    # The lists of packages may be old, or not there at all.
    kernel_package() { apt-cache depends linux-image-6.12-amd64 2>/dev/null | sed -nE 's/^ *Depends: (linux-image-6\.12.*)/\1/p'; }
    fetch() {
        name=$(kernel_package) && [ -n "$name" ] &&
            (cd "$folder" && apt-get download -q "$name" nbd-client libnl-3-200 libnl-genl-3-200 >log 2>&1)
    }
    if ! fetch && ! { apt-get update -q >/dev/null 2>&1; fetch; }; then
        cat "$folder/log" 2>/dev/null >&2 || true
        rm -rf "$folder"
        echo "could not fetch the guest's kernel (linux-image-6.12-amd64 of Debian 12's security archive): is there a network?" >&2
        exit 1
    fi
    rm -rf "$vm"
    mkdir -p "$vm/kernel" "$vm/packages"
    for packages in "$folder"/*.deb; do
        case "$packages" in
            */linux-image-*) dpkg-deb -x "$packages" "$vm/kernel" ;;
            *) dpkg-deb -x "$packages" "$vm/packages" ;;
        esac
    done
    rm -rf "$folder"
    name=$(ls "$vm/kernel/lib/modules")
    depmod -b "$vm/kernel" "$name"
    # Written last: a folder without it is begun anew.
    echo "$name" >"$vm/kernel-version"
}

cd "$(dirname "$0")/.."
install_programs
[ "${1:-test}" = vm ] && install_guest
if [ "${1:-test}" = test ]; then
    install_checkers
    install_promtool
    install_postgresql
fi
