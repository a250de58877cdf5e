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
cpu_times=$(mktemp)
trap 'rm -f "$log" "$cpu_times"' EXIT
failed_stages=()
times=()

# Sets `cpu` to the CPU seconds of all ended children.
read_cpu() {
    times >"$cpu_times"
    cpu=$(awk 'NR == 2 { gsub(/[ms]/, " "); print int($1 * 60 + $2 + $3 * 60 + $4) }' "$cpu_times")
}

stage() { # name, budget in seconds, command…
    local name=$1 budget=$2 started=$SECONDS cpu cpu_before
    read_cpu
    cpu_before=$cpu
    shift 2
    echo "== $name"
    if ! "$@" 2>&1 | tee -a "$log"; then
        failed_stages+=("$name")
        echo "== $name FAILED"
    fi
    read_cpu
    times+=("$(printf '%-12s %4d s of %4d, %4d s of CPU' "$name" $((SECONDS - started)) "$budget" $((cpu - cpu_before)))")
}

# Without the tools, the end-to-end tests would all fail one by one: better to stop with the one reason.
scripts/install-tools.sh test || exit 1

# Every stage selects the whole workspace and then names what it runs: cargo unites the features of what is selected, so a
# stage that selected one package would build half of the dependencies once more. Only the mutations have a build
# of their own, from a copy of the tree: scripts/mutations.sh.
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
        scripts/mutations.sh build
}
# shellcheck disable=SC2046 # one word each
units() { $cargo test "${everything[@]}" --no-fail-fast --lib --bins --examples $(unit_tests) && $cargo test "${everything[@]}" --doc; }
# One simulation: two runs side by side, one for each core, and seeds that are cut at each of their steps. The seeds are
# always the same, so that a change is judged by itself; SIM_FRESH=1 draws the second run's by the clock. A seed that
# fails is printed with the command that replays it.
simulation() { # subcommand, seconds before a run that does not end is stopped, number of seeds, seeds to cut in either run
    local name=$1 limit=$2 seeds=$3 sweeps=${4:-} other_sweeps=${5:-} from=$3 failed=0 output other
    [ "${SIM_FRESH:-0}" = 1 ] && from=$(($(date +%s) % 1000000000))
    output=$(mktemp)
    {
        run_seeds "$from..$((from + seeds))" && sweep_seeds "$other_sweeps"
    } >"$output" 2>&1 &
    other=$!
    run_seeds "0..$seeds" || failed=1
    sweep_seeds "$sweeps" || failed=1
    wait "$other" || failed=1
    cat "$output"
    rm -f "$output"
    return $failed
}
# For `simulation`, whose name and limit they use.
run_seeds() { echo "seeds $1" && timeout "$limit" "$target/verify/braid-sim" "$name" --seeds "$1"; }
sweep_seeds() { [ -z "$1" ] || timeout "$limit" "$target/verify/braid-sim" "$name" --sweep --seeds "$1"; }
mutations() {
    local failed=0 name
    for name in arrays pools volumes replicas; do
        timeout 600 "$target/mutations/verify/braid-sim" $name --hunt || failed=1
    done
    scripts/mutations.sh test || failed=1
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
stage simulator 240 simulation arrays 600 "${SIM_SEEDS:-2000}"
stage pools 30 simulation pools 300 "${POOL_SEEDS:-1000}" 12..24 0..12
stage volumes 30 simulation volumes 300 "${VOLUME_SEEDS:-400}" 2..4 0..2
stage replicas 20 simulation replicas 120 "${REPLICA_SEEDS:-800}"
stage mutations 130 mutations
stage corpus 60 corpus
stage fuzz 180 fuzz
stage end-to-end 360 end_to_end
stage guest 300 guest
stage package 180 package
stage check 120 check

# What failed once more, in short: of a long output, the end is what is read first.
summary() {
    awk '
        /^seed [0-9]+ FAILED/ { life = 1; n = 0; print; next }
        life && /^---- again/ { for (i = n > 12 ? n - 12 : 0; i < n; i++) print "    " lines[i]; print; life = 0; next }
        life { lines[n++] = $0; next }
        /^thread .* panicked at / { print; left = 4; next }
        left > 0 && !/^(stack backtrace|note:)/ { print "    " $0; left--; next }
        /^(stack backtrace|note:)/ { left = 0 }
        /^(error|lint-pure|check|mutations|scenario .*(failed|FAILED))/ { print }
    ' "$log" | cut -c1-400 | tail -n 80
}

echo
if [ ${#failed_stages[@]} -gt 0 ]; then
    echo "failures:"
    summary
fi
echo "time: "
printf '  %s\n' "${times[@]}"
passed=$(awk '/^test result:/ { for (i = 1; i < NF; i++) if ($(i + 1) ~ /^passed/) n += $i } END { print n + 0 }' "$log")
failed=$(awk '/^test result:/ { for (i = 1; i < NF; i++) if ($(i + 1) ~ /^failed/) n += $i } END { print n + 0 }' "$log")
[ ${#failed_stages[@]} -gt 0 ] && echo "failed stages: ${failed_stages[*]}"
echo "$passed passed, $((failed > 0 ? failed : ${#failed_stages[@]})) failed"
[ ${#failed_stages[@]} -eq 0 ]
