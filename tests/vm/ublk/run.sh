# A mirror as a block device with two queues: a file system on it lives through daemons that are killed and stopped, and the
# device is removed only when nobody uses it.
. /scenarios/common.sh
modprobe ext4
modprobe -r ublk_drv 2>/dev/null || true
start_daemon
braid array create fast --level raid1 /dev/vda /dev/vdb --yes
if braid export add fast --ublk 2>refused; then result "added without a driver"; fi
grep -q 'modprobe ublk_drv' refused && result "without the driver: refused, with the way out"

modprobe ublk_drv
braid export add fast --ublk --queues 3 2>refused || grep -q -- '--shards' refused && result "more queues than shards: refused"
braid export add fast --ublk --depth 5000 2>refused || grep -q 4096 refused && result "deeper than the driver takes: refused"
braid export add fast --ublk --queues 2 --depth 64
disk=/dev/braid/fast
result "path: $(readlink $disk)"
braid export show fast
sys=/sys/block/ublkb0
result "size: $(($(cat $sys/size) * 512 == $(braid export show fast --json | sed -nE 's/.*"size_bytes": ?([0-9]+).*/\1/p')))"
result "queues: $(ls $sys/mq | wc -l), depth: $(cat $sys/mq/0/nr_tags)"
result "cache: $(cat $sys/queue/write_cache), fua: $(cat $sys/queue/fua), rotational: $(cat $sys/queue/rotational)"
result "blocks: $(cat $sys/queue/logical_block_size) $(cat $sys/queue/physical_block_size), longest: $(cat $sys/queue/max_hw_sectors_kb) KiB"
result "discard: $(cat $sys/queue/discard_granularity) $(cat $sys/queue/discard_max_hw_bytes)"

mkfs.ext4 -q -F $disk
mkdir -p mnt
mount $disk mnt
fill mnt "$PWD/sums"
fstrim mnt && result "trimmed"
braid export remove fast 2>refused || grep -q "mounted on" refused && result "removal while mounted: refused"
# Its other device, which nobody uses, comes first, and stays.
braid export add fast --ublk --name before --queues 1
braid array delete fast --yes --force 2>refused || grep -q "mounted on" refused && result "deletion while mounted: refused"
dd if=/dev/braid/before of=/dev/null bs=4096 count=1 iflag=direct 2>/dev/null && result "deletion while mounted: the other device serves"
braid export remove before

# Killed under load, three times. Those who write notice a pause.
for round in 1 2 3; do
    dd if=/dev/urandom of=mnt/load$round bs=64k count=200 conv=fsync 2>/dev/null &
    writer=$!
    sleep 0.3
    kill -9 $daemon
    wait $daemon 2>/dev/null || true
    start_daemon
    await_export fast
    wait $writer && result "killed, round $round: the writer noticed nothing"
    (cd mnt && sha256sum load$round) >>sums
done
readlink $disk

# Ended in order, and started again.
kill -TERM $daemon
wait $daemon || true
start_daemon
await_export fast
echo 3 >/proc/sys/vm/drop_caches
check mnt "$PWD/sums" && result "every byte as written"

# Its array is stopped below it, and is back: who reads meanwhile waits.
braid array stop fast --force >/dev/null
(echo 3 >/proc/sys/vm/drop_caches; cat mnt/large >/dev/null && echo went on >reader) &
sleep 1
[ -e reader ] && result "a reader of a stopped array was answered"
braid array assemble fast >/dev/null
wait $!
result "a reader of a stopped array: $(cat reader)"

umount mnt
fsck.ext4 -fn $disk >/dev/null && result "checked: clean"
dd if=/dev/zero of=$disk bs=1M count=4 oflag=direct 2>/dev/null
blkdiscard $disk && [ "$(dd if=$disk bs=1M count=8 2>/dev/null | tr -d '\0' | wc -c)" = 0 ] && result "discarded: zeroes"
# Somebody has it open, and not for himself alone: he gets errors, and it is gone at once.
exec 9<>$disk
begun=$(date +%s)
braid export remove fast && [ $(($(date +%s) - begun)) -lt 15 ] && result "removal while open: done"
result "left behind: $(ls /dev/ublkb0 /dev/ublkc0 $disk 2>/dev/null | wc -l)"
dd if=/dev/zero bs=4096 count=1 conv=fsync >&9 2>/dev/null || result "who has it open: gets errors"
exec 9<&-

braid export add fast --ublk --read-only --name ro
dd if=/dev/zero of=/dev/braid/ro bs=4096 count=1 oflag=direct 2>/dev/null || result "read-only: writes are refused"
braid export remove ro

# Drivers before Linux 6.16 keep the size that a device began with.
braid pool create tank /dev/vdc --yes >/dev/null
braid volume create tank/db 64M >/dev/null
braid export add tank/db --ublk >/dev/null
result "sectors: $(blockdev --getsz /dev/braid/tank/db)"
braid volume resize tank/db 96M >/dev/null
for _ in $(seq 50); do
    grep -q "its block device stays at 67108864" daemon.log && break
    sleep 0.1
done
grep -q "its block device stays at 67108864" daemon.log && result "resized: the device keeps its size, and that is said"
braid export remove tank/db >/dev/null
braid export add tank/db --ublk >/dev/null
result "sectors of the device that is added again: $(blockdev --getsz /dev/braid/tank/db)"

# Rolled back under a writer: the device stays, no write fails, and nothing written before the rollback shows after it.
content() { dd if=/dev/braid/tank/db bs=1M count=8 iflag=direct 2>/dev/null | sha256sum; }
dd if=/dev/urandom of=/dev/braid/tank/db bs=1M count=8 oflag=direct 2>/dev/null
before=$(content)
device=$(readlink /dev/braid/tank/db)
braid snapshot create tank/db@one >/dev/null
(while [ ! -e written ]; do
    dd if=/dev/zero of=/dev/braid/tank/db bs=64k count=128 oflag=direct 2>/dev/null || touch not-written
done) &
writer=$!
sleep 1
for round in 1 2 3; do braid volume rollback tank/db@one --yes >/dev/null || touch not-rolled-back; done
sleep 1
touch written
wait $writer
[ "$(content)" != "$before" ] && result "rolled back under a writer: its writes after that are there"
braid volume rollback tank/db@one --yes >/dev/null
result "rolled back: $([ "$(content)" = "$before" ] && echo the content of the snapshot)"
result "rolled back: $(ls not-written not-rolled-back 2>/dev/null | wc -l) failures, $([ "$(readlink /dev/braid/tank/db)" = "$device" ] && echo the same device)"
braid export remove tank/db >/dev/null

# A daemon of somebody who may not use the driver.
echo "nobody:x:65534:65534::/tmp:/bin/sh" >>/etc/passwd
mkdir nobodys && chmod 777 nobodys
chmod 755 . ..
su -s /bin/sh nobody -c "BRAID_SOCKET=$PWD/nobodys/socket BRAID_STATE=$PWD/nobodys/state braid serve --shards 1" >nobodys.log 2>&1 &
for _ in $(seq 600); do
    grep -q "the daemon started in" nobodys.log && break
    sleep 0.1
done
BRAID_SOCKET=$PWD/nobodys/socket braid array create small --level raid0 mem:64M --yes >/dev/null
BRAID_SOCKET=$PWD/nobodys/socket braid export add small --ublk 2>refused || grep -q "run the daemon as root" refused && result "without permission: refused, with the reason"
