# A file system on a volume by ublk, mounted by Braid itself: through an upgrade of the daemon, and a takeover that something was in
# the way of. Then a device whose export nobody knows any more.
. /scenarios/common.sh
modprobe ext4
modprobe ublk_drv
start_daemon --buffers 8M
braid pool create tank /dev/vda --yes
braid volume create tank/db 64M
mkdir -p mnt
braid mount tank/db mnt --mkfs --json | grep -q '"via": "ublk"' && result "made and mounted by ublk"
braid mount tank/db mnt --mkfs | grep -q already && result "said twice, done once"
braid status | grep -q user_recovery && result "the driver's features are in the status"

dd if=/dev/urandom of=mnt/load bs=64k count=200 conv=fsync 2>/dev/null &
writer=$!
sleep 0.2
braid serve --upgrade
wait $writer && result "upgraded: the writer noticed nothing"
kill -0 $daemon && result "the process is the same"
(cd mnt && sha256sum load) >sums

# Its stable path cannot be made when the daemon comes back: who reads waits, until what is in the way has gone.
kill -9 $daemon
wait $daemon 2>/dev/null || true
mount -t tmpfs -o ro none /dev/braid
start_daemon --buffers 8M
grep -q "does not listen: the link" daemon.log && result "taken over by half"
(echo 3 >/proc/sys/vm/drop_caches; cat mnt/load >/dev/null && echo went on >reader) &
sleep 0.5
[ -e reader ] && result "a reader was answered meanwhile"
umount /dev/braid
wait $!
result "tried again: a reader $(cat reader)"
(cd mnt && sha256sum -c -s ../sums) && result "every byte as written"
braid umount mnt
result "left behind: $(ls /dev/ublkb* /dev/ublkc* /dev/braid/tank 2>/dev/null | wc -l)"

# The state is lost with the device still there.
braid export add tank/db --ublk --name lost
kill -9 $daemon
wait $daemon 2>/dev/null || true
rm state/state.json
start_daemon --buffers 8M
braid export repair --dry-run | grep -q "to no export" && [ -e /dev/ublkb0 ] && result "found, and not removed by looking"
braid export repair | grep -q "was removed" && result "removed"
result "left behind: $(ls /dev/ublkb* /dev/ublkc* /dev/braid/lost 2>/dev/null | wc -l)"
