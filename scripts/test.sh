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

build() { $cargo build --locked --profile verify --workspace && $cargo test --locked --profile verify --workspace --no-run; }
units() { $cargo test --locked --profile verify --workspace --exclude braid && $cargo test --locked --profile verify -p braid --bins --test arrows; }
# Two runs side by side, one for each core. The seeds are always the same, so that a change is judged by itself;
# SIM_FRESH=1 draws the second run's by the clock. A seed that fails is printed with the command that replays it.
simulator() {
    local seeds=${SIM_SEEDS:-200} from failed=0 first second log other
    from=$seeds
    [ "${SIM_FRESH:-0}" = 1 ] && from=$(($(date +%s) % 1000000000))
    $cargo build --locked --profile verify -p braid-sim || return 1
    log=$(mktemp)
    first="0..$seeds" second="$from..$((from + seeds))"
    $cargo run --locked --quiet --profile verify -p braid-sim -- --seeds "$second" >"$log" 2>&1 &
    other=$!
    echo "seeds $first"
    $cargo run --locked --quiet --profile verify -p braid-sim -- --seeds "$first" || failed=1
    wait "$other" || failed=1
    echo "seeds $second"
    cat "$log"
    rm -f "$log"
    return $failed
}
corpus() { $cargo test --locked --profile verify -p braid --test corpus; }
end_to_end() { $cargo test --locked --profile verify -p braid --test end_to_end --test allocations; }
check() { CHECK_ARROWS=0 scripts/check.sh; }

stage build 300 build
stage units 120 units
stage simulator 360 simulator
stage corpus 60 corpus
stage end-to-end 360 end_to_end
stage check 120 check

echo
echo "time: "
printf '  %s\n' "${times[@]}"
passed=$(awk '/^test result:/ { for (i = 1; i < NF; i++) if ($(i + 1) ~ /^passed/) n += $i } END { print n + 0 }' "$log")
failed=$(awk '/^test result:/ { for (i = 1; i < NF; i++) if ($(i + 1) ~ /^failed/) n += $i } END { print n + 0 }' "$log")
[ ${#failed_stages[@]} -gt 0 ] && echo "failed stages: ${failed_stages[*]}"
echo "$passed passed, $((failed > 0 ? failed : ${#failed_stages[@]})) failed"
[ ${#failed_stages[@]} -eq 0 ]
