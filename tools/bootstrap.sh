#!/bin/sh
# bootstrap.sh - makes sure that what the Makefile needs is installed.
#
# Silent if nothing is missing. Otherwise names the packages and installs them where that needs no
# question (root, or sudo without a password); else prints the line to type and exits 1.
# Reads CC, URING (0: liburing is not wanted) and DEPS (a prefix that may hold headers instead).
# Arguments are further Debian packages, each as command=package (make fuzz asks for clang).
set -u

missing=
want() { missing="$missing $1"; }
have() { command -v "$1" >/dev/null 2>&1; }
header() {                       # header FILE PKGCONFIG-NAME
    [ -n "${DEPS:-}" ] && [ -e "$DEPS/usr/include/$1" ] && return 0
    have pkg-config && pkg-config --exists "$2" 2>/dev/null && return 0
    [ -e "/usr/include/$1" ]
}

have "${CC:-gcc}" || want gcc
have make || want make
[ -e /usr/include/stdio.h ] || want libc6-dev
have pkg-config || [ -n "${DEPS:-}" ] || want pkg-config
have xz || want xz-utils
header jansson.h jansson || want libjansson-dev
[ "${URING:-1}" = 0 ] || header liburing.h liburing || want liburing-dev
for pair in "$@"; do
    have "${pair%%=*}" || want "${pair#*=}"
done
[ -n "$missing" ] || exit 0

echo "missing packages:$missing"
if ! have apt-get; then
    echo "this system has no apt-get; install what your distribution calls them, then run make again"
    exit 1
fi
if [ "$(id -u)" = 0 ]; then
    sudo=
elif have sudo && sudo -n true 2>/dev/null; then
    sudo="sudo -n"
else
    echo "type:  sudo apt-get install -y$missing"
    exit 1
fi
echo "installing them: $sudo apt-get install -y$missing"
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086
if ! $sudo apt-get install -y --no-install-recommends $missing >/dev/null 2>&1; then
    $sudo apt-get update >/dev/null 2>&1
    if ! $sudo apt-get install -y --no-install-recommends $missing; then
        echo "that failed; type:  ${sudo:+sudo }apt-get install -y$missing"
        exit 1
    fi
fi
