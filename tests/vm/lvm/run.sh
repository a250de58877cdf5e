# LVM on a block device of Braid: a physical volume, a logical volume with a file system that grows while it is mounted, the
# daemon killed meanwhile. And what the kernel's tools say of the device.
. /scenarios/common.sh
for module in ublk_drv ext4 dm-mod; do modprobe $module; done
start_daemon
braid array create rows --level raid10 /dev/vda /dev/vdb /dev/vdc --yes >/dev/null
braid export add rows --ublk --queues 2 >/dev/null
disk=/dev/braid/rows
# LVM reads every block device that there is: one whose daemon is gone for good would hold it for ever.
# With a configuration of its own: what comes next in this guest has the usual one.
export LVM_SYSTEM_DIR=$PWD/lvm
mkdir -p $LVM_SYSTEM_DIR
cat >$LVM_SYSTEM_DIR/lvm.conf <<END
activation { udev_sync = 0 udev_rules = 0 monitoring = 0 }
devices { use_devicesfile = 0 global_filter = [ "a|^$(readlink -f $disk)\$|", "r|.*|" ] }
END
size=$(braid export show rows --json | sed -nE 's/.*"size_bytes": ?([0-9]+).*/\1/p')
result "sectors: $(($(blockdev --getsz $disk) * 512 == size)), blocks: $(/programs/sbin/blockdev --getss --getpbsz $disk | tr '\n' ' ')read-only: $(blockdev --getro $disk)"
result "lsblk: $(lsblk -t -n -o PHY-SEC,LOG-SEC,ROTA,DISC-GRAN,DISC-MAX $(readlink -f $disk) | tr -s ' ' | sed 's/^ //; s/ $//')"
result "queues: $(ls /sys/block/$(basename $(readlink -f $disk))/mq | wc -l)"

pvcreate -y $(readlink -f $disk) >/dev/null
vgcreate of-braid $(readlink -f $disk) >/dev/null
lvcreate -y -Zn -Wn -n data -L 200M of-braid >/dev/null
vgchange --mknodes of-braid >/dev/null 2>&1 || true
dmsetup mknodes
volume=/dev/mapper/of--braid-data
mkfs.ext4 -q -F $volume
mkdir -p mnt
mount $volume mnt
dd if=/dev/urandom of=mnt/one bs=64k count=200 conv=fsync 2>/dev/null
(cd mnt && sha256sum one) >sums
kill -9 $daemon
wait $daemon 2>/dev/null || true
start_daemon
await_export rows
lvextend -L +200M of-braid/data >/dev/null
resize2fs $volume >/dev/null 2>&1
dd if=/dev/urandom of=mnt/two bs=64k count=200 conv=fsync 2>/dev/null
(cd mnt && sha256sum two) >>sums
result "grown while mounted: $(($(blockdev --getsz $volume) / 2048)) MiB"
echo 3 >/proc/sys/vm/drop_caches
check mnt "$PWD/sums" && result "every byte as written"
braid export remove rows 2>refused || grep -q "in use\|holds\|part of\|held" refused && result "removal while LVM has it: refused"
cat refused
umount mnt
fsck.ext4 -fn $volume >/dev/null && result "checked: clean"
blkdiscard $volume && [ "$(dd if=$volume bs=1M count=16 2>/dev/null | tr -d '\0' | wc -c)" = 0 ] && result "discarded through LVM: zeroes"
vgchange -an of-braid >/dev/null
braid export remove rows >/dev/null && result "removed"
