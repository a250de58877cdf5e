#!/usr/bin/env bash
# `make test`: everything, within the budget of 25 minutes on two cores from a clean checkout.
#
# Stages that fail do not hide the ones after them: all run, and the last line is the sum. The budget is printed
# beside the time that each stage took; passing it is not a failure (machines differ), growing out of it is a bug.
set -uo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
export PATH="$PATH:/usr/sbin:/sbin"
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never}

log=$(mktemp)
trap 'rm -f "$log"' EXIT
failed_stages=()
times=()

stage() { # name, budget in seconds, command…
    local name=$1 budget=$2 started=$SECONDS
    shift 2
    echo "== $name"
    if ! "$@" 2>&1 | tee -a "$log"; then
        failed_stages+=("$name")
        echo "== $name FAILED"
    fi
    times+=("$(printf '%-12s %4d s of %4d' "$name" $((SECONDS - started)) "$budget")")
}

# Without the tools, the end-to-end tests would all fail one by one: better to stop with the one reason.
scripts/install-tools.sh test || exit 1

# Every stage selects the whole workspace and then names what it runs: cargo unites the features of what is selected, so a
# stage that selected one package would build half of the dependencies once more. Only the planted bugs have a build
# of their own, because no program may hold them.
everything=(--locked --profile verify --workspace)
target=$($cargo metadata --locked --no-deps --format-version 1 | sed -E 's/.*"target_directory":"([^"]*)".*/\1/')
own_stage=(corpus end_to_end allocations model)

# Arguments of cargo that select every integration test but those that are a stage of their own.
unit_tests() {
    local path name
    for path in crates/*/tests/*.rs crates/*/tests/*/main.rs; do
        [ -e "$path" ] || continue
        name=$(basename "$path" .rs)
        [ "$name" = main ] && name=$(basename "$(dirname "$path")")
        [[ " ${own_stage[*]} " == *" $name "* ]] || printf -- '--test %s ' "$name"
    done
}

build() {
    $cargo test "${everything[@]}" --no-run &&
        $cargo build --locked --profile verify -p braid-sim --features planted --target-dir "$target/planted"
}
# shellcheck disable=SC2046 # one word each
units() { $cargo test "${everything[@]}" --lib --bins --examples $(unit_tests) && $cargo test "${everything[@]}" --doc; }
# Two runs side by side, one for each core. The seeds are always the same, so that a change is judged by itself;
# SIM_FRESH=1 draws the second run's by the clock. A seed that fails is printed with the command that replays it.
simulator() {
    local seeds=${SIM_SEEDS:-2000} from failed=0 first second output other
    from=$seeds
    [ "${SIM_FRESH:-0}" = 1 ] && from=$(($(date +%s) % 1000000000))
    output=$(mktemp)
    first="0..$seeds" second="$from..$((from + seeds))"
    # A client that asks for ever would keep a run from its end.
    timeout 600 "$target/verify/braid-sim" --seeds "$second" >"$output" 2>&1 &
    other=$!
    echo "seeds $first"
    timeout 600 "$target/verify/braid-sim" --seeds "$first" || failed=1
    wait "$other" || failed=1
    echo "seeds $second"
    cat "$output"
    rm -f "$output"
    return $failed
}
# Pools alone: the same, and starts that are cut at each of their steps.
pools() {
    local seeds=${POOL_SEEDS:-1000} from failed=0 second output other
    from=$seeds
    [ "${SIM_FRESH:-0}" = 1 ] && from=$(($(date +%s) % 1000000000))
    output=$(mktemp)
    second="$from..$((from + seeds))"
    {
        timeout 300 "$target/verify/pool-sim" --seeds "$second" &&
            timeout 300 "$target/verify/pool-sim" --sweep --seeds 0..12
    } >"$output" 2>&1 &
    other=$!
    timeout 300 "$target/verify/pool-sim" --seeds "0..$seeds" || failed=1
    timeout 300 "$target/verify/pool-sim" --sweep --seeds 12..24 || failed=1
    wait "$other" || failed=1
    echo "seeds $second"
    cat "$output"
    rm -f "$output"
    return $failed
}
# Pools in the whole stack: the same.
volumes() {
    local seeds=${VOLUME_SEEDS:-400} from failed=0 output other
    from=$seeds
    [ "${SIM_FRESH:-0}" = 1 ] && from=$(($(date +%s) % 1000000000))
    output=$(mktemp)
    {
        timeout 300 "$target/verify/volume-sim" --seeds "$from..$((from + seeds))" &&
            timeout 300 "$target/verify/volume-sim" --sweep --seeds 0..2
    } >"$output" 2>&1 &
    other=$!
    timeout 300 "$target/verify/volume-sim" --seeds "0..$seeds" || failed=1
    timeout 300 "$target/verify/volume-sim" --sweep --seeds 2..4 || failed=1
    wait "$other" || failed=1
    echo "seeds $from..$((from + seeds))"
    cat "$output"
    rm -f "$output"
    return $failed
}
# Volumes on several nodes: the same seeds, and as many others.
replicas() {
    local seeds=${REPLICA_SEEDS:-800} from failed=0
    from=$seeds
    [ "${SIM_FRESH:-0}" = 1 ] && from=$(($(date +%s) % 1000000000))
    timeout 120 "$target/verify/replica-sim" --seeds "0..$seeds" || failed=1
    echo "seeds $from..$((from + seeds))"
    timeout 120 "$target/verify/replica-sim" --seeds "$from..$((from + seeds))" || failed=1
    return $failed
}
planted() {
    local failed=0
    timeout 600 "$target/planted/verify/braid-sim" --hunt || failed=1
    timeout 300 "$target/planted/verify/pool-sim" --hunt || failed=1
    timeout 300 "$target/planted/verify/volume-sim" --hunt || failed=1
    timeout 120 "$target/planted/verify/replica-sim" --hunt || failed=1
    return $failed
}
corpus() { $cargo test "${everything[@]}" --test corpus; }
# New inputs are not kept here; one that fails is printed.
fuzz() {
    local found status=0
    found=$(mktemp -d)
    CARGO_TARGET_DIR=$target FUZZ_SECONDS=${FUZZ_SECONDS:-10} FUZZ_FOUND=$found scripts/fuzz.sh || status=1
    rm -rf "$found"
    return $status
}
# Random lives of the real daemon, always the same seeds in the same order; a seed that fails is printed with what had happened.
model() { BRAID_MODEL_SECONDS=${MODEL_SECONDS:-240} $cargo test "${everything[@]}" --test model -- --nocapture; }
# Most of the time a story waits: for a disk, a lease, a time limit. The model test runs beside them.
end_to_end() {
    local failed=0 output other
    output=$(mktemp)
    model >"$output" 2>&1 &
    other=$!
    RUST_TEST_THREADS=5 $cargo test "${everything[@]}" --test end_to_end --test allocations || failed=1
    wait "$other" || failed=1
    echo "== model"
    cat "$output"
    rm -f "$output"
    return $failed
}
# The program is there: the end-to-end tests had it built.
guest() { scripts/test-vm.sh "$target/verify/braid"; }
package() { scripts/test-package.sh "$target/verify/braid"; }
check() { CHECK_ARROWS=0 scripts/check.sh; }

stage build 300 build
stage units 120 units
stage simulator 240 simulator
stage pools 30 pools
stage volumes 30 volumes
stage replicas 20 replicas
stage planted 130 planted
stage corpus 60 corpus
stage fuzz 180 fuzz
stage end-to-end 360 end_to_end
stage guest 300 guest
stage package 180 package
stage check 120 check

echo
echo "time: "
printf '  %s\n' "${times[@]}"
passed=$(awk '/^test result:/ { for (i = 1; i < NF; i++) if ($(i + 1) ~ /^passed/) n += $i } END { print n + 0 }' "$log")
failed=$(awk '/^test result:/ { for (i = 1; i < NF; i++) if ($(i + 1) ~ /^failed/) n += $i } END { print n + 0 }' "$log")
[ ${#failed_stages[@]} -gt 0 ] && echo "failed stages: ${failed_stages[*]}"
echo "$passed passed, $((failed > 0 ? failed : ${#failed_stages[@]})) failed"
[ ${#failed_stages[@]} -eq 0 ]
