#!/usr/bin/env bash
# Coverage-guided fuzzing of every entry of fuzz/src/entries.rs.
#
#   FUZZ_SECONDS=60   how long each (default 60)
#   FUZZ_TARGET=label only this one
#
# New inputs go to fuzz/found/ (not kept by git); a crash to fuzz/artifacts/. What is worth keeping is copied into
# fuzz/corpus/ by hand, which `make test` replays.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

if ! command -v cargo-fuzz >/dev/null; then
    $cargo install --locked cargo-fuzz
fi
targets=${FUZZ_TARGET:-$(cd fuzz/fuzz_targets && ls | sed 's/\.rs$//')}
for target in $targets; do
    echo "== $target"
    mkdir -p "fuzz/found/$target"
    # Without a sanitizer no nightly toolchain is needed; the code under test forbids `unsafe` anyway.
    $cargo fuzz run --sanitizer none "$target" "fuzz/found/$target" "fuzz/corpus/$target" -- \
        -max_total_time="${FUZZ_SECONDS:-60}" -max_len=8192 -timeout=10 -print_final_stats=1
done
