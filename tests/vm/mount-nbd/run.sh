# `braid mount` where the kernel has an NBD client and no ublk: a file system on a volume over several connections. The daemon is killed
# under load and upgraded, and gives the device its connections back; a snapshot is mounted beside it; unmounting leaves nothing.
. /scenarios/common.sh
modprobe ext4
modprobe -r ublk_drv 2>/dev/null || true
modprobe -r nbd 2>/dev/null || true
start_daemon --buffers 8M
braid pool create tank /dev/vda --yes >/dev/null
braid volume create tank/db 64M >/dev/null
mkdir -p mnt old
refuses() { # what is said, command
    local said=$1
    shift
    if "$@" 2>refused; then return 1; fi
    grep -q "$said" refused
}
# Else the kernel would load the module by itself.
loader=$(cat /proc/sys/kernel/modprobe)
echo /bin/false >/proc/sys/kernel/modprobe
refuses "modprobe nbd" braid mount tank/db mnt --mkfs --via nbd && result "without the driver: refused, with the way out"
refuses "modprobe ublk_drv" braid mount tank/db mnt --mkfs --via ublk && result "by ublk, which is not there: refused"
echo "$loader" >/proc/sys/kernel/modprobe
connections() { braid export show tank/db.mount --json | sed -nE 's/.*"connections": ?([0-9]+).*/\1/p' | head -n 1; }
connected() {
    for _ in $(seq 100); do
        [ "$(connections)" = 2 ] && return 0
        sleep 0.2
    done
    return 1
}
braid mount tank/db mnt --mkfs --json >mounted
grep -q '"via": "nbd"' mounted && grep -q '"made_fs": true' mounted && result "made and mounted by NBD, as there is no ublk"
device=$(sed -nE 's/.*"device": "([^"]+)".*/\1/p' mounted)
connected && result "connections: one for each shard"
braid mount tank/db mnt --mkfs | grep -q already && result "said twice, done once"
refuses "mounted on" braid export remove tank/db.mount && result "removal while mounted: refused"
refuses "mounted on" braid volume delete tank/db --yes --force && result "deletion while mounted: refused"
refuses "mounted on" braid pool delete tank --yes --force && result "its pool, too"
fill mnt "$PWD/sums"

# What was under way when the daemon was killed waits for 35 s, as a daemon that lives may take 30 s for an answer.
mkdir acks
writers=""
for writer in 0 1; do
    power-cut write mnt acks $writer &
    writers="$writers $!"
done
sleep 1
kill -9 $daemon
wait $daemon 2>/dev/null || true
start_daemon --buffers 8M
connected && result "killed: the device has its connections again"
before=$(cat acks/0 acks/1)
for _ in $(seq 500); do
    [ "$(cat acks/0 acks/1)" != "$before" ] && break
    sleep 0.1
done
[ "$(cat acks/0 acks/1)" != "$before" ] && result "killed: the writers go on"
touch acks/enough
failed=0
for writer in $writers; do wait $writer || failed=$((failed + 1)); done
result "writers with errors: $failed"
grep -q "has connections again" daemon.log && result "told of"

braid serve --upgrade >/dev/null
connected && result "upgraded: the device has its connections again"
echo 3 >/proc/sys/vm/drop_caches
check mnt "$PWD/sums" && power-cut check mnt acks >/dev/null && result "every byte as written"

sync
braid snapshot create tank/db@monday >/dev/null
braid mount tank/db@monday old -o noload --json | grep -q '"via": "nbd"' && check old "$PWD/sums" && result "a snapshot beside it"
touch old/new 2>/dev/null || result "which is read-only"
braid umount old
braid umount mnt
fsck_of() { braid mount tank/db mnt --json >/dev/null && umount mnt && fsck.ext4 -fn $device >/dev/null 2>&1; }
fsck_of && result "checked: clean"
devices() { cat /sys/block/nbd*/backend 2>/dev/null | wc -l; }
mount $device mnt
unshare -m sleep 1000 &
elsewhere=$!
sleep 1
refuses "in use elsewhere" braid umount mnt && [ $(devices) = 1 ] && result "mounted in another mount namespace: refused"
refuses "in use by somebody" braid export remove tank/db.mount && result "its export: refused, too"
kill $elsewhere
wait $elsewhere 2>/dev/null || true
braid export remove tank/db.mount >/dev/null && result "its export removed: $(devices) devices"
braid mount tank/db mnt >/dev/null
braid umount mnt
result "left behind: $(devices) devices, $(braid export list --json | grep -c '"name"') exports, $(ls "$PWD"-mount 2>/dev/null | wc -l) files"
