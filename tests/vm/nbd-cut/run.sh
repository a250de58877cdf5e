# The kernel's NBD client loses all of its connections under a mounted file system. A device that is told to wait gets others, and
# nobody notices more than a pause; with one that is not, who writes gets errors, and what was acknowledged is there
# after it was made anew.
. /scenarios/common.sh
modprobe nbd
modprobe ext4
start_daemon
braid array create fast --level raid1 /dev/vda /dev/vdb --yes >/dev/null
braid export add fast --nbd tcp:127.0.0.1:10809 >/dev/null
serve_again() {
    kill -9 $daemon
    wait $daemon 2>/dev/null || true
    start_daemon
    await_export fast
}
begin_writers() { # acknowledgements
    mkdir "$1"
    writers=""
    for writer in 0 1 2; do
        power-cut write mnt "$1" $writer &
        writers="$writers $!"
    done
}

power-cut nbd connect 127.0.0.1:10809 fast 0 4
mkfs.ext4 -q -F /dev/nbd0
mkdir mnt
mount -t ext4 /dev/nbd0 mnt
begin_writers acks
for round in 1 2; do
    sleep 1
    serve_again
    power-cut nbd reconnect 127.0.0.1:10809 fast 0 4
    before=$(cat acks/0 acks/1 acks/2)
    for _ in $(seq 150); do
        [ "$(cat acks/0 acks/1 acks/2)" != "$before" ] && break
        sleep 0.1
    done
    result "round $round: $([ "$(cat acks/0 acks/1 acks/2)" != "$before" ] && echo the writers go on)"
done
touch acks/enough
failed=0
for writer in $writers; do wait $writer || failed=$((failed + 1)); done
result "writers with errors: $failed"
result "connections: $(braid export show fast --json | sed -nE 's/.*"connections": ?([0-9]+).*/\1/p' | head -n 1)"
echo 3 >/proc/sys/vm/drop_caches
power-cut check mnt acks && result "everything acknowledged is there"
rm mnt/*ed-*
umount mnt
fsck.ext4 -fn /dev/nbd0 >/dev/null && result "checked: clean"
nbd-client -d /dev/nbd0 >/dev/null

# Without waiting.
nbd-client -t 5 -C 4 -N fast -b 4096 127.0.0.1 10809 /dev/nbd1 >/dev/null
mount -t ext4 /dev/nbd1 mnt
begin_writers others
sleep 1
serve_again
failed=0
for writer in $writers; do wait $writer || failed=$((failed + 1)); done
result "without waiting: writers with errors: $failed"
umount mnt
nbd-client -d /dev/nbd1 >/dev/null
nbd-client -t 5 -C 4 -N fast -b 4096 127.0.0.1 10809 /dev/nbd1 >/dev/null
mount -t ext4 /dev/nbd1 mnt
power-cut check mnt others && result "made anew: everything acknowledged is there"
umount mnt
fsck.ext4 -fn /dev/nbd1 >/dev/null && result "checked: clean"
nbd-client -d /dev/nbd1 >/dev/null
