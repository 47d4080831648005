#!/bin/sh
# test_packaging.sh BUILD - man pages and completion say what --help says, no more and no less.
set -u
area=packaging
. tests/cli_harness.sh
programs="moe-run moe-bench moe-quant"
here=$(cd "$build" && pwd)

# ---- what --help says

# commands PROGRAM: itself and its verbs, one a line: "moe-bench", "moe-bench cache record"
verbs() { "$@" --help | sed -n '/^$/q;s/^  \([a-z][a-z]*\)  *[^ ].*/\1/p'; }
commands() {
    echo "$1"
    [ "$1" != moe-quant ] || return
    for v in $(verbs "$here/$1"); do
        echo "$1 $v"
        [ "$v" != cache ] || for w in $(verbs "$here/$1" "$v"); do echo "$1 $v $w"; done
    done
}
# options COMMAND...: "--model" and "-m", sorted
options() {
    # shellcheck disable=SC2068
    "$here/$1" $(shift; echo $@) --help | sed -n 's/^  \(-[A-Za-z]\), --\([a-z0-9-]*\).*/\1\n--\2/p;s/^      --\([a-z0-9-]*\).*/--\1/p' | sort -u
}
for p in $programs; do
    commands $p >"$tmp/$p.commands"
    while read -r c; do options $c; done <"$tmp/$p.commands" | sort -u >"$tmp/$p.options"
    if [ "$(grep -c '^--' "$tmp/$p.options")" -gt 8 ]; then ok; else bad "$p --help: hardly any options"; fi
done

# ---- man pages
for p in $programs; do
    page=packaging/$p.1
    sed -n '/^\.TP$/{n;s/\\fB\|\\fR\|\\fI//g;s/\\-/-/g;p;}' $page | grep '^-' |
        sed -n 's/^\(-[A-Za-z]\), \(--[a-z0-9-]*\).*/\1\n\2/p;s/^\(--[a-z0-9-]*\).*/\1/p' | sort -u >"$tmp/page"
    { cat "$tmp/$p.options"; printf '%s\n' -h --help -V --version; } | sort -u >"$tmp/want"
    if cmp -s "$tmp/page" "$tmp/want"; then ok; else bad "$page (tools/gen_man.py $build mends it): $(diff "$tmp/want" "$tmp/page" | tr '\n' ' ')"; fi
    sed '1,/gen_man.py/d' $page | sed -n 's/^\.SS //p' | sed 's/\\-/-/g' >"$tmp/page"
    while read -r c; do
        v=${c#"$p"} v=${v# }
        [ -n "$v" ] && [ "$v" != cache ] || continue
        if grep -qxF -e "$v" "$tmp/page"; then ok; else bad "$page: no verb $v"; fi
    done <"$tmp/$p.commands"
    for word in $(grep '^[a-z]' "$tmp/page" | cut -d ' ' -f 1 | sort -u); do
        if grep -q "^$p $word" "$tmp/$p.commands"; then ok; else bad "$page: verb $word is not in --help"; fi
    done
    if command -v man >/dev/null; then
        man --warnings -l $page >"$tmp/out" 2>"$tmp/err"
        if [ ! -s "$tmp/err" ] && grep -q "SEE ALSO" "$tmp/out"; then ok; else bad "$page: man complains"; fi
    else
        skip "no man: $page"
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
    for p in moe-run moe-bench "moe-bench cache"; do
        verbs "$here/${p%% *}" $(echo "$p" | cut -s -d ' ' -f 2) | sort -u >"$tmp/want"
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

finish
