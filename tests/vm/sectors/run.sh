# A volume with blocks of 512 bytes as a block device: what the kernel says of it, two writers at the sectors of the same blocks while the
# daemon is killed, and a file system with small blocks. And a volume of 16 TiB of which nothing was written, discarded.
. /scenarios/common.sh
for module in ublk_drv ext4; do modprobe $module; done
start_daemon
braid pool create tank /dev/vda /dev/vdb --yes >/dev/null
braid volume create tank/disk 512M --block-size 512 >/dev/null
braid export add tank/disk --ublk --queues 2 --name disk >/dev/null
disk=/dev/braid/disk
result "blocks: $(/programs/sbin/blockdev --getss --getpbsz $disk | tr '\n' ' ' | sed 's/ $//')"

# Every other sector each: neither may take away what the other has written.
writers() { # more options of fio
    fio --direct=1 --ioengine=libaio --iodepth=16 --bs=512 --rw=write:512 --size=2M --filename=$disk --verify=crc32c \
        --group_reporting=0 "$@" --name=even --offset=0 --name=odd --offset=512 >fio.log 2>&1 || { cat fio.log; return 1; }
}
writers && result "both as written"
writers --do_verify=0 &
fio=$!
for _ in 1 2 3; do
    sleep 0.3
    kill -9 $daemon
    wait $daemon 2>/dev/null || true
    start_daemon
    await_export disk
done
wait $fio && result "both have written through three kills"
writers --verify_only && result "both as written after the kills"

mkfs.ext4 -q -F -b 1024 $disk
mkdir -p mnt
mount $disk mnt
fill mnt "$PWD/sums"
kill -9 $daemon
wait $daemon 2>/dev/null || true
start_daemon
await_export disk
echo 3 >/proc/sys/vm/drop_caches
check mnt "$PWD/sums" && result "every byte as written"
umount mnt
fsck.ext4 -fn $disk >/dev/null && result "checked: clean"
braid export remove disk >/dev/null && result "removed"

braid volume create tank/wide 16T >/dev/null
braid export add tank/wide --ublk --queues 2 --name wide >/dev/null
before=$(cut -d' ' -f1 /proc/uptime)
blkdiscard /dev/braid/wide && result "16 TiB of nothing discarded"
echo "seconds since the start, before and after: $before $(cut -d' ' -f1 /proc/uptime)"
braid export remove wide >/dev/null
