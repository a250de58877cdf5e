# The kernel's own NBD client on a mirror, over two connections: a file system on it lives, is checked, and comes back.
. /scenarios/common.sh
modprobe nbd
modprobe ext4
start_daemon
braid array create fast --level raid1 /dev/vda /dev/vdb --yes
braid export add fast --nbd tcp:127.0.0.1:10809

connect() { nbd-client -C 2 -N fast -b 4096 127.0.0.1 10809 /dev/nbd0 >/dev/null; }
connect
result "connections: $(braid export show fast --json | sed -nE 's/.*"connections": ?([0-9]+).*/\1/p' | head -n 1)"
result "flush: $(cat /sys/block/nbd0/queue/write_cache), fua: $(cat /sys/block/nbd0/queue/fua)"

mkfs.ext4 -q -F /dev/nbd0
mkdir -p mnt
mount /dev/nbd0 mnt
fill mnt "$PWD/sums"
rm mnt/many/7 && sed -i '/many\/7$/d' sums
fstrim mnt
umount mnt
fsck.ext4 -fn /dev/nbd0 >/dev/null && result "checked: clean"
nbd-client -d /dev/nbd0 >/dev/null

# The daemon is killed, and all that was written and flushed is there.
kill -9 $daemon
wait $daemon || true
start_daemon
await_export fast
connect
mount -o ro /dev/nbd0 mnt
check mnt "$PWD/sums" && result "after a kill: every byte as written"
umount mnt
nbd-client -d /dev/nbd0 >/dev/null
