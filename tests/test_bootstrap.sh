#!/bin/sh
# test_bootstrap.sh BUILD - what make installs on a machine that lacks packages, and what it builds
# where it may not: libcurl's headers are found or not, whatever this machine has.
set -u
area=bootstrap
. tests/cli_harness.sh
unset CURL CC CPPFLAGS DEPS MAKEFLAGS MAKELEVEL    # what the make that runs the tests was told

# ---- a machine with everything but libcurl: its apt-get writes down what it is asked for
mkdir "$tmp/bin"
fake() { cat >"$tmp/bin/$1" && chmod +x "$tmp/bin/$1"; }
fake apt-get <<EOF
#!/bin/sh
echo "\$*" >>"$tmp/asked"
EOF
fake id <<EOF
#!/bin/sh
echo 0
EOF
fake pkg-config <<EOF
#!/bin/sh
case \$* in *libcurl*) exit 1 ;; esac
EOF
if [ -e /usr/include/curl/curl.h ]; then
    skip "libcurl's headers are where every compiler looks: what is installed without them"
else
    # asks CURL TEXT ARGUMENTS...: exits with 0, having asked for just these packages
    asks() {
        curl=$1 text=$2
        shift 2
        : >"$tmp/asked"
        CURL=$curl PATH="$tmp/bin:$PATH" tools/bootstrap.sh "$@" >"$tmp/out" 2>"$tmp/err" </dev/null
        got=$?
        asked=$(sed 's/^install -y --no-install-recommends *//' "$tmp/asked")
        if [ $got -eq 0 ] && [ "$asked" = "$text" ]; then ok; else bad "CURL=$curl $*: exit $got, asked for '$asked'"; fi
    }
    asks '' ''
    asks '' 'other libcurl4-openssl-dev' +other
    asks 0 ''
    asks 0 'other' +other
    asks 1 'libcurl4-openssl-dev'
    asks 1 'other libcurl4-openssl-dev' +other
fi

# ---- the Makefile, with a compiler that finds libcurl's headers and one that does not
fake cc <<EOF
#!/bin/sh
case \$* in *curl/curl.h*) exit 1 ;; esac
exec gcc "\$@"
EOF
mkdir -p "$tmp/include/curl"
: >"$tmp/include/curl/curl.h"
# builds CURL WHAT ARGUMENTS...: what make -n would build of cli/pull
builds() {
    wanted=$1 what=$2
    shift 2
    make -n CUDA=0 OPT=-O0 "$@" all >"$tmp/out" 2>"$tmp/err" </dev/null
    got=$?
    found=$(grep -o 'cli/pull/fetch[_a-z]*\.c' "$tmp/out" | sort -u | tr -d '\n')
    if [ $got -eq 0 ] && [ "$found" = "cli/pull/$wanted.c" ]; then ok; else bad "$what: exit $got, builds '$found'"; fi
}
if command -v gcc >/dev/null; then
    builds fetch_stub "a compiler without libcurl's headers" CC="$tmp/bin/cc"
    if grep -q "without moe-run pull: that needs libcurl4-openssl-dev" "$tmp/out"; then ok; else bad "make does not say what is left out"; fi
    builds fetch "a compiler with libcurl's headers" CPPFLAGS="-I$tmp/include"
    builds fetch_stub "CURL=0" CURL=0 CPPFLAGS="-I$tmp/include"
else
    skip "no gcc: what is built without libcurl"
fi
finish
