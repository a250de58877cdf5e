# What scenarios share; each begins with `. /scenarios/common.sh`.

# A line of the results.
result() { echo "$*" | tee -a "$RESULTS"; }

# Starts the daemon, with the state and the log of this scenario, and waits until it has started what it knows of. Its process
# is $daemon. (It is not asked, but its log: each `braid` takes as long, in emulation, as the daemon for its start.)
start_daemon() {
    export BRAID_SOCKET=$PWD/braid.sock BRAID_STATE=$PWD/state
    touch daemon.log
    starts=$(grep -c "the daemon started in" daemon.log || true)
    braid serve --shards 2 "$@" >>"$PWD/daemon.log" 2>&1 &
    daemon=$!
    for _ in $(seq 600); do
        [ "$(grep -c "the daemon started in" daemon.log)" != "$starts" ] && return 0
        sleep 0.1
    done
    echo "the daemon does not start"
    cat "$PWD/daemon.log"
    return 1
}

# Waits until an export can be used: after a start, its array comes first.
await_export() {
    for _ in $(seq 100); do
        braid export show "$1" --json 2>/dev/null | grep -q '"state": "listening"' && return 0
        sleep 0.1
    done
    echo "export $1 does not listen"
    braid export show "$1"
    return 1
}

# Files of known content below a folder, and their sums beside it.
fill() { # folder, file with sums
    mkdir -p "$1/many"
    dd if=/dev/urandom of="$1/large" bs=1M count=24 conv=fsync 2>/dev/null
    for i in $(seq 40); do dd if=/dev/urandom of="$1/many/$i" bs=3000 count=3 2>/dev/null; done
    (cd "$1" && find . -type f | sort | xargs sha256sum) >"$2"
}
check() { # folder, file with sums
    (cd "$1" && sha256sum -c -s "$2")
}
