#!/bin/sh
# check_layers.sh - an #include may point down the list, never up: cli > engine > moe > tiers > cuda
# > loader. Also: file names are unique, below cli/ nothing prints, exits or reads the
# environment, only tiers/thread.c has a timed wait, and documents name files that exist. Prints what
# is wrong and exits 1.
set -u
cd "$(dirname "$0")/.." || exit 1
bad=0
complain() { echo "layers: $*"; bad=1; }

# rank FILE: of its layer, in $rank
rank() {
    case ${1%%/*} in
        loader) rank=1 ;; cuda) rank=2 ;; tiers) rank=3 ;; moe) rank=4 ;; engine) rank=5 ;;
        cli) rank=6 ;; tests) rank=7 ;; *) rank=0 ;;
    esac
}

sources=$(find loader cuda tiers moe engine cli -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh')
includes=$(grep -H '^#include "[^"]*"' $sources | sed 's/^\([^:]*\):#include "\([^"]*\)".*/\1 \2/')
while read -r f inc; do
    rank "$f"
    from=$rank
    rank "$inc"
    [ -e "$inc" ] || complain "$f includes \"$inc\", which does not exist (paths are from the root)"
    [ "$rank" -gt 0 ] || complain "$f includes \"$inc\", which belongs to no layer"
    [ "$rank" -le "$from" ] || complain "$f includes \"$inc\": upward"
done <<END
$includes
END

# names stay unambiguous in a message or a debugger
dup=$(printf '%s\n' $sources | sed 's|.*/||' | sort | uniq -d)
[ -z "$dup" ] || complain "file names used twice:" $dup

calls=$(grep -nE '(^|[^a-z_>.])(printf|puts|exit|_exit|abort|getenv|perror)\(' \
    $(printf '%s\n' $sources | grep -v '^cli/') /dev/null | grep -vE ':[0-9]+: *(/?\*|//)')
[ -z "$calls" ] || complain "only cli/ may print, exit or read the environment:
$calls"

waits=$(grep -n 'pthread_cond_timedwait(' $(printf '%s\n' $sources | grep -v '^tiers/thread\.c$') /dev/null)
[ -z "$waits" ] || complain "timed waits use thread_cond_wait_until, which no step of the wall clock disturbs:
$waits"

# files and folders that documents name, by path or, in backquotes, by name
folders='cli|engine|moe|tiers|cuda|loader|tests|tools|docs|packaging'
names=$(find $(echo $folders | tr '|' ' ') -type f | sed 's|.*/||')
for doc in README.md docs/*.md; do
    for path in $(grep -oE "(^|[^A-Za-z0-9_/*.])($folders)/[A-Za-z0-9_/.*-]*[A-Za-z0-9_*]" "$doc" | sed "s/^[^a-z]//" | sort -u); do
        ls -d $path >/dev/null 2>&1 || complain "$doc names $path, which does not exist"
    done
    for name in $(grep -oE '`[a-z0-9_]+\.(c|h|cu|cuh|sh|py)`' "$doc" | tr -d '`' | sort -u); do
        echo "$names" | grep -qx "$name" || complain "$doc names $name, which does not exist"
    done
done

echo "layers $((1 - bad)) passed, $bad failed"
exit $bad
