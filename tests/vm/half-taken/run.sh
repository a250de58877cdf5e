# Daemons that end in the midst of taking a block device over, at each of its steps: the next one goes on, or the one after that, and whoever
# reads has only waited.
. /scenarios/common.sh
modprobe ublk_drv
start_daemon
braid array create fast --level raid1 /dev/vda /dev/vdb --yes >/dev/null
braid export add fast --ublk --queues 2 --depth 1 >/dev/null
disk=/dev/braid/fast
dd if=/dev/urandom of=content bs=64k count=16 2>/dev/null
dd if=content of=$disk bs=64k oflag=direct 2>/dev/null

for how in begun mapped torn served; do
    kill -9 $daemon
    wait $daemon 2>/dev/null || true
    half-takeover "$(readlink $disk | tr -dc 0-9)" $how
    rm -f reader
    (dd if=$disk bs=64k count=16 iflag=direct 2>/dev/null | cmp - content && echo every byte as written >reader) &
    reader=$!
    start_daemon
    case $how in
        mapped | torn)
            for _ in $(seq 600); do grep -q "half taken over" daemon.log && break || sleep 0.1; done
            grep -q "half taken over" daemon.log && result "$how: the next daemon says that it takes another one"
            : >daemon.log
            kill -TERM $daemon
            wait $daemon || true
            start_daemon
            ;;
    esac
    await_export fast
    wait $reader
    result "$how: $(cat reader)"
done
braid export remove fast
result "left behind: $(ls /dev/ublkb0 /dev/ublkc0 $disk 2>/dev/null | wc -l)"
dmesg | grep -q "BUG:\|Oops" && result "the kernel fell over" || result "the kernel lives"
