#!/bin/sh
# test_packaging.sh BUILD - man pages and completion name the options of --help, no more and no fewer;
# the files of make install; the unit of the service; the Debian package.
set -u
area=packaging
. tests/cli_harness.sh
programs="moe-run moe-bench moe-quant moe-serve"
here=$(cd "$build" && pwd)

# ---- what --help says

# commands PROGRAM: itself and its verbs, one a line: "moe-bench", "moe-bench decode"
verbs() { "$@" --help | sed -n '/^$/q;s/^  \([a-z][a-z]*\)  *[^ ].*/\1/p'; }
commands() {
    echo "$1"
    case $1 in moe-quant | moe-serve) return ;; esac
    for v in $(verbs "$here/$1"); do echo "$1 $v"; done
}
# options COMMAND...: "--model" and "-m", sorted; kept, as they are asked for twice
mkdir "$tmp/options"
options() {
    kept=$tmp/options/$*
    # shellcheck disable=SC2068
    [ -e "$kept" ] || "$here/$1" $(shift; echo $@) --help | sed -n 's/^  \(-[A-Za-z]\), --\([a-z0-9-]*\).*/\1\n--\2/p;s/^      --\([a-z0-9-]*\).*/--\1/p' | sort -u >"$kept"
    cat "$kept"
}
for p in $programs; do
    commands $p >"$tmp/$p.commands"
    while read -r c; do options $c; done <"$tmp/$p.commands" | sort -u >"$tmp/$p.options"
    if [ "$(grep -c '^--' "$tmp/$p.options")" -gt 8 ]; then ok; else bad "$p --help: hardly any options"; fi
done

# ---- man pages
mkdir "$tmp/man"
expect 0 "" python3 tools/gen_man.py "$build" "$tmp/man"

# a minimised system has a man that only says that it is one
printf '.TH X 1\n.SH SEE ALSO\nnothing\n' >"$tmp/x.1"
if man -l "$tmp/x.1" 2>"$tmp/err" </dev/null | grep -q "SEE ALSO"; then shows=1; else shows=0; fi
for p in $programs; do
    page=$tmp/man/$p.1
    sed -n '/^\.TP$/{n;s/\\fB\|\\fR\|\\fI//g;s/\\-/-/g;p;}' $page | grep '^-' |
        sed -n 's/^\(-[A-Za-z]\), \(--[a-z0-9-]*\).*/\1\n\2/p;s/^\(--[a-z0-9-]*\).*/\1/p' | sort -u >"$tmp/page"
    { cat "$tmp/$p.options"; printf '%s\n' -h --help -V --version; } | sort -u >"$tmp/want"
    if cmp -s "$tmp/page" "$tmp/want"; then ok; else bad "$page: $(diff "$tmp/want" "$tmp/page" | tr '\n' ' ')"; fi
    sed -n 's/^\.SS //p' $page | sed 's/\\-/-/g' >"$tmp/page"
    while read -r c; do
        v=${c#"$p"} v=${v# }
        [ -n "$v" ] || continue
        if grep -qxF -e "$v" "$tmp/page"; then ok; else bad "$page: no verb $v"; fi
    done <"$tmp/$p.commands"
    for word in $(grep '^[a-z]' "$tmp/page" | cut -d ' ' -f 1 | sort -u); do
        if grep -q "^$p $word" "$tmp/$p.commands"; then ok; else bad "$page: verb $word is not in --help"; fi
    done
    if [ $shows -eq 1 ]; then
        man --warnings -l $page >"$tmp/out" 2>"$tmp/err"
        if [ ! -s "$tmp/err" ] && grep -q "SEE ALSO" "$tmp/out"; then ok; else bad "$page: man complains"; fi
    else
        skip "no man that shows pages: $page"
    fi
done

# ---- completion

# same WHAT: the words in $tmp/got are those in $tmp/want
same() { grep . "$tmp/got" | sort -u >"$tmp/got.sorted"; if cmp -s "$tmp/got.sorted" "$tmp/want"; then ok; else bad "$1: $(diff "$tmp/want" "$tmp/got.sorted" | head -n 4 | tr '\n' ' ')"; fi; }
touch "$tmp/x.gguf"
mkdir "$tmp/folder"
in_bash() { PATH="$here:$PATH" bash --norc -c '. packaging/moe.bash; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _moe 2>/dev/null; printf "%s\n" "${COMPREPLY[@]}"' bash "$@" >"$tmp/got"; }
# zsh's own functions are stood in for: each prints what it was given
in_zsh() {
    PATH="$here:$PATH" zsh -f -c '
        _describe() { [[ $1 != -o ]] || shift; local n=$2; print -l -- ${${(P)n}%%:*} }
        _files() { print files $* }
        compadd() { print -l -- ${(P)2} }
        _moe() { '"$(cat packaging/_moe)"'
        }
        words=("$@") CURRENT=$#; _moe' zsh "$@" >"$tmp/got" 2>"$tmp/err"
}
for shell in bash zsh; do
    if ! command -v $shell >/dev/null; then
        skip "no $shell: completion"
        continue
    fi
    for p in $programs; do
        while read -r c; do
            case $c in
            moe-run) options moe-run run ;;       # the verb that may be left out
            *) options $c ;;
            esac >"$tmp/want"
            in_$shell $c --
            [ $shell = zsh ] || sed -i '/^--/!d' "$tmp/want"
            same "$shell: $c --"
        done <"$tmp/$p.commands"
    done
    for p in moe-run moe-bench; do
        verbs "$here/$p" | sort -u >"$tmp/want"
        in_$shell $p ""
        sed -i '/^files/d;/[^a-z]/d' "$tmp/got"
        if [ "$(sort -u "$tmp/got" | comm -13 - "$tmp/want")" = "" ] && [ -s "$tmp/want" ]; then ok; else bad "$shell: verbs of $p"; fi
    done
    for c in "moe-run -m" "moe-run pull" "moe-run chat --model"; do
        in_$shell $c gpt
        if grep -qx gpt-oss-20b-MXFP4 "$tmp/got"; then ok; else bad "$shell: $c gpt: no name"; fi
    done
    in_$shell moe-run --threads ""
    if [ -z "$(cat "$tmp/got")" ]; then ok; else bad "$shell: --threads takes a number"; fi
    in_$shell moe-run pull x --dir "$tmp/"
    if grep -q "folder\|files -/" "$tmp/got" && ! grep -q gguf "$tmp/got"; then ok; else bad "$shell: --dir takes a folder"; fi
    in_$shell moe-run inspect "$tmp/"
    if grep -q "x.gguf\|^files" "$tmp/got"; then ok; else bad "$shell: a file"; fi
done

# ---- make install
packaging/install.sh "$build" "$tmp/dest" /opt/moe >"$tmp/out" 2>"$tmp/err"
holds() { if [ -e "$tmp/$1" ]; then ok; else bad "not installed: $1"; fi; }
for f in bin/moe-run bin/moe-bench bin/moe-quant bin/moe-serve share/man/man1/moe-serve.1 share/man/man1/moe-run.1 share/man/man1/moe-bench.1 \
    share/man/man1/moe-quant.1 share/bash-completion/completions/moe-quant share/zsh/site-functions/_moe \
    share/moe/models.txt share/doc/moe/troubleshooting.md; do holds "dest/opt/moe/$f"; done
if cmp -s packaging/moe.bash "$tmp/dest/opt/moe/share/bash-completion/completions/moe-bench"; then ok; else bad "completion of moe-bench"; fi
expect 0 "$tmp/dest/opt/moe/share/moe/demo-gptoss-MXFP4.gguf" "$tmp/dest/opt/moe/bin/moe-run" models
expect 0 "gpt-oss" env -C "$tmp" "$tmp/dest/opt/moe/bin/moe-run" -m demo-gptoss -p Hi -n 2
rm -r "$tmp/dest"

# ---- the service: what systemd says of the unit, with a program that is there
if command -v systemd-analyze >/dev/null; then
    sed 's|^ExecStart=@BIN@/moe-serve|ExecStart=/bin/true|' packaging/moe-serve.service >"$tmp/moe-serve.service"
    systemd-analyze verify --man=no "$tmp/moe-serve.service" >"$tmp/out" 2>"$tmp/err"
    if grep -q moe-serve "$tmp/err"; then bad "the unit: $(grep moe-serve "$tmp/err" | head -n 1)"; else ok; fi
else
    skip "no systemd-analyze: the unit"
fi
for line in DynamicUser=yes StateDirectory=moe CacheDirectory=moe ProtectSystem=strict NoNewPrivileges=yes \
    EnvironmentFile=-/etc/default/moe-serve 'ExecStart=@BIN@/moe-serve -m ${MOE_MODEL} $MOE_SERVE_OPTIONS'; do
    if grep -qxF -e "$line" packaging/moe-serve.service; then ok; else bad "the unit: no $line"; fi
done

# ---- the Debian package: unpacked and run; installed, removed and purged in a root of its own.
if ! command -v dpkg-deb >/dev/null; then
    skip "no dpkg-deb: the package"
    finish
    exit
fi
# --path-include: a minimised system leaves man pages out
packages() { dpkg --root="$tmp/root" --force-not-root --force-depends --force-script-chrootless --path-include='/*' --log="$tmp/dpkg.log" "$@"; }
left() { find "$tmp/root" -path "$tmp/root/var/lib/dpkg" -prune -o -type f -print -o -type l -print; }
PATH=$PATH:/usr/sbin:/sbin
deb=$(DEB_COMPRESSION=$(rounds "" -Znone) packaging/make_deb.sh "$build" v1.2-3-gabc "$tmp/deb" 2>"$tmp/said")
if [ "${deb#"$tmp/deb/moe_1.2.3.gabc_"}" != "$deb" ] && [ -s "$deb" ]; then ok; else bad "make_deb.sh: '$deb' $(cat "$tmp/said")"; fi
expect 0 "libc6" dpkg-deb --info "$deb"
case $(ldd "$here/moe-run" | sed -n 's/.*libjansson.* => \(.*\)\/.*/\1/p') in
/lib/* | /lib | /usr/lib/* | /usr/lib) if grep -q libjansson4 "$tmp/out"; then ok; else bad "the package does not depend on libjansson4"; fi ;;
*) # DEPS=dir
    skip "libjansson is no package's: the package cannot depend on it"
    if grep -q "libjansson.*not in its dependencies" "$tmp/said"; then ok; else bad "make_deb.sh says nothing of libjansson: $(cat "$tmp/said")"; fi
    ;;
esac
dpkg-deb --contents "$deb" >"$tmp/out"
if grep -qv ' root/root ' "$tmp/out" || grep -v '^l' "$tmp/out" | grep -q '^....[^r]\|^.......[^r]'; then bad "owners or modes: $(head -n 3 "$tmp/out")"; else ok; fi
dpkg-deb -x "$deb" "$tmp/unpacked"
expect 0 "gpt-oss" env -C "$tmp" "$tmp/unpacked/usr/bin/moe-run" -m demo-gptoss -p Hi -n 2
expect 0 "$tmp/unpacked/usr/share/moe/demo-gptoss-MXFP4.gguf" "$tmp/unpacked/usr/bin/moe-run" pull demo-gptoss
rm -r "$tmp/unpacked"
mkdir -p "$tmp/root/var/lib/dpkg/updates" "$tmp/root/var/lib/dpkg/info"
: >"$tmp/root/var/lib/dpkg/status"
expect 0 "" packages -i "$deb"
holds root/usr/share/man/man1/moe-run.1.gz
expect 0 "stopped" env -C "$tmp" "$tmp/root/usr/bin/moe-run" -p Hi -n 2
holds root/etc/default/moe-serve
if grep -q '^ExecStart=/usr/bin/moe-serve -m' "$tmp/root/usr/lib/systemd/system/moe-serve.service"; then ok; else bad "the installed unit"; fi
mkdir -p "$tmp/root/var/cache/private/moe" "$tmp/root/var/lib/private/moe/models"
touch "$tmp/root/var/cache/private/moe/x" "$tmp/root/var/lib/private/moe/models/x.gguf"
expect 0 "" packages -r moe
expect 0 "" packages -P moe
if [ "$(left)" = "$tmp/root/var/lib/private/moe/models/x.gguf" ]; then ok; else bad "after a purge: $(left)"; fi
rm -r "$tmp/root"

finish
