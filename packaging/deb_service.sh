#!/bin/sh
# deb_service.sh - postinst, prerm and postrm of the package: tells systemd that the service's unit
# was added or removed. The administrator starts the service: systemctl enable --now moe-serve. A
# purge removes the caches, never a model.
set -e
systemd() { [ ! -d /run/systemd/system ] || [ -n "${DPKG_ROOT:-}" ] || systemctl "$@" || true; }
case ${0##*.}:${1:-} in
prerm:remove) systemd --no-reload disable --now moe-serve.service ;;
postinst:configure | postrm:remove) systemd daemon-reload ;;
postrm:purge)
    var=${DPKG_ROOT:-}/var
    rm -rf "$var/cache/private/moe" "$var/cache/moe"
    if [ ! -e "$var/lib/private/moe/models" ]; then
        rm -rf "$var/lib/private/moe"
        [ ! -L "$var/lib/moe" ] || rm -f "$var/lib/moe"
    fi ;;
esac
