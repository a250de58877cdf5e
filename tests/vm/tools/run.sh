# What other scenarios need of the guest itself: the kernel's modules, and programs that run.
. /scenarios/common.sh
for module in md-mod raid0 raid1 raid10 raid456 dm-mod dm-flakey dm-log-writes dm-snapshot xfs btrfs null_blk loop nbd ublk_drv; do
    modprobe $module || result "no $module"
done
result "device-mapper: $(dmsetup targets | grep -cE '^(linear|error|flakey|log-writes|snapshot) ')"
mdadm --create /dev/md0 --run --level 5 -n 3 --assume-clean /dev/vda /dev/vdb /dev/vdc
result "md: $(sed -nE 's/^md0 : (active raid5).*/\1/p' /proc/mdstat)"
mdadm --stop /dev/md0
pvcreate -ff -y /dev/vdd >/dev/null
result "lvm: $(pvs --noheadings -o pv_name | tr -d ' ')"
fio --name some --filename /dev/vde --size 1M --rw randwrite --bs 4k --direct 1 --ioengine libaio --verify crc32c >/dev/null && result "fio: verified"
