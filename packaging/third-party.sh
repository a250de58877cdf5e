#!/usr/bin/env bash
# Prints the licences of everything that is linked into the binary: each crate with its licence, then every text once.
#
#   packaging/third-party.sh [TARGET]
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
target=${1:-$(rustc -vV | sed -n 's/^host: //p')}

echo "Braid contains these libraries, each under the licence named; the texts follow."
echo
crates=$($cargo tree --locked -p braid --edges normal --target "$target" --prefix none --format '{p}|{l}' |
    sed -E 's/ \(\*\)$//; s/ \(proc-macro\)//' | grep -v '(/' | sort -u)
while IFS='|' read -r package licence; do
    printf '%-36s %s\n' "$package" "$licence"
done <<<"$crates"

declare -A seen
while IFS='|' read -r package licence; do
    name=${package% v*} version=${package##* v}
    folder=$(find "${CARGO_HOME:-$HOME/.cargo}/registry/src" -maxdepth 2 -type d -name "$name-$version" -print -quit)
    if [ -z "$folder" ]; then
        echo "the source of $name $version is not there: cargo fetch --locked" >&2
        exit 1
    fi
    while IFS= read -r text; do
        # The same text under the same licence once; line ends and indentation do not make it another one.
        sum=$(tr -d '[:space:]' <"$text" | sha256sum)
        if [ -z "${seen[$sum]:-}" ]; then
            seen[$sum]=$package
            printf '\n---- %s: %s\n\n' "$package" "$(basename "$text")"
            cat "$text"
        fi
    done < <(find "$folder" -maxdepth 1 -type f \( -iname 'licen[cs]e*' -o -iname 'copying*' -o -iname 'copyright*' -o -iname 'notice*' \) | sort)
done <<<"$crates"
