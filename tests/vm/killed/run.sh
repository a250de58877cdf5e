# The daemon is killed ten times, in the midst of work, under three mounted file systems of three kinds, on a mirror, on an array
# with parity and on a pool's volume, while fio writes and verifies in each. Nobody notices more than a pause.
. /scenarios/common.sh
for module in ublk_drv ext4 xfs btrfs dm-mod; do modprobe $module; done
# Disks under 1 GiB have a small journal, which is read at each start: that is what takes time here.
for disk in c d e; do
    dmsetup create --noudevsync small-$disk --table "0 $((600 * 2048)) linear /dev/vd$disk 0"
done
dmsetup mknodes
start_daemon
braid array create mirror --level raid1 /dev/vda /dev/vdb --yes >/dev/null
braid array create rows --level raid5 /dev/mapper/small-c /dev/mapper/small-d /dev/mapper/small-e --yes >/dev/null
braid pool create tank /dev/vdf --yes >/dev/null
braid volume create tank/thin 2G >/dev/null
for name in mirror rows tank/thin; do braid export add $name --ublk --queues 2 --depth 32 >/dev/null; done

mkfs.ext4 -q -F /dev/braid/mirror
mkfs.xfs -q -f /dev/braid/rows
mkfs.btrfs -q -f /dev/braid/tank/thin
mkdir -p ext4 xfs btrfs
mount -t ext4 /dev/braid/mirror ext4
mount -t xfs /dev/braid/rows xfs
mount -t btrfs /dev/braid/tank/thin btrfs

# Writes a file at random, with an fsync now and then, reads it back and compares, and begins again. The daemon comes first.
work_in() { # folder
    while [ ! -e "$PWD/enough" ]; do
        nice -n 10 fio --name verified --filename "$1/verified" --size 2M --rw randwrite --bs 4k --ioengine libaio --iodepth 16 --direct 1 \
            --fsync 32 --verify crc32c --verify_fatal 1 --verify_backlog 256 >"$1.fio" 2>&1 || { touch "$1.failed"; return; }
        echo >>"$1.rounds"
    done
}
for kind in ext4 xfs btrfs; do work_in $kind & eval "worker_$kind=\$!"; done

for round in $(seq 10); do
    # At another moment each time.
    sleep 0.$((round * 37 % 90 + 10))
    kill -9 $daemon
    wait $daemon 2>/dev/null || true
    start_daemon
done
result "killed ten times"
touch enough
for kind in ext4 xfs btrfs; do
    eval "wait \$worker_$kind"
    echo "$kind: $(wc -l <$kind.rounds) rounds"
    if [ -e $kind.failed ]; then
        cat $kind.fio
        result "$kind: fio failed"
    elif [ "$(wc -l <$kind.rounds)" -ge 1 ]; then
        result "$kind: fio verified what it wrote"
    fi
done

# And everything is where it was said to be, when nothing of it is in memory.
for kind in ext4 xfs btrfs; do
    dd if=/dev/urandom of=$kind/other bs=64k count=20 conv=fsync 2>/dev/null
    (cd $kind && sha256sum verified other) >$kind.sums
    umount $kind
done
mount -t ext4 /dev/braid/mirror ext4
mount -t xfs /dev/braid/rows xfs
mount -t btrfs /dev/braid/tank/thin btrfs
for kind in ext4 xfs btrfs; do
    check $kind "$PWD/$kind.sums" && result "$kind: every byte as written"
    umount $kind
done
fsck.ext4 -fn /dev/braid/mirror >/dev/null && result "ext4: checked, clean"
xfs_repair -n /dev/braid/rows >xfs.check 2>&1 && result "xfs: checked, clean"
btrfs check --readonly /dev/braid/tank/thin >btrfs.check 2>&1 && result "btrfs: checked, clean"
result "the kernel: $(dmesg | grep -cE 'I/O error|EXT4-fs error|XFS.*(corrupt|error|shut)|BTRFS (error|critical)') errors"
for name in mirror rows tank/thin; do braid export remove $name >/dev/null; done
kill $daemon
wait $daemon || true
dmsetup remove_all
