# Arrays of the real md, read through Braid, and Braid's, assembled by md: every byte compared, also without the members that may be
# missing. Then md on top of Braid's devices.
. /scenarios/common.sh
export MDADM_NO_UDEV=1
for module in loop raid0 raid1 raid10 raid456 ublk_drv; do modprobe $module; done
start_daemon
dd if=/dev/urandom of=data bs=1M count=20 2>/dev/null

# Disks of sizes that leave a rest of half a chunk: md and Braid, who keeps more at the end, round them alike.
disks=
make_disks() { # KiB each
    local i=0 disk size
    for disk in $disks; do losetup -d $disk; done
    disks=
    for size in "$@"; do
        rm -f disk$i
        truncate -s $((size + 32))K disk$i
        losetup /dev/loop$i disk$i
        disks="$disks /dev/loop$i"
        i=$((i + 1))
    done
}

# The first so many bytes of a device are those that were written to the other side.
same() { # device, bytes
    cmp -n "$2" data "$1"
}

# Through Braid, by these members of an array of md.
read_back() { # what, bytes, disks
    local what=$1 bytes=$2
    shift 2
    if braid array import-md --name md "$@" >import.log 2>&1 && braid export add md --ublk >>import.log 2>&1; then
        if [ "$(blockdev --getsize64 /dev/braid/md)" = "$bytes" ] && same /dev/braid/md "$bytes"; then
            result "$what: the same"
        else
            result "$what: DIFFERENT"
        fi
    else
        result "$what: NOT READ"
        cat import.log
    fi
    braid array delete md --force >/dev/null
}

# An array of md, filled by md.
md_made() { # options
    mdadm --create /dev/md0 --run --quiet --assume-clean --data-offset=1M --chunk=64 "$@"
    bytes=$(blockdev --getsize64 /dev/md0)
    head -c "$bytes" data >/dev/md0
    mdadm --stop --quiet /dev/md0
}

make_disks 2048 4096 6144
md_made --level=0 --layout=original --raid-devices=3 $disks
read_back "md's raid0 of three zones, original" $bytes $disks
md_made --level=0 --layout=alternate --raid-devices=3 $disks
read_back "md's raid0 of three zones, alternate" $bytes $disks

make_disks 4096 4096 4096 4096 4096
set -- $disks
mdadm --create /dev/md0 --run --quiet --assume-clean --metadata=1.0 --bitmap=none --level=1 --raid-devices=2 $1 $2
bytes=$(blockdev --getsize64 /dev/md0)
head -c "$bytes" data >/dev/md0
mdadm --stop --quiet /dev/md0
read_back "md's raid1 without its first" $bytes $2
mdadm --zero-superblock $1 $2
for layout in n2 f2 o2; do
    md_made --level=10 --bitmap=none --layout=$layout --raid-devices=3 $1 $2 $3
    read_back "md's raid10 $layout without one" $bytes $2 $3
done
md_made --metadata=1.1 --level=5 --bitmap=none --raid-devices=4 $1 $2 $3 $4
read_back "md's raid5 without one" $bytes $4 $1 $2
md_made --level=6 --bitmap=none --raid-devices=5 $disks
read_back "md's raid6 without two" $bytes $1 $3 $5
md_made --level=6 --bitmap=none --layout=right-asymmetric --raid-devices=5 $disks
read_back "md's raid6 right-asymmetric without two" $bytes $2 $4 $5
# A member that md has left out holds what was there before: the first chunk, which it has, is written once more without it.
mdadm --assemble --quiet --run /dev/md0 $disks
dd if=data of=/dev/md0 bs=64k skip=1 count=1 conv=fsync 2>/dev/null
mdadm --quiet /dev/md0 --fail $3
dd if=data of=/dev/md0 bs=64k count=1 conv=fsync 2>/dev/null
mdadm --stop --quiet /dev/md0
sums=$(cat disk* | md5sum)
braid array import-md $disks | grep -q 'member 2 is .* not read' && result "a member that was left out: noticed"
read_back "md's raid6 with a member that was left out" $bytes $disks
[ "$(cat disk* | md5sum)" = "$sums" ] && result "the members: untouched"

# An array of Braid's, assembled by md at the same places.
number=0
braids() { # what, level of md and options, members that md does not get, options of braid
    local what=$1 md=$2 lost=$3 from disk members= count=0 size
    shift 3
    number=$((number + 1))
    from=$(braid array create own$number --json --chunk 64K --yes --force "$@" $disks |
        sed -nE 's/.*"data_offset_bytes": ?([0-9]+).*/\1/p' | sort -u)
    braid export add own$number --ublk >/dev/null
    bytes=$(blockdev --getsize64 /dev/braid/own$number)
    head -c "$bytes" data >/dev/braid/own$number
    braid export remove own$number >/dev/null
    braid array stop own$number >/dev/null
    for disk in $disks; do
        case " $lost " in *" $disk "*) members="$members missing" ;; *) members="$members $disk" ;; esac
        count=$((count + 1))
    done
    mdadm --create /dev/md0 --run --quiet --assume-clean --data-offset=$((from / 1024))K $md \
        --raid-devices=$count $members
    size=$(blockdev --getsize64 /dev/md0)
    # md rounds a mirror to 64 KiB.
    [ "$size" -le "$bytes" ] && [ "$((bytes - size))" -lt 65536 ] && same /dev/md0 "$size" && result "$what: the same" ||
        result "$what: DIFFERENT ($size of $bytes bytes)"
    mdadm --stop --quiet /dev/md0
}

make_disks 2048 4096 6144
braids "Braid's raid0 of three zones" "--level=0 --layout=alternate --chunk=64" "" --level raid0
make_disks 4096 4096 4096 4096 4096
braids "Braid's raid6 without two" "--level=6 --bitmap=none --chunk=64" "/dev/loop0 /dev/loop3" --level raid6
make_disks 4096 4096 4096 4096
braids "Braid's raid5 without one" "--level=5 --bitmap=none --chunk=64" "/dev/loop1" --level raid5
make_disks 4096 4096 4096
braids "Braid's raid10" "--level=10 --bitmap=none --layout=n2 --chunk=64" "" --level raid10
make_disks 4096 4096
braids "Braid's raid1 without its first" "--level=1 --bitmap=none" "/dev/loop0" --level raid1

# md on Braid's devices: a mirror of two of them, one of which it lacks for a while.
make_disks 6144 6144
set -- $disks
braid array create one --level concat --yes --force $1 >/dev/null
braid array create two --level concat --yes --force $2 >/dev/null
for name in one two; do braid export add $name --ublk >/dev/null; done
mdadm --create /dev/md0 --run --quiet --assume-clean --level=1 --bitmap=none --raid-devices=2 /dev/braid/one /dev/braid/two
bytes=$(blockdev --getsize64 /dev/md0)
head -c 1048576 data >/dev/md0
mdadm --quiet /dev/md0 --fail /dev/braid/two --remove /dev/braid/two
head -c "$bytes" data >/dev/md0
mdadm --quiet /dev/md0 --add /dev/braid/two
mdadm --wait --quiet /dev/md0 || true
mdadm --quiet /dev/md0 --fail /dev/braid/one
echo 3 >/proc/sys/vm/drop_caches
same /dev/md0 "$bytes" && result "md on Braid's devices: filled again, the same"
mdadm --stop --quiet /dev/md0
for name in one two; do braid array delete $name --force --yes >/dev/null; done
