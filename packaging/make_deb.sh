#!/bin/sh
# make_deb.sh BUILD VERSION OUT - a Debian package of what was built, as OUT/moe_VERSION_ARCH.deb, by
# dpkg-deb alone. Prints its path. It depends on the packages of the libraries that the programs are
# linked with on this machine; a line on stderr names libraries that no package owns.
set -eu
build=$1 out=$3
command -v dpkg-deb >/dev/null || { echo "make deb needs dpkg-deb: this is no Debian or Ubuntu" >&2; exit 1; }
arch=$(dpkg --print-architecture)
# a version begins with a digit, and a minus would begin the package's own
version=$(printf %s "${2#v}" | tr -c 'A-Za-z0-9.+~' .)
# a commit without a tag does not tell earlier from later: its time does
if ! printf %s "$version" | grep -q '^[0-9]\{1,4\}\.[0-9]'; then
    version=0+git$(git log -1 --format=%cd --date=format:%Y%m%d%H%M 2>/dev/null || date -u +%Y%m%d%H%M).$version
fi

stage=$(mktemp -d "${TMPDIR:-/tmp}/moe-deb-XXXXXX")
chmod 755 "$stage"
trap 'rm -rf "$stage"' EXIT
trap 'exit 130' INT TERM HUP
packaging/install.sh "$build" "$stage" /usr
for p in "$stage"/usr/bin/*; do strip --strip-unneeded "$p"; done
gzip -9n "$stage"/usr/share/man/man1/*.1
install -d "$stage/DEBIAN"
install -m 644 LICENSE "$stage/usr/share/doc/moe/copyright"

# The packages of the libraries, from paths as ldd writes them or as the package lists them. One
# question for all of them: dpkg reads every list of files each time.
candidates() { echo "$1" "/usr$1" "$(readlink -f "$1")" "${1#/usr}"; }
needs() {
    libs=$(for p in "$stage"/usr/bin/*; do
        names=$(objdump -p "$p" | sed -n 's/^ *NEEDED *//p')
        paths=$(ldd "$p")
        for n in $names; do echo "$paths" | sed -n "s|^[[:space:]]*$n => \(/[^ ]*\).*|\1|p"; done
    done | sort -u)
    # shellcheck disable=SC2046
    owners=$(dpkg -S $(for lib in $libs; do candidates "$lib"; done) 2>/dev/null) || true
    for lib in $libs; do
        owner=
        for f in $(candidates "$lib"); do
            owner=$(echo "$owners" | sed -n "\|: $f\$|{s/:.*//p;q}")
            [ -z "$owner" ] || { echo "$owner"; break; }
        done
        [ -n "$owner" ] || echo "$lib" >>"$stage/DEBIAN/unowned"
    done | sort -u | paste -sd, - | sed 's/,/, /g'
}
depends=$(needs)
if [ -e "$stage/DEBIAN/unowned" ]; then
    echo "make_deb.sh: $(paste -sd' ' "$stage/DEBIAN/unowned"): no package's, so not in its dependencies; the programs look there" >&2
    rm "$stage/DEBIAN/unowned"
fi
cat >"$stage/DEBIAN/control" <<END
Package: moe
Version: $version
Architecture: $arch
Maintainer: ${DEB_MAINTAINER:-moe-run <root@localhost>}
Installed-Size: $(du -sk --exclude=DEBIAN "$stage" | cut -f 1)
Section: science
Priority: optional
${depends:+Depends: $depends
}Description: runs big Mixture-of-Experts language models from GGUF files
 moe-run runs gpt-oss, Qwen3, GLM-4.5, Gemma 4, Mixtral and other models with
 experts on a machine that they do not fit: the GPU's memory, RAM and a drive
 are used together. moe-bench measures it, moe-quant writes model files with
 weights in other types. A small model is built in.
END
if [ -e "$stage/usr/lib/systemd/system/moe-serve.service" ]; then
    install -d "$stage/etc/default"
    install -m 644 packaging/moe-serve.default "$stage/etc/default/moe-serve"
    echo /etc/default/moe-serve >"$stage/DEBIAN/conffiles"
    install -m 755 packaging/deb_service.sh "$stage/DEBIAN/postinst"
    install -m 755 packaging/deb_service.sh "$stage/DEBIAN/prerm"
    install -m 755 packaging/deb_service.sh "$stage/DEBIAN/postrm"
fi
(cd "$stage" && find usr -type f -exec md5sum {} + | sort -k 2) >"$stage/DEBIAN/md5sums"
mkdir -p "$out"
# weights do not get smaller: a better compression would only take time (xz: 40 s for 4%)
dpkg-deb --root-owner-group ${DEB_COMPRESSION:--Zgzip -z1} --build "$stage" "$out/moe_${version}_$arch.deb" >/dev/null
echo "$out/moe_${version}_$arch.deb"
