# Disks that fail below mounted file systems: under raid0 the file system gets errors and the daemon lives; under raid1 nothing
# is noticed. When the disks are well again, so are the arrays, with what had been flushed.
. /scenarios/common.sh
for module in ublk_drv ext4 dm-mod; do modprobe $module; done
size=$((600 * 2048))
for disk in a b c d; do dmsetup create --noudevsync disk-$disk --table "0 $size linear /dev/vd$disk 0"; done
dmsetup mknodes
# From now on every request to it fails, as if it had been pulled out; or it is as before.
turn() { # disk, table
    dmsetup suspend --noudevsync --noflush --nolockfs disk-$1
    dmsetup load disk-$1 --table "$2"
    dmsetup resume --noudevsync disk-$1
}
start_daemon
braid array create striped --level raid0 /dev/mapper/disk-a /dev/mapper/disk-b --yes >/dev/null
braid array create mirror --level raid1 /dev/mapper/disk-c /dev/mapper/disk-d --yes >/dev/null
mkdir -p striped mirror
for name in striped mirror; do
    braid export add $name --ublk >/dev/null
    mkfs.ext4 -q -F /dev/braid/$name
    mount -t ext4 -o errors=remount-ro /dev/braid/$name $name
    dd if=/dev/urandom of=$name/before bs=64k count=100 conv=fsync 2>/dev/null
    (cd $name && sha256sum before) >$name.sums
done

turn a "0 $size error"
turn c "0 $size error"
dd if=/dev/urandom of=mirror/meanwhile bs=64k count=100 conv=fsync 2>/dev/null && result "mirror: a writer noticed nothing"
(cd mirror && sha256sum meanwhile) >>mirror.sums
dd if=/dev/urandom of=striped/meanwhile bs=64k count=100 conv=fsync 2>/dev/null || result "striped: a writer got an error"
state() { braid array show $1 | sed -nE 's/^state +//p'; }
health() { braid array show $1 | sed -nE 's/^health +//p'; }
kill -0 $daemon && result "the daemon lives; striped: $(state striped), mirror: $(health mirror)"
braid array show striped | grep -q 'disk-a .*failing' && result "the failing disk is named"
echo 3 >/proc/sys/vm/drop_caches
check mirror "$PWD/mirror.sums" && result "mirror: every byte as written"
umount mirror
fsck.ext4 -fn /dev/braid/mirror >/dev/null && result "mirror: checked, clean"

# Well again: the mirror's member returns, or is brought back. The striped array flushes nothing for as long as its disk is not
# opened anew, as nobody knows what became of what was written when it failed.
umount striped
turn a "0 $size linear /dev/vda 0"
turn c "0 $size linear /dev/vdc 0"
dd if=/dev/zero of=/dev/braid/striped bs=4k seek=20000 count=1 oflag=direct conv=fsync 2>/dev/null || result "striped: a flush fails as before"
braid array stop striped --force >/dev/null
braid array assemble striped >/dev/null
await_export striped
fsck.ext4 -fy /dev/braid/striped >/dev/null 2>&1 || [ $? = 1 ]
fsck.ext4 -fn /dev/braid/striped >/dev/null && result "striped: mended, clean"
mount -t ext4 /dev/braid/striped striped
check striped "$PWD/striped.sums" && result "striped: what was flushed before is there"
umount striped
[ "$(health mirror)" = whole ] || braid array add mirror /dev/mapper/disk-c >/dev/null || true
for _ in $(seq 600); do
    [ "$(health mirror)" = whole ] && break
    sleep 0.1
done
result "mirror: $(health mirror)"
check_again() { mount -t ext4 -o ro /dev/braid/mirror mirror && check mirror "$PWD/mirror.sums" && umount mirror; }
echo 3 >/proc/sys/vm/drop_caches
check_again && result "mirror: every byte as written, again"
for name in striped mirror; do braid export remove $name >/dev/null; done
kill -TERM $daemon
wait $daemon || true
dmsetup remove_all
