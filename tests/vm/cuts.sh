# Power cuts, for the scenarios that have them. File systems are on an array, or on a volume of a pool that stands on it, and in them
# programs that note what fsync had acknowledged to them. At many moments of that, each member is made anew as it may be
# after a cut at that moment: the array starts, the file system is whole, and everything that was acknowledged is there; at most
# of these moments without one of the members.
#
# Two ways: `log` is dm-log-writes, from whose log a member gets what was flushed by then, and nothing else; `cache` are disks of
# our own, behind the kernel's NBD client, which keep by chance some of what was not flushed, down to single sectors.
for module in ublk_drv ext4 xfs btrfs dm-mod dm-log-writes; do modprobe $module; done
modprobe nbd nbds_max=4 2>/dev/null || true
cuts=${cuts:-4}
mib=600

log_of() { echo "/dev/vd$1" | tr abc def; } # The log of vda is on vdd, and so on.

# The disks of the array, in $disks.
begin_log() {
    disks=""
    for member in $members; do
        dmsetup create --noudevsync logged-$member --table "0 $((mib * 2048)) log-writes /dev/vd$member $(log_of $member)"
        disks="$disks /dev/mapper/logged-$member"
    done
    dmsetup mknodes
}
begin_cache() {
    disks=""
    mkdir disks
    power-cut serve disks $((mib << 20)) $members &
    server=$!
    while [ ! -S disks/nbd ]; do sleep 0.1; done
    device=0
    for member in $members; do
        nbd-client -unix "$PWD/disks/nbd" -N $member /dev/nbd$device >/dev/null
        disks="$disks /dev/nbd$device"
        device=$((device + 1))
    done
}

# The daemon is frozen, so that nothing comes between the marks of one log and those of the next.
cut_log() { # which
    kill -STOP $daemon
    # Its threads stop when they come to it: until then they go on answering.
    while awk '{ print $3 }' /proc/$daemon/task/*/stat | grep -qv T; do sleep 0.01; done
    cp -r acks cut-$1
    for member in $members; do dmsetup message logged-$member 0 mark cut-$1; done
    kill -CONT $daemon
}
cut_cache() { power-cut cut disks acks cut-$1 $1; }

# What was written later must not be found by the next daemon.
end_log() {
    for member in $members; do
        dmsetup remove --noudevsync logged-$member
        blkdiscard /dev/vd$member
    done
}
end_cache() {
    for device in $disks; do nbd-client -d $device >/dev/null; done
    kill $server
}

image_log() { # which cut, member
    truncate -s ${mib}M cut-$1/$2.img
    power-cut replay $(log_of $2) cut-$1/$2.img cut-$1
}
image_cache() { [ -s cut-$1/$2.img ]; }

# What has the file system is made: the array's export itself, or that of a volume of a pool on it. Its name is $volume.
make_array() { volume=cut; }
make_pool() {
    volume=tank/db
    braid pool create tank cut --yes >/dev/null
    braid volume create tank/db 400M >/dev/null
}
# After a cut: what the daemon finds by itself.
await_array() { :; }
await_pool() {
    for _ in $(seq 300); do
        braid pool show tank 2>/dev/null | grep -q '^state *active' && return 0
        sleep 0.1
    done
    echo "the pool does not start"
    braid pool show tank
    return 1
}
# In the midst of it: of a volume, a snapshot. What was acknowledged by now has to be in it.
midst_array() { :; }
midst_pool() { # after which cut
    cp -r acks at-snapshot
    braid snapshot create tank/db@midst >/dev/null
    snapshot_after=$1
}

# A file system is mounted: what was acknowledged is there, and it is whole.
judge() { # device, file system, acknowledgements, or-later
    local found=no whole=no
    mount -t $2 $1 mnt || { result "$1 cannot be mounted"; return 1; }
    power-cut check mnt $3 ${4:-} && found=yes
    umount mnt
    case $2 in
        ext4) fsck.ext4 -fn $1 >fsck.log 2>&1 && whole=yes ;;
        xfs) xfs_repair -n $1 >fsck.log 2>&1 && whole=yes ;;
        btrfs) btrfs check --readonly $1 >fsck.log 2>&1 && whole=yes ;;
    esac
    [ $found$whole = yesyes ] && return 0
    result "$1 with $3: acknowledged data there: $found, file system whole: $whole"
    tail -n 20 fsck.log
    return 1
}

# A snapshot that was taken before this cut: as any volume that was cut off at that moment, by a clone, as a journal may have to be
# played.
judge_snapshot_array() { :; }
judge_snapshot_pool() { # which cut, file system
    [ $1 -gt $snapshot_after ] || return 0
    braid volume clone tank/db@midst tank/trial >/dev/null && braid export add tank/trial --ublk >/dev/null || return 1
    local whole=0
    judge /dev/braid/tank/trial $2 at-snapshot or-later || whole=1
    braid export remove tank/trial >/dev/null
    [ $whole = 0 ] && snapshots=$((snapshots + 1))
    return $whole
}

one() { # way, level, members, file system, what it is on: array or pool
    local way=$1 level=$2 members=$3 kind=$4 over=${5:-array}
    mkdir $way-$level && cd $way-$level
    begin_$way
    start_daemon
    braid array create cut --level $level $disks --yes >/dev/null
    make_$over
    braid export add $volume --ublk >/dev/null
    case $kind in
        ext4) mkfs.ext4 -q -F /dev/braid/$volume ;;
        xfs) mkfs.xfs -q -f /dev/braid/$volume ;;
        btrfs) mkfs.btrfs -q -f /dev/braid/$volume ;;
    esac
    mkdir acks mnt
    mount -t $kind /dev/braid/$volume mnt
    writers=""
    for writer in 0 1 2 3; do
        power-cut write mnt acks $writer &
        writers="$writers $!"
    done
    sleep 1
    for nth in $(seq $cuts); do
        sleep 0.$((nth * 37 % 90 + 10))
        cut_$way $nth
        [ $nth = 1 ] && midst_$over $nth
    done
    touch acks/enough
    wait $writers
    umount mnt
    braid export remove $volume >/dev/null
    kill -TERM $daemon
    wait $daemon || true
    end_$way

    good=0
    snapshots=0
    for nth in $(seq $cuts); do
        # What a daemon knows after a loss of power is on its disks.
        rm -rf state /dev/shm/braid
        # Another one each time: of two, the other has then kept a part of what was not flushed, or nothing.
        case $nth in
            1) left_out="" ;;
            3) left_out=a ;;
            *) left_out=b ;;
        esac
        given=""
        for member in $members; do
            image_$way $nth $member
            # Were it there, it would be found beside the others.
            if [ $member = "$left_out" ]; then rm cut-$nth/$member.img; else given="$given --disk $PWD/cut-$nth/$member.img"; fi
        done
        start_daemon
        braid array assemble cut $given ${left_out:+--degraded} >/dev/null
        [ -z "$left_out" ] || braid array show cut | grep -q '^health *degraded' || result "cut $nth: nothing was left out"
        await_$over
        braid export add $volume --ublk >/dev/null
        if judge /dev/braid/$volume $kind cut-$nth && judge_snapshot_$over $nth $kind; then
            good=$((good + 1))
        else
            result "$way, $level under $kind, cut $nth without ${left_out:-none}: not as it should be"
        fi
        braid export remove $volume >/dev/null
        kill -9 $daemon
        wait $daemon 2>/dev/null || true
        rm -f cut-$nth/*.img
    done
    local where=$level
    [ $over = array ] || where="pool on $level"
    result "$way, $where under $kind: $good of $cuts cuts survived"
    [ $over = array ] || result "its snapshot was whole after $snapshots of them"
    cd ..
}
