#!/usr/bin/env bash
# Runs Braid against the real kernel in a guest: its block layer, its NBD client, its file systems.
#
#   scripts/test-vm.sh BRAID [SCENARIO…]
#
# BRAID is the program to test. A scenario is a folder of tests/vm with `run.sh`, which runs in the guest, and `expected`,
# which its results have to be, line by line. Two guests run side by side, each takes the next scenario when it has done one. A
# scenario has its own folder and six empty disks of 1 GiB, /dev/vda to /dev/vdf. What the guest printed is shown when one fails.
#
# The guest is qemu in software emulation, as machines that build seldom have /dev/kvm or the kernel's modules. Its kernel is
# Debian's 6.12, unpacked and not installed, kept in BRAID_TOOLS, else ~/.cache/braid-tools. Nothing of the host is
# shared but one folder for the results.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:/usr/sbin:/sbin"

[ $# -ge 1 ] && [ -x "$1" ] || { echo "usage: $0 BRAID [SCENARIO…]" >&2; exit 2; }
braid=$(realpath "$1")
shift
scenarios=("$@")
# Those that take longest first; without those that measure (scripts/bench-vm.sh).
[ ${#scenarios[@]} -gt 0 ] ||
    mapfile -t scenarios < <(printf '%s\n' power-cut power-cut-pool killed
        find tests/vm -mindepth 1 -maxdepth 1 -type d -printf '%f\n' | grep -vx 'power-cut\|power-cut-pool\|killed\|bench-.*' | sort)
time_limit=${VM_SECONDS:-900} # A guest that hangs ends; a slow host is none of its faults.

scripts/install-tools.sh vm
tools=${BRAID_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/braid-tools}/vm
kernel=$(cat "$tools/kernel-version")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
share=$work/share
programs=$work/programs
mkdir -p "$root"/{bin,sbin,usr/bin,usr/sbin,proc,sys,dev,run,tmp,etc,root,var,share,mnt,programs,scenarios,"lib/modules/$kernel"} \
    "$programs"/{bin,sbin,lib,lib64} "$share"

# Programs of the host with what they are linked to. They are on a disk of their own, read as needed: fio alone is linked to
# 130 MB, which would have to be unpacked at each boot.
export LD_LIBRARY_PATH="$tools/packages/lib/x86_64-linux-gnu:$tools/packages/usr/lib/x86_64-linux-gnu"
add_program() { # from, to
    local libraries library
    install -m 0755 "$1" "$programs/$2"
    libraries=$(ldd "$1" 2>/dev/null || true)
    if grep -q 'not found' <<<"$libraries"; then
        echo "what $1 is linked to is not all there:" >&2
        grep 'not found' <<<"$libraries" >&2
        exit 1
    fi
    sed -nE 's/.*(=> |^\s+)(\/[^ ]+) .*/\2/p' <<<"$libraries" | while read -r library; do
        # One folder for all of them, and the loader where programs ask for it.
        case "$library" in
            */ld-linux*) cp -uL "$library" "$programs/lib64/" ;;
            *) cp -uL "$library" "$programs/lib/" ;;
        esac
    done
}
cp "$(command -v busybox)" "$root/bin/busybox"
ln -s /programs/lib64 "$root/lib64"
ln -s /programs/lib "$root/lib/x86_64-linux-gnu"
add_program "$braid" bin/braid
# Tools of the tests, built beside it.
for example in power-cut half-takeover; do
    path=$(dirname "$braid")/examples/$example
    [ -x "$path" ] || { echo "there is no $path: build it as the Makefile does, in the same profile" >&2; exit 2; }
    add_program "$path" bin/$example
done
strip --strip-debug "$programs"/bin/{braid,power-cut,half-takeover}
for program in nbd-client mdadm lvm dmsetup; do add_program "$tools/packages/sbin/$program" sbin/$program; done
for program in pvs pvcreate vgs vgcreate vgchange vgremove lvs lvcreate lvextend lvremove; do ln -s lvm "$programs/sbin/$program"; done
for program in mkfs.ext4 fsck.ext4 resize2fs mkfs.xfs xfs_repair mkfs.btrfs btrfs blockdev wipefs losetup; do add_program "$(command -v $program)" sbin/$program; done
for program in fio nice lsblk blkid mount umount; do add_program "$(command -v $program)" bin/$program; done
[ -e /etc/mke2fs.conf ] && cp /etc/mke2fs.conf "$root/etc/"
unset LD_LIBRARY_PATH
truncate -s 1G "$work/programs.img"
mkfs.ext4 -q -O ^has_journal -d "$programs" "$work/programs.img"
rm -rf "$programs"

# Modules, unpacked: busybox reads no xz.
modules=(virtio_blk 9p 9pnet_virtio nbd ublk_drv ext4 xfs btrfs loop null_blk
    md-mod raid0 raid1 raid10 raid456 dm-mod dm-flakey dm-log-writes dm-snapshot)
for module in "${modules[@]}"; do
    modprobe -d "$tools/kernel" -S "$kernel" --show-depends "$module" | sed -nE 's/^insmod ([^ ]+).*/\1/p'
done | sort -u | while read -r path; do
    to=$root/lib/modules/$kernel/${path##*/modules/"$kernel"/}
    mkdir -p "$(dirname "$to")"
    case "$path" in
        *.xz) xz -dc "$path" >"${to%.xz}" ;;
        *) cp "$path" "$to" ;;
    esac
done
cp "$tools/kernel/lib/modules/$kernel"/modules.{builtin,builtin.modinfo,order} "$root/lib/modules/$kernel/"
depmod -b "$root" "$kernel"

cp tests/vm/init "$root/init"
cp tests/vm/*.sh "$root/scenarios/"
for scenario in "${scenarios[@]}"; do
    [ -f "tests/vm/$scenario/run.sh" ] || { echo "there is no scenario $scenario in tests/vm" >&2; exit 2; }
    cp -r "tests/vm/$scenario" "$root/scenarios/"
    echo "$scenario"
done >"$share/order"
mkdir "$share/taken"
(cd "$root" && find . | busybox cpio -o -H newc 2>/dev/null) | gzip -1 >"$work/initrd"
started=$SECONDS
# Without no_timer_check a busy host makes the kernel believe that its timer is broken.
# qemu ends with 0 whatever the guest did: only what it wrote counts. An end by the time limit is one without results.
boot() { # which guest
    local guest=$1 disk disks=()
    add_disk() { # name, file, options
        local device=virtio-blk-pci,drive=$1,serial=$1
        [ -z "${VM_DISK_THREADS:-}" ] || { disks+=(-object "iothread,id=thread-$1"); device+=,iothread=thread-$1; }
        disks+=(-drive "file=$2,format=raw,if=none,id=$1,cache=writeback,$3" -device "$device")
    }
    for disk in a b c d e f; do
        truncate -s 1G "$work/$guest-$disk.img"
        add_disk $disk "$work/$guest-$disk.img" discard=unmap
    done
    add_disk programs "$work/programs.img" readonly=on
    nice -n 5 timeout "$time_limit" qemu-system-x86_64 -M q35 -cpu "${VM_CPU:-max}" -accel tcg,thread=multi,tb-size=1024 -m 2560 -smp 2 \
        -nodefaults -no-user-config -display none -serial "file:$work/console-$guest" -no-reboot \
        -kernel "$tools/kernel/boot/vmlinuz-$kernel" -initrd "$work/initrd" \
        -append "console=ttyS0 panic=-1 mitigations=off nokaslr no_timer_check quiet" \
        "${disks[@]}" \
        -virtfs "local,path=$share,mount_tag=share,security_model=none" </dev/null || true
}
guests=(0)
[ ${#scenarios[@]} = 1 ] || [ "${VM_GUESTS:-2}" = 1 ] || guests+=(1)
for guest in "${guests[@]}"; do boot "$guest" & done
wait

passed=0 failed=0
for scenario in "${scenarios[@]}"; do
    seconds=$(cat "$share/$scenario.seconds" 2>/dev/null || echo "?")
    same=yes
    diff -u "tests/vm/$scenario/expected" "$share/$scenario.results" >"$work/diff" 2>&1 || same=no
    if [ "$(cat "$share/$scenario.status" 2>/dev/null)" = 0 ] && [ $same = yes ]; then
        echo "scenario $scenario: ok ($seconds s)"
        passed=$((passed + 1))
        continue
    fi
    failed=$((failed + 1))
    echo "scenario $scenario: FAILED (status $(cat "$share/$scenario.status" 2>/dev/null || echo 'none: it did not end'), $seconds s)"
    echo "-- results against tests/vm/$scenario/expected"
    cat "$work/diff"
    echo "-- its log"
    tail -n 150 "$share/$scenario.log" 2>/dev/null || echo "(none: it did not begin)"
    echo "-- the guests' consoles"
    tail -n 40 "$work"/console-* 2>/dev/null || true
done
[ -z "${VM_LOGS:-}" ] || { mkdir -p "$VM_LOGS" && cp -r "$share"/. "$work"/console-* "$VM_LOGS"/; }
echo "guest: $passed passed, $failed failed, kernel $kernel, $((SECONDS - started)) s"
# The sum of `make test` counts lines such as this one.
echo "test result: $([ $failed = 0 ] && echo ok || echo FAILED). $passed passed; $failed failed;"
[ $failed = 0 ]
