#!/usr/bin/env bash
# Measures in a guest what needs one: ublk against the kernel's block drivers (`make bench`, part `ublk`; xtask runs this). Prints one pair of figures
# a line: the name of the line in the table, Braid's figure, and that of its rival.
#
#   scripts/bench-vm.sh BRAID
#
# In emulation only ratios within one run are meaningful. One guest runs at a time: two would disturb each other. The guest's disks are in memory,
# because the host would delay writes, and each has a thread of its own: otherwise submitting to one disk waits for the I/O of all disks.
# The guest's processor has no fast copying of bytes (erms), which emulation executes byte by byte.
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
