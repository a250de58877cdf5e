#!/usr/bin/env bash
# Coverage-guided fuzzing of every entry of fuzz/src/entries.rs, with the ordinary toolchain.
#
#   FUZZ_SECONDS=60   how long each (default 60)
#   FUZZ_TARGET=label only this one
#   FUZZ_SEED=N       the fuzzer's seed (default: drawn, and printed)
#   FUZZ_FOUND=folder where new inputs go (default fuzz/found, not kept by git)
#
# A crash goes to fuzz/artifacts/ and is printed in base64. What is worth keeping is copied into fuzz/corpus/ by hand,
# which `make test` replays.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
seconds=${FUZZ_SECONDS:-60}
found=${FUZZ_FOUND:-fuzz/found}
# 0 lets the fuzzer draw one.
seed=${FUZZ_SEED:-0}
target_dir=$(realpath -m "${CARGO_TARGET_DIR:-fuzz/target}")/fuzz
host=$(rustc -vV | sed -n 's/^host: //p')

# LLVM's coverage for libFuzzer: counters at every edge, and what comparisons compare. Without a sanitizer no nightly
# toolchain is needed; the code under test forbids `unsafe` anyway. With --target, build scripts stay uninstrumented.
flags="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4"
flags+=" -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table"
flags+=" -Cllvm-args=-sanitizer-coverage-trace-compares -Cllvm-args=-simplifycfg-branch-fold-threshold=0"
# The workspace's lock file decides on versions; only the fuzzer itself is not in it.
cp Cargo.lock fuzz/Cargo.lock
RUSTFLAGS=$flags $cargo build --release --manifest-path fuzz/Cargo.toml --target "$host" --target-dir "$target_dir" --bins

one() { # target
    local target=$1 log=$2
    mkdir -p "$found/$target" "fuzz/artifacts/$target"
    "$target_dir/$host/release/$target" "$found/$target" "fuzz/corpus/$target" -seed="$seed" -max_total_time="$seconds" \
        -max_len=8192 -timeout=10 -rss_limit_mb=4096 -print_final_stats=1 -artifact_prefix="fuzz/artifacts/$target/" >"$log" 2>&1
}

# Two at a time. Of one that is survived, only the sum is printed.
targets=${FUZZ_TARGET:-$(cd fuzz/fuzz_targets && ls | sed 's/\.rs$//')}
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
failed=0
report() { # target, status
    local log=$logs/$1
    if [ "$2" = 0 ]; then
        printf '%-20s %s inputs in %s s, %s kept, seed %s: survived\n' "$1" \
            "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")" "$seconds" \
            "$(sed -n 's/^stat::new_units_added: *//p' "$log")" "$(sed -n 's/^INFO: Seed: //p' "$log")"
    else
        failed=1
        echo "== $1 FAILED"
        tail -60 "$log"
    fi
}
# shellcheck disable=SC2086 # a list of words
set -- $targets
while [ $# -gt 0 ]; do
    declare -A pids=()
    for target in "$1" ${2:+"$2"}; do
        one "$target" "$logs/$target" &
        pids[$target]=$!
    done
    for target in "${!pids[@]}"; do
        status=0
        wait "${pids[$target]}" || status=$?
        report "$target" "$status"
    done
    shift $(($# > 1 ? 2 : 1))
done
exit $failed
