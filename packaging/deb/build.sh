#!/usr/bin/env bash
# Makes a Debian package of one binary, with its unit, man pages, completions and a configuration to edit.
#
#   packaging/deb/build.sh BINARY FOLDER [VERSION]
#
# Prints the path of the package. The binary is one that was built for this machine's kind.
set -euo pipefail
binary=$(realpath "$1")
mkdir -p "$2"
folder=$(realpath "$2")
cd "$(dirname "$0")/../.."
version=${3:-$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)-1}
# The same commit gives the same package.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH
arch=$(dpkg --print-architecture)
umask 022

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"
stage=$root/stage
doc=$stage/usr/share/doc/braid

install -D -m 755 "$binary" "$stage/usr/bin/braid"
strip --strip-unneeded "$stage/usr/bin/braid"
install -D -m 644 packaging/braid.service "$stage/usr/lib/systemd/system/braid.service"
install -m 644 packaging/braid-mount@.service "$stage/usr/lib/systemd/system/"
install -D -m 644 packaging/braid.toml "$stage/etc/braid/braid.toml"
mkdir -p "$doc" "$stage/usr/share/man/man1"
"$binary" man --dir "$stage/usr/share/man/man1" >/dev/null
gzip -9n "$stage"/usr/share/man/man1/*
for shell in bash:bash-completion/completions/braid zsh:zsh/vendor-completions/_braid fish:fish/vendor_completions.d/braid.fish; do
    completion=$stage/usr/share/${shell#*:}
    mkdir -p "$(dirname "$completion")"
    "$binary" completions "${shell%%:*}" >"$completion"
done
install -m 644 README.md SECURITY.md "$doc/"
(cd docs && find . -name '*.md' -exec install -D -m 644 {} "$doc/docs/{}" \;)
install -D -m 644 packaging/fuse.conf "$doc/examples/fuse.conf"

cp -r packaging/grafana packaging/prometheus "$doc/"
gzip -9nc CHANGELOG.md >"$doc/changelog.gz"
gzip -9nc >"$doc/changelog.Debian.gz" <<END
braid ($version) unstable; urgency=medium

  * See changelog.gz.

 -- Braid maintainers <braid@localhost>  $(LC_ALL=C date -R -u -d "@$SOURCE_DATE_EPOCH")
END
cat >"$doc/copyright" <<'END'
Braid. Copyright 2026 the authors of Braid, under the Apache License 2.0: /usr/share/common-licenses/Apache-2.0
The libraries that it contains, their authors and licences: third-party.gz
END
packaging/third-party.sh | gzip -9n >"$doc/third-party.gz"
find "$doc/docs" -name '*.md' -exec gzip -9n {} +

mkdir -p "$stage/DEBIAN" "$root/debian"
# The libraries of the C side, as the binary itself names them.
printf 'Source: braid\n\nPackage: braid\nArchitecture: any\n' >"$root/debian/control"
depends=$(cd "$root" && dpkg-shlibdeps -O -e stage/usr/bin/braid 2>/dev/null | sed -n 's/^shlibs:Depends=//p')
# A static binary needs none of them.
[ -n "$depends" ] || depends='passwd'
size=$(du -ks --exclude=DEBIAN "$stage" | cut -f1)
sed -e "s/@VERSION@/$version/; s/@ARCH@/$arch/; s/@DEPENDS@/$depends/" packaging/deb/control.in >"$stage/DEBIAN/control"
sed -i "/^Priority:/a Installed-Size: $size" "$stage/DEBIAN/control"
echo /etc/braid/braid.toml >"$stage/DEBIAN/conffiles"
for script in postinst prerm postrm; do install -m 755 "packaging/deb/$script" "$stage/DEBIAN/$script"; done
(cd "$stage" && find . -path ./DEBIAN -prune -o -type f -printf '%P\0' | sort -z | xargs -0 md5sum) >"$stage/DEBIAN/md5sums"

package=$folder/braid_${version}_$arch.deb
dpkg-deb --root-owner-group --build "$stage" "$package" >/dev/null
echo "$package"
