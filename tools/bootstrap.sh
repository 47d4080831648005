#!/bin/sh
# bootstrap.sh - checks that the packages which the Makefile needs are installed.
#
# Silent if nothing is missing. Otherwise names the packages, prints the line that installs them and
# exits 1. With INSTALL=1 it installs them if that needs no password (root, or sudo -n).
# Reads CC, CUDA (1: nvcc needs a C++ compiler), URING (0: without liburing), CURL (1: libcurl is
# needed, 0: without it; else it is named only together with other packages, because all but one verb
# are built without it) and DEPS (a prefix with the headers). Arguments ask for more:
# command=package if the command is missing, +package in any case.
set -u

missing=
want() { missing="$missing $1"; }
have() { command -v "$1" >/dev/null 2>&1; }
header() {                       # header FILE PKGCONFIG-NAME
    [ -n "${DEPS:-}" ] && [ -e "$DEPS/usr/include/$1" ] && return 0
    have pkg-config && pkg-config --exists "$2" 2>/dev/null && return 0
    [ -e "/usr/include/$1" ]
}

cc=${CC:-gcc}
cc=${cc%% *}
have "$cc" || want "${cc##*/}"
# gcc brings its OpenMP along, clang does not: libomp-dev for clang, libomp-16-dev for clang-16
case ${cc##*/} in
    *clang*)
        echo 'int main(void) { return 0; }' | "$cc" -fopenmp -xc -o /dev/null - 2>/dev/null ||
            want "libomp$(expr "$cc" : '.*clang\(-[0-9]*\)$')-dev" ;;
esac
have make || want make
[ -e /usr/include/stdio.h ] || want libc6-dev
[ "${CUDA:-0}" = 0 ] || have g++ || want g++
have pkg-config || [ -n "${DEPS:-}" ] || want pkg-config
have xz || want xz-utils
header jansson.h jansson || want libjansson-dev
header editline/readline.h libedit || want libedit-dev
header microhttpd.h libmicrohttpd || want libmicrohttpd-dev
[ "${URING:-1}" = 0 ] || header liburing.h liburing || want liburing-dev
for extra in "$@"; do
    case $extra in
        +*) want "${extra#+}" ;;
        *) have "${extra%%=*}" || want "${extra#*=}" ;;
    esac
done
case ${CURL:-${missing:+1}} in
    0 | '') ;;
    *) header curl/curl.h libcurl || want libcurl4-openssl-dev ;;
esac
[ -n "$missing" ] || exit 0

echo "missing packages:$missing"
if ! have apt-get; then
    echo "this system has no apt-get; install what your distribution calls them, then run make again"
    exit 1
fi
install="apt-get install -y --no-install-recommends$missing"
sudo=
[ "$(id -u)" = 0 ] || ! have sudo || sudo=sudo
if [ "${INSTALL:-0}" != 1 ] || { [ "$(id -u)" != 0 ] && ! sudo -n true 2>/dev/null; }; then
    [ "$sudo" ] || [ "$(id -u)" = 0 ] || as=", as root"
    echo "type${as:-}:  ${sudo:+$sudo }apt-get update && ${sudo:+$sudo }$install"
    exit 1
fi
sudo=${sudo:+sudo -n}
echo "installing them: ${sudo:+sudo }$install"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
# The package lists of a fresh system are empty: a failed first try is a reason to fetch them.
# shellcheck disable=SC2086
if $sudo $install >"$log" 2>&1 ||
   { $sudo apt-get update >"$log" 2>&1 && $sudo $install >>"$log" 2>&1; }; then
    rm -f "$log"
    exit 0
fi
tail -n 20 "$log"
rm -f "$log"
echo "that failed; once the reason above is mended, type:  ${sudo:+sudo }apt-get update && ${sudo:+sudo }$install"
exit 1
