# raid0 of three disks as a block device of Braid's against md's raid0 of the same three: either has a half of each of them.
. /scenarios/common.sh
. /scenarios/measure.sh
for module in ublk_drv md-mod raid0 dm-mod; do modprobe $module; done
half=1048576 # sectors
for disk in a b c; do
    dmsetup create --noudevsync braid-$disk --table "0 $half linear /dev/vd$disk 0"
    dmsetup create --noudevsync md-$disk --table "0 $half linear /dev/vd$disk $half"
done
dmsetup mknodes
start_daemon
braid array create ours --level raid0 --chunk 64K /dev/mapper/braid-a /dev/mapper/braid-b /dev/mapper/braid-c --yes >/dev/null
braid export add ours --ublk >/dev/null
mdadm --create /dev/md0 --run --level=0 --raid-devices=3 --chunk=64 /dev/mapper/md-a /dev/mapper/md-b /dev/mapper/md-c 2>/dev/null
written /dev/braid/ours
written /dev/md0
pairs md-4k-read /dev/braid/ours /dev/md0 randread 4k 32
pairs md-4k-write /dev/braid/ours /dev/md0 randwrite 4k 32
pairs md-1m-read /dev/braid/ours /dev/md0 read 1m 8
pairs md-1m-write /dev/braid/ours /dev/md0 write 1m 8
mdadm --stop /dev/md0 2>/dev/null
result "measured"
