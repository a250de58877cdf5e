# How long a request takes at most while the daemon is killed and started again, and while it is upgraded: fio writes all the time.
. /scenarios/common.sh
. /scenarios/measure.sh
modprobe ublk_drv
start_daemon --buffers 8M
braid array create one --level concat /dev/vda --yes >/dev/null
braid export add one --ublk >/dev/null
written /dev/braid/one

# The longest request, in milliseconds.
longest() { # seconds
    fio --name=pause --filename=/dev/braid/one --rw=randwrite --bs=4k --iodepth=4 --size=200M --ioengine=io_uring --direct=1 \
        --norandommap --randrepeat=0 --thread --time_based --runtime="$1" --output-format=terse | awk -F';' '{ print $80 / 1000 }'
}
for nth in $(seq ${PAIRS:-5}); do
    echo "undisturbed $(longest 2) 1" | tee -a $FIGURES
    longest 6 >longest &
    writer=$!
    sleep 2
    kill -9 $daemon
    wait $daemon 2>/dev/null || true
    start_daemon --buffers 8M
    wait $writer
    echo "killed $(cat longest) 1" | tee -a $FIGURES
    longest 6 >longest &
    writer=$!
    sleep 2
    braid serve --upgrade >/dev/null
    wait $writer
    echo "upgraded $(cat longest) 1" | tee -a $FIGURES
done
result "measured"
