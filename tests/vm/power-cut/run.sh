# Power cuts. File systems are on an array, and in them programs that note what fsync had acknowledged to them. At many moments
# of that, each member is made anew as it may be after a cut at that moment: the array starts, the file system is whole,
# and everything that was acknowledged is there; at most of these moments without one of the members.
#
# Two ways: `log` is dm-log-writes, from whose log a member gets what was flushed by then, and nothing else; `cache` are disks of
# our own, behind the kernel's NBD client, which keep by chance some of what was not flushed, down to single sectors.
. /scenarios/common.sh
for module in ublk_drv ext4 xfs dm-mod dm-log-writes; do modprobe $module; done
modprobe nbd nbds_max=4 2>/dev/null || true
cuts=4
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

one() { # way, level, members, file system
    local way=$1 level=$2 members=$3 kind=$4
    mkdir $way-$level && cd $way-$level
    begin_$way
    start_daemon
    braid array create cut --level $level $disks --yes >/dev/null
    braid export add cut --ublk >/dev/null
    case $kind in
        ext4) mkfs.ext4 -q -F /dev/braid/cut ;;
        xfs) mkfs.xfs -q -f /dev/braid/cut ;;
    esac
    mkdir acks mnt
    mount -t $kind /dev/braid/cut mnt
    writers=""
    for writer in 0 1 2 3; do
        power-cut write mnt acks $writer &
        writers="$writers $!"
    done
    sleep 1
    for nth in $(seq $cuts); do
        sleep 0.$((nth * 37 % 90 + 10))
        cut_$way $nth
    done
    touch acks/enough
    wait $writers
    umount mnt
    braid export remove cut >/dev/null
    kill -TERM $daemon
    wait $daemon || true
    end_$way

    good=0
    for nth in $(seq $cuts); do
        rm -rf state
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
        [ -z "$left_out" ] || braid array show cut | grep -q '^state *degraded' || result "cut $nth: nothing was left out"
        braid export add cut --ublk >/dev/null
        mount -t $kind /dev/braid/cut mnt
        power-cut check mnt cut-$nth && found=yes || found=no
        umount mnt
        case $kind in
            ext4) fsck.ext4 -fn /dev/braid/cut >fsck.log 2>&1 && whole=yes || whole=no ;;
            xfs) xfs_repair -n /dev/braid/cut >fsck.log 2>&1 && whole=yes || whole=no ;;
        esac
        if [ $found$whole = yesyes ]; then
            good=$((good + 1))
        else
            result "$way, $level under $kind, cut $nth without ${left_out:-none}: acknowledged data there: $found, file system whole: $whole"
            tail -n 20 fsck.log
        fi
        braid export remove cut >/dev/null
        kill -9 $daemon
        wait $daemon 2>/dev/null || true
        rm -f cut-$nth/*.img
    done
    result "$way, $level under $kind: $good of $cuts cuts survived"
    cd ..
}

one log raid1 "a b" ext4
one cache raid1 "a b" xfs
one cache raid5 "a b c" ext4
