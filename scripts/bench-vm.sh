#!/usr/bin/env bash
# What only a guest can measure: ublk against the kernel's own block drivers (`make bench`, part `ublk`). Prints the figures, one pair a line:
# which row, Braid's, and what it is held against.
#
#   scripts/bench-vm.sh BRAID
#
# In emulation only ratios within one run mean anything. One guest at a time: two would measure each other. Its disks are in memory, as the
# host would hold writes back in its own time, and each has a thread of its own: else who tells a disk of work waits for what all disks do.
# Its processor has no fast copying of bytes (erms), which emulation carries out byte by byte.
set -euo pipefail
cd "$(dirname "$0")/.."

[ $# = 1 ] || { echo "usage: $0 BRAID" >&2; exit 2; }
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
[ -w /dev/shm ] && export TMPDIR=/dev/shm
export VM_CPU=max,erms=off,fsrm=off VM_DISK_THREADS=yes
if ! VM_LOGS=$logs VM_GUESTS=1 VM_SECONDS=900 scripts/test-vm.sh "$1" bench-ublk bench-md bench-pause >"$logs/said" 2>&1; then
    cat "$logs/said" >&2
    exit 1
fi
cat "$logs/figures"
