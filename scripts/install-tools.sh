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
    xz:xz-utils iptables:iptables faketime:faketime)
benches=(iperf3:iperf3 nbdfuse:libnbd-bin losetup:mount umount:mount)
# For the guest: what runs it, and what goes into it.
guests=(qemu-system-x86_64:qemu-system-x86 busybox:busybox-static modprobe:kmod depmod:kmod xz:xz-utils strip:binutils
    mkfs.ext4:e2fsprogs mkfs.xfs:xfsprogs mkfs.btrfs:btrfs-progs lsblk:util-linux mount:mount fio:fio)

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

# Programs for the guest whose packages would begin something on the host, and what they need beyond Debian's own base.
guest_packages=(nbd-client libnl-3-200 libnl-genl-3-200 mdadm lvm2 dmsetup libdevmapper1.02.1 libdevmapper-event1.02.1
    libaio1 libedit2 libbsd0 libmd0)

kernel_package() { apt-cache depends linux-image-6.12-amd64 2>/dev/null | sed -nE 's/^ *Depends: (linux-image-6\.12.*)/\1/p'; }

# Packages into a folder; their lists may be old, or not there at all.
fetch_packages() { # folder, what to call it, package…
    local folder=$1 what=$2
    shift 2
    if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
        echo "$what comes in Debian's packages, which need apt-get and dpkg-deb to be had" >&2
        exit 1
    fi
    echo "fetching: $what"
    if ! (cd "$folder" && { apt-get download -q "$@" || { apt-get update -q && apt-get download -q "$@"; }; } >log 2>&1); then
        cat "$folder/log" >&2
        rm -rf "$folder"
        echo "could not fetch $what ($*): is there a network?" >&2
        exit 1
    fi
}

# The guest's kernel and the programs for it: unpacked, not installed.
install_guest() {
    local vm=$tools/vm package folder name
    if [ ! -s "$vm/kernel-version" ]; then
        command -v apt-cache >/dev/null && { [ -n "$(kernel_package)" ] || apt-get update -q >/dev/null 2>&1; }
        name=$(kernel_package || true)
        folder=$(mktemp -d)
        # Without a name, the message says what was looked for.
        fetch_packages "$folder" "the guest's kernel" "${name:-linux-image-6.12-amd64}"
        rm -rf "$vm/kernel"
        mkdir -p "$vm/kernel"
        dpkg-deb -x "$folder"/linux-image-*.deb "$vm/kernel"
        rm -rf "$folder"
        name=$(ls "$vm/kernel/lib/modules")
        depmod -b "$vm/kernel" "$name"
        # Written last: a folder without it is begun anew.
        echo "$name" >"$vm/kernel-version"
    fi
    if [ "$(cat "$vm/packages/list" 2>/dev/null)" != "${guest_packages[*]}" ]; then
        folder=$(mktemp -d)
        fetch_packages "$folder" "programs for the guest" "${guest_packages[@]}"
        rm -rf "$vm/packages"
        mkdir -p "$vm/packages"
        for package in "$folder"/*.deb; do dpkg-deb -x "$package" "$vm/packages"; done
        rm -rf "$folder"
        echo "${guest_packages[*]}" >"$vm/packages/list"
    fi
}

cd "$(dirname "$0")/.."
install_programs
[ "${1:-test}" = vm ] && install_guest
if [ "${1:-test}" = test ]; then
    install_checkers
    install_promtool
    install_postgresql
fi
