# Functions of scenarios that measure with fio, in pairs. They are no tests: `make bench` runs them (scripts/bench-vm.sh). Each line of the
# figures is the name of a line in the table, the figure of Braid, and that of its rival.
FIGURES=/share/figures

# One slice of fio: I/Os a second.
slice() { # device, readwrite, block, depth, jobs
    fio --name=slice --filename="$1" --rw="$2" --bs="$3" --iodepth="$4" --numjobs="${5:-1}" --group_reporting --size=200M \
        --ioengine=io_uring --fixedbufs=1 --registerfiles=1 --direct=1 --norandommap --randrepeat=0 --thread \
        --time_based --runtime="${SLICE:-1500ms}" --output-format=terse | awk -F';' '{ print $8 + $49 }'
}

# Slices of two devices, who goes first alternating too.
pairs() { # row, device, the other device, readwrite, block, depth, jobs
    local row=$1 ours=$2 theirs=$3 nth a b
    shift 3
    for nth in $(seq ${PAIRS:-5}); do
        if [ $((nth % 2)) = 1 ]; then
            a=$(slice $ours "$@")
            b=$(slice $theirs "$@")
        else
            b=$(slice $theirs "$@")
            a=$(slice $ours "$@")
        fi
        echo "$row $a $b" | tee -a $FIGURES
    done
}

# Every block is there before anything is measured.
written() { # device
    fio --name=fill --filename="$1" --rw=write --bs=1M --size=200M --ioengine=io_uring --iodepth=4 --direct=1 --thread --end_fsync=1 >/dev/null
}
