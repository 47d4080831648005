#!/bin/sh
# bootstrap.sh - makes sure that what the Makefile needs is installed.
#
# Silent if nothing is missing. Otherwise names the packages and installs them where that needs no
# question (root, or sudo without a password); else prints the line to type and exits 1.
# Reads CC, CUDA (1: nvcc needs a C++ compiler), URING (0: liburing is not wanted), CURL (1: libcurl is
# needed, 0: it is not wanted; else it comes along where other packages do, since all but one verb is
# built without it) and DEPS (a prefix that may hold the headers instead). Arguments ask for more:
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
if [ "$(id -u)" = 0 ]; then
    sudo=
elif have sudo && sudo -n true 2>/dev/null; then
    sudo="sudo -n"
else
    if have sudo; then echo "type:  sudo apt-get update && sudo $install"
    else echo "type, as root:  apt-get update && $install"; fi
    exit 1
fi
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
