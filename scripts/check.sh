#!/usr/bin/env bash
# Format, lint, whether every mutation applies, the arrows between the crates and between their modules, nested
# locks, the words, and the documents. Nothing is changed on disk.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

$cargo fmt --all --check
$cargo clippy --locked --workspace --all-targets --quiet -- -D warnings

scripts/mutations.sh check

# The crates that must not know of clocks, files, threads or chance: their libraries (not their tests) once
# more, with the list in scripts/lint-pure/clippy.toml. A target folder of its own, because the two
# configurations would otherwise take each other's results for their own.
pure=(braid-geometry braid-parity braid-format braid-engine braid-array-admin braid-sim)
target=${CARGO_TARGET_DIR:-target}/lint-pure
CLIPPY_CONF_DIR=$PWD/scripts/lint-pure $cargo clippy --locked --target-dir "$target" --quiet --lib \
    "${pure[@]/#/--package=}" -- -D warnings

if [ "${CHECK_ARROWS:-1}" = 1 ]; then # `make test` runs it with all the others
    $cargo test --locked --quiet -p braid --test arrows --test folder_arrows --test lock_nesting --test vocabulary --test book
fi
