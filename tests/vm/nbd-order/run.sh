# The kernel's NBD client gives a request up that a disk delays, and repeats it on its other connection. The repetition waits for the first one:
# what is written and flushed after it stays, when the delayed write lands at last. And so on a mirror.
. /scenarios/common.sh
modprobe nbd
start_daemon
for text in old new; do yes $text | head -c 4096 >$text; done
in_order() { # array, number of the device
    braid export add $1 --nbd tcp:127.0.0.1:$((10809 + $2)) >/dev/null
    nbd-client -t 2 -C 2 -N $1 -b 4096 127.0.0.1 $((10809 + $2)) /dev/nbd$2 >/dev/null
    before=$(dmesg | grep -c "timed out" || true)
    dd if=old of=/dev/nbd$2 bs=4096 seek=4096 count=1 oflag=direct 2>/dev/null
    dd if=new of=/dev/nbd$2 bs=4096 seek=4096 count=1 oflag=direct conv=fsync 2>/dev/null
    # On a slow machine the repetition may take too long as well, and is repeated.
    [ $(dmesg | grep -c "timed out") -gt $before ] && result "$1: a request was given up and repeated"
    # Longer than the disk waits.
    sleep 6
    dd if=/dev/nbd$2 of=found bs=4096 skip=4096 count=1 iflag=direct 2>/dev/null
    cmp found new && result "$1: the later write stays"
    nbd-client -d /dev/nbd$2 >/dev/null
}
# The first write there takes longer than the client waits: 2 s, which the kernel rounds up to a whole second.
slow='write-delay=4s@4M-900M*1'
braid array create plain --level concat "faulty(/dev/vda,$slow)" --yes >/dev/null
in_order plain 0
braid array create mirror --level raid1 "faulty(/dev/vdb,$slow)" /dev/vdc --yes >/dev/null
in_order mirror 1
