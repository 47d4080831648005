# moe.bash - completion of moe-run, moe-bench, moe-quant and moe-serve for bash: verbs, options, files
# and names of models. The programs are asked (--help, models --json), so that nothing here can be
# out of date. Needs nothing but bash.

# What --help of a command says: verbs, before the first empty line; options; what an option takes.
_moe_verbs() { "$@" --help 2>/dev/null </dev/null | sed -n '/^$/q;s/^  \([a-z][a-z]*\)  *[^ ].*/\1/p'; }
_moe_options() {
    "$@" --help 2>/dev/null </dev/null |
        sed -n 's/^  \(-[A-Za-z]\), --\([a-z0-9-]*\).*/\1\n--\2/p;s/^      --\([a-z0-9-]*\).*/--\1/p'
}
_moe_value() {                   # _moe_value OPTION COMMAND...: FILE, DIR, N, ...; empty for a flag
    local option=$1
    shift
    "$@" --help 2>/dev/null </dev/null |
        sed -n "s/^  \(-., \|    \)--\([a-z0-9-]*\) \([A-Z][^ ]*\).*/\1--\2 \3/p" |
        sed -n "s/^\(.*[ ,]\|\)$option\(,.*\|\) \([A-Z][^ ]*\)\$/\3/p" | head -n 1
}
_moe_names() { moe-run models --json 2>/dev/null | sed -n 's/^{"name":"\([^"]*\)".*/\1/p' | tr ' ' -; }

# _moe_add FLAG... WORD: what compgen says; names with blanks stay whole.
_moe_add() {
    local line
    while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen "$@")
}

_moe() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} verb value
    local -a command=("${COMP_WORDS[0]}")
    COMPREPLY=()
    verb=${COMP_WORDS[1]}
    if [ "$COMP_CWORD" -gt 1 ] && _moe_verbs "${command[@]}" | grep -qxF -e "$verb"; then command+=("$verb"); fi
    # the verb that may be left out
    [ "${#command[@]}" -ne 1 ] || ! _moe_verbs "${command[@]}" | grep -qx run || command+=(run)
    value=
    case $prev in -*) value=$(_moe_value "$prev" "${command[@]}") ;; esac
    case $prev:$value in
    -m:FILE | --model:FILE)
        compopt -o filenames 2>/dev/null
        _moe_add -f -- "$cur"
        _moe_add -W "$(_moe_names)" -- "$cur"
        return ;;
    *:FILE | *:TEXT) compopt -o filenames 2>/dev/null; _moe_add -f -- "$cur"; return ;;
    *:DIR) compopt -o filenames 2>/dev/null; _moe_add -d -- "$cur"; return ;;
    *:?*) return ;;
    esac
    case $cur in
    -*) _moe_add -W "$(_moe_options "${command[@]}")" -- "$cur"; return ;;
    esac
    [ "$COMP_CWORD" -ne 1 ] || _moe_add -W "$(_moe_verbs "${COMP_WORDS[0]}")" -- "$cur"
    if [ "${command[1]:-}" = pull ]; then
        _moe_add -W "$(_moe_names)" -- "$cur"
        return
    fi
    compopt -o filenames 2>/dev/null
    _moe_add -f -- "$cur"
}

complete -F _moe moe-run moe-bench moe-quant moe-serve
