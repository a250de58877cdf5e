#!/usr/bin/env bash
# The Debian package, from its installation to its purge, in a booted system of its own.
#
#   scripts/test-package.sh BINARY
#
# Builds the package of that binary, boots a minimal system with systemd in a container (made once, and kept in the
# cache folder), installs, uses, kills, upgrades, removes, installs again and purges. Needs root.
set -euo pipefail
binary=$(realpath "$1")
cd "$(dirname "$0")/.."
export PATH="$PATH:/usr/sbin:/sbin" LC_ALL=C.UTF-8

cache=${XDG_CACHE_HOME:-$HOME/.cache}/braid-tests
# The same release as this machine's, from where this machine has its own packages.
release=$(. /etc/os-release && echo "$VERSION_CODENAME")
base=$cache/system-$release
work=$(mktemp -d)
leader=
nspawn=

cleanup() {
    if [ -n "$nspawn" ] && kill -0 "$nspawn" 2>/dev/null; then
        # SIGKILL of the container's first process ends all of it.
        [ -n "$leader" ] && kill -9 "$leader" 2>/dev/null
        wait "$nspawn" 2>/dev/null || true
    fi
    umount "$work/system" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT

fail() {
    echo "package: $*" >&2
    if [ -n "$leader" ]; then
        inside journalctl --no-pager -u braid -n 40 >&2 || true
    fi
    exit 1
}
inside() { nsenter -t "$leader" -m -p -u -i -n -- env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 "$@"; }
try_until() { # what, command…
    local what=$1 n
    shift
    for ((n = 0; n < 300; n++)); do
        if "$@" >/dev/null 2>&1; then return; fi
        sleep 0.2
    done
    fail "waited in vain: $what"
}

[ "$(id -u)" = 0 ] || fail "this boots a container: run it as root"
if [ ! -e "$base/.complete" ]; then
    echo "making a minimal system in $base"
    mirror=$(apt-get indextargets --format '$(CODENAME) $(REPO_URI)' | sed -n "s/^$release //p" | head -1)
    [ -n "$mirror" ] || fail "apt knows no source of packages for $release"
    make_base() {
        rm -rf "$base"
        mkdir -p "$cache"
        debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus,adduser,init-system-helpers \
            "$release" "$base" "$mirror" >"$work/debootstrap.log" 2>&1
    }
    make_base || { sleep 20; make_base; } || { tail -20 "$work/debootstrap.log" >&2; fail "debootstrap failed"; }
    touch "$base/.complete"
fi

echo "building the packages"
package=$(packaging/deb/build.sh "$binary" "$work" 0.0.1-1)
newer=$(packaging/deb/build.sh "$binary" "$work" 0.0.1-2)
lintian --allow-root --fail-on error,warning --suppress-tags-from-file packaging/deb/lintian-not-ours "$package" ||
    fail "lintian has something to say"

mkdir -p "$work/upper" "$work/over" "$work/system"
mount -t overlay overlay -o "lowerdir=$base,upperdir=$work/upper,workdir=$work/over" "$work/system"
cp "$package" "$newer" "$work/system/srv/"
systemd-nspawn --quiet --register=no --keep-unit --private-network --directory="$work/system" --machine="braid-package-$$" \
    --bind=/dev/fuse --bind=/dev/loop-control --boot --console=passive >"$work/boot.log" 2>&1 </dev/null &
nspawn=$!
for ((n = 0; n < 300; n++)); do
    leader=$(pgrep -P "$nspawn" || true)
    [ -n "$leader" ] && break
    sleep 0.1
done
[ -n "$leader" ] || { cat "$work/boot.log" >&2; fail "the container did not start"; }
try_until "the container's system is up" inside systemctl is-system-running

echo "installing"
inside dpkg -i "/srv/$(basename "$package")" >"$work/dpkg.log" 2>&1 || { cat "$work/dpkg.log" >&2; fail "it does not install"; }
[ "$(inside systemctl is-active braid)" = active ] || fail "the daemon is not active after the installation"
[ "$(inside systemctl is-enabled braid)" = enabled ] || fail "the unit is not enabled"
inside getent group braid >/dev/null || fail "there is no group braid"
[ "$(inside stat -c '%a %G' /run/braid/braid.sock)" = "660 braid" ] || fail "the socket is not its group's"
inside systemd-analyze verify braid.service 2>&1 | grep -i braid && fail "systemd complains of the unit"
exposure=$(inside systemd-analyze security braid --no-pager | tail -1)
echo "  $exposure"

echo "using it"
inside mkdir /srv/disks
inside braid array create data --level raid0 file:/srv/disks/a,size=64M file:/srv/disks/b,size=96M >/dev/null
inside braid export add data --nbd unix:/run/braid/data.sock >/dev/null
inside_root=/proc/$leader/root
socket=$inside_root/run/braid/data.sock
export_size() { nbdinfo --size "nbd+unix:///data?socket=$socket"; }
size=$(export_size) || fail "the export is not served"
sample=$work/sample
head -c 1048576 /dev/urandom >"$sample"
qemu-io -f raw -c "write -q -s $sample 0 1M" -c flush "nbd+unix:///data?socket=$socket" || fail "it does not take a write"
holds_sample() {
    nbdcopy "nbd+unix:///data?socket=$socket" "$work/copy" && cmp -n 1048576 "$work/copy" "$sample"
}
holds_sample || fail "what was written does not read back"

main_pid() { inside systemctl show -P MainPID braid; }
before=$(main_pid)
inside systemctl kill --signal=KILL --kill-who=main braid
try_until "the unit starts it again after a kill" export_size
[ "$(main_pid)" != "$before" ] || fail "the killed daemon is still there"
holds_sample || fail "the kill has lost what was written"

echo "mounting, as at boot"
# Loop devices appear in the machine's /dev, and the container has its own.
for n in $(seq 0 63); do inside mknod "/dev/loop$n" b 7 "$n"; done
inside mkdir -p /etc/systemd/system/braid.service.d /etc/braid/mounts /srv/db
inside zcat -f /usr/share/doc/braid/examples/fuse.conf >"$inside_root/etc/systemd/system/braid.service.d/fuse.conf"
printf '%s\n' NAME=tank/db FOLDER=/srv/db 'OPTIONS=--mkfs --via fuse' >"$inside_root/etc/braid/mounts/srv-db.conf"
inside systemctl daemon-reload
inside systemctl restart braid
inside braid pool create tank file:/srv/disks/pool,size=512M >/dev/null
inside braid volume create tank/db 256M >/dev/null
inside systemd-analyze verify braid-mount@srv-db.service 2>&1 | grep -i braid && fail "systemd complains of the unit that mounts"
inside systemctl enable --now braid-mount@srv-db 2>/dev/null || { inside journalctl --no-pager -u braid-mount@srv-db >&2; fail "the unit mounts nothing"; }
is_mounted() { inside grep -q ' /srv/db ext4 ' /proc/mounts; }
is_mounted || fail "nothing is mounted"
inside cp /usr/bin/braid /srv/db/first
# Its file's channel is kept by systemd while no daemon is there.
inside systemctl restart braid
is_mounted && inside cmp /usr/bin/braid /srv/db/first || fail "a restart of the daemon has lost what was mounted"
inside cp /usr/bin/braid /srv/db/second &
writer=$!
inside systemctl kill --signal=KILL --kill-who=main braid
wait $writer || fail "a kill of the daemon has failed a write to what was mounted"
inside sync -f /srv/db
inside sh -c 'echo 3 >/proc/sys/vm/drop_caches' 2>/dev/null || true
is_mounted && inside cmp /usr/bin/braid /srv/db/second || fail "a kill of the daemon has lost what was mounted"
inside systemctl stop braid-mount@srv-db || fail "the unit does not unmount"
is_mounted && fail "it is mounted after the unit has stopped"
[ "$(inside braid export list --json | grep -c mount)" = 0 ] || fail "the export that was made for mounting is left"
inside systemctl start braid-mount@srv-db
is_mounted && inside cmp /srv/db/first /srv/db/second || fail "what was written is not there when it is mounted again"
inside systemctl disable --now braid-mount@srv-db 2>/dev/null
inside braid pool delete tank --yes >/dev/null || fail "the pool is still in use"
inside rm -r /etc/braid/mounts /etc/systemd/system/braid.service.d
inside systemctl daemon-reload
inside systemctl restart braid

echo "upgrading"
before=$(main_pid)
inside dpkg -i "/srv/$(basename "$newer")" >"$work/dpkg.log" 2>&1 || { cat "$work/dpkg.log" >&2; fail "it does not upgrade"; }
[ "$(main_pid)" = "$before" ] || fail "an upgrade has cut off the clients"
grep -q 'systemctl restart braid' "$work/dpkg.log" || fail "the upgrade does not say what to do"
inside systemctl restart braid
export_size >/dev/null || fail "the export is not back after the restart"

echo "removing"
inside dpkg -r braid >"$work/dpkg.log" 2>&1 || { cat "$work/dpkg.log" >&2; fail "it does not go"; }
inside test ! -e /usr/bin/braid || fail "the program is still there"
inside test ! -e /run/braid/braid.sock || fail "the daemon is still there"
inside test -e /var/lib/braid/state.json || fail "the state is gone"
inside test -e /etc/braid/braid.toml || fail "the configuration is gone"

echo "installing again"
inside dpkg -i "/srv/$(basename "$newer")" >"$work/dpkg.log" 2>&1 || { cat "$work/dpkg.log" >&2; fail "it does not install again"; }
try_until "the export is back after another installation" export_size
[ "$(export_size)" = "$size" ] && holds_sample || fail "what was written is not there any more"

echo "purging"
inside dpkg -P braid >"$work/dpkg.log" 2>&1 || { cat "$work/dpkg.log" >&2; fail "it cannot be purged"; }
inside test ! -e /etc/braid || fail "the configuration is left after a purge"
inside test ! -e /var/lib/braid || fail "the state is left after a purge"
[ -z "$(inside systemctl --failed --no-legend)" ] || fail "units have failed: $(inside systemctl --failed --no-legend)"
# The disks are left alone: with nothing else, their labels suffice.
inside dpkg -i "/srv/$(basename "$newer")" >"$work/dpkg.log" 2>&1
inside braid array assemble data --disk /srv/disks/a --disk /srv/disks/b >/dev/null || fail "after a purge the labels do not suffice"
inside braid export add data --nbd unix:/run/braid/data.sock >/dev/null
holds_sample || fail "a purge has lost data"
echo "the package installs, serves, survives a kill, upgrades, goes and leaves the data alone"
