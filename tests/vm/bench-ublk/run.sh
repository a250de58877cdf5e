# A block device of Braid's on a file against the kernel's loop driver on the same file, both past the page cache; one of a disk that does nothing against
# the kernel's null_blk; two queues against one.
. /scenarios/common.sh
. /scenarios/measure.sh
for module in ublk_drv loop; do modprobe $module; done
modprobe null_blk nr_devices=1 gb=1 submit_queues=1 queue_mode=2 irqmode=0

mkfs.ext4 -q -F /dev/vda
mkdir mnt
mount /dev/vda mnt
dd if=/dev/zero of=mnt/file bs=1M count=512 conv=fsync 2>/dev/null
start_daemon
braid array create one --level concat "$PWD/mnt/file" --yes >/dev/null
braid export add one --ublk --queues 1 >/dev/null
# The other half of the same file. Not busybox' own losetup, which knows no direct I/O.
/programs/sbin/losetup --direct-io=on --sector-size 4096 --offset $((256 << 20)) /dev/loop0 "$PWD/mnt/file"
[ "$(cat /sys/block/loop0/loop/dio)" = 1 ]
written /dev/braid/one
written /dev/loop0
pairs loop-read /dev/braid/one /dev/loop0 randread 4k 32
pairs loop-write /dev/braid/one /dev/loop0 randwrite 4k 32
/programs/sbin/losetup -d /dev/loop0
braid export remove one >/dev/null

braid array create null --level concat null:1G --yes >/dev/null
braid export add null --ublk --queues 1 --name single >/dev/null
braid export add null --ublk --queues 2 --name double >/dev/null
pairs null-read /dev/braid/single /dev/nullb0 randread 4k 32
pairs null-write /dev/braid/single /dev/nullb0 randwrite 4k 32
pairs queues-read /dev/braid/double /dev/braid/single randread 4k 32 2
pairs queues-write /dev/braid/double /dev/braid/single randwrite 4k 32 2
result "measured"
