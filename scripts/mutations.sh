#!/usr/bin/env bash
# Mutations: bugs that are put into a copy of the tree on purpose, for the simulator and the tests of the engine and of
# braid-array-admin to find. The shipped code has none. They are in crates/braid-sim/mutations:
#
#   engine/       files that the copy gets in crates/braid-engine/src: the lists of mutations, and which one is on
#   array-admin/  the same for crates/braid-array-admin/src; its reconciler takes the engine's list
#   base.patch    what all of them need, and the tests of both crates that switch them on
#   A+B.patch     the bugs A and B, which are too near each other for a patch each; all are off until a test asks for one
#
# Every patch fits the tree with base.patch, whichever others are applied. A file with a bug needs an import of the list, which
# no patch has: `add_imports` adds it, so that a change of a file's imports breaks no patch.
#
#   scripts/mutations.sh check            every patch applies to the present tree
#   scripts/mutations.sh tree DIR         a copy of the present tree with all mutations
#   scripts/mutations.sh build            builds the simulator and these tests with them, in target/mutations
#   scripts/mutations.sh test             runs the tests that switch mutations on
#   scripts/mutations.sh edit NAME DIR    a copy with NAME.patch alone, as a change of a git repository, to write or mend it
#   scripts/mutations.sh save NAME DIR    writes NAME.patch from that copy
set -euo pipefail
folder=$(realpath -m "${@: -1}") # the last argument, where it is one
cd "$(dirname "$0")/.."
root=$PWD
patches=$root/crates/braid-sim/mutations
cargo=${CARGO:-cargo}

fail() { echo "mutations: $*" >&2 && exit 1; }

# The present tree: what is tracked, as it is on the disk, and what is new and not ignored.
files() {
    git ls-files -z --cached --others --exclude-standard -- "$@" | sort -zu | while IFS= read -rd '' file; do
        if [ -e "$file" ]; then printf '%s\0' "$file"; fi
    done
}

copy() { # to, paths…
    local to=$1
    shift
    if [ -n "$(ls -A "$to" 2>/dev/null)" ]; then fail "$to is not empty"; fi
    mkdir -p "$to"
    files "$@" | tar --null -T - -cf - | tar -xf - -C "$to"
}

# No repository around the copy counts: within one, git would leave out what it does not find there.
patch_tree() { # folder, patch, further arguments of git apply
    local folder
    folder=$(cd "$1" && pwd -P)
    (cd "$folder" && GIT_CEILING_DIRECTORIES=$(dirname "$folder") git apply "${@:3}" "$patches/$2.patch")
}

add_base() {
    patch_tree "$1" base || return 1
    for part in engine array-admin; do cp -R "$patches/$part/." "$1/crates/braid-$part/src/"; done
}

# All patches in the order of their names. Names those that do not apply.
apply() {
    local file name failed=0
    add_base "$1" || fail "base.patch no longer applies"
    for file in "$patches"/*.patch; do
        name=$(basename "$file" .patch)
        if [ "$name" != base ] && ! patch_tree "$1" "$name"; then
            echo "mutations: $name.patch no longer applies: scripts/mutations.sh edit $name DIR" >&2
            failed=1
        fi
    done
    return $failed
}

add_imports() { # folder, crate
    local file module name names
    cd "$1/crates/$2/src"
    grep -rlE '\b[Pp]lant(ed)?(::|\()' . | sort | while read -r file; do
        case $file in
            */planted.rs | ./lib.rs | ./lifecycle/mod.rs | ./replica/mod.rs) continue ;;
            ./lifecycle/*) module=crate::lifecycle ;;
            ./replica/*) module=crate::replica ;;
            ./reconciler/*) module=braid_engine ;;
            *) module=crate ;;
        esac
        names=
        if grep -qE '\bplanted::[a-z_]+\(' "$file"; then names+=", self"; fi
        if grep -qE '\bPlanted::' "$file"; then names+=", Planted"; fi
        for name in plant planted; do
            if grep -qE "(^|[^:_[:alnum:]])$name\(" "$file"; then names+=", $name"; fi
        done
        # The engine's module is private.
        if [ $module != braid_engine ]; then module+=::planted; fi
        awk -v line="use $module::{${names#, }};" '!done && /^use / { print line; done = 1 } { print }' "$file" >"$file.new"
        mv "$file.new" "$file"
    done
    cd "$root"
}

tree() {
    copy "$1"
    apply "$1"
    add_imports "$1" braid-engine
    add_imports "$1" braid-array-admin
}

check() {
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    copy "$folder" crates/braid-engine crates/braid-array-admin crates/braid-sim/Cargo.toml
    apply "$folder"
}

target() { $cargo metadata --locked --no-deps --format-version 1 | sed -E 's/.*"target_directory":"([^"]*)".*/\1/'; }

in_tree() { (cd "$target/tree" && $cargo "$1" --locked --profile verify --target-dir "$target" "${@:2}"); }
tests() { in_tree test -p braid-engine -p braid-array-admin --features braid-array-admin/planted --lib --test engine "$@"; }

build() {
    local fresh=$target/tree.new file
    rm -rf "$fresh"
    mkdir -p "$target"
    tree "$fresh"
    # What has not changed keeps its time: cargo does not build it again.
    while IFS= read -rd '' file; do
        if cmp -s "$target/tree/$file" "$fresh/$file"; then touch -r "$target/tree/$file" "$fresh/$file"; fi
    done < <(cd "$fresh" && find . -type f -print0)
    rm -rf "$target/tree"
    mv "$fresh" "$target/tree"
    in_tree build -p braid-sim --features mutations
    tests --no-run
}

# The tests that switch a mutation on, by their names.
run_tests() {
    local names
    mapfile -t names < <(cd "$target/tree/crates" && find braid-engine/{src,tests} braid-array-admin/src -path '*tests*' -name '*.rs' | sort | xargs awk \
        '/^fn / { name = $2; sub(/\(.*/, "", name) } /(^|[^_[:alnum:]])plant\(Some/ { print name }' | sort -u)
    [ ${#names[@]} -ge 20 ] || fail "only ${#names[@]} tests switch a mutation on"
    tests -- "${names[@]}"
}

commit() { git -C "$1" -c user.name=mutations -c user.email=mutations@localhost commit -qm "$2"; }

edit() { # name, folder
    copy "$2"
    [ "$1" = base ] || add_base "$2"
    git -C "$2" init -q
    git -C "$2" add -A
    commit "$2" "without $1"
    if [ -e "$patches/$1.patch" ]; then
        (cd "$2" && git apply --reject "$patches/$1.patch") || echo "mutations: what did not apply is in $2, in files *.rej" >&2
    fi
    echo "Change crates/braid-engine or crates/braid-array-admin in $2, then: scripts/mutations.sh save $1 $2"
}

# Without the lists, which are not patches.
save() { # name, folder
    local text
    text=$(git -C "$2" diff HEAD -- . ':!*planted.rs' | sed '/^index /d')
    [ -n "$text" ] || fail "nothing has changed in $2"
    echo "$text" >"$patches/$1.patch"
}

usage() { sed -n '/^#   scripts/s/^#   //p' "$0" >&2 && exit 2; }

case ${1:-} in
    check) check ;;
    tree)
        [ $# = 2 ] || usage
        tree "$folder"
        ;;
    edit | save)
        [ $# = 3 ] || usage
        "$1" "$2" "$folder"
        ;;
    build | test)
        target=$(target)/mutations
        if [ "$1" = build ]; then build; else run_tests; fi
        ;;
    *) usage ;;
esac
