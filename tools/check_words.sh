#!/bin/sh
# check_words.sh - no source, script or document has a word of tools/words.txt, except where that file
# allows it. Skips docs/history/ and tests/golden/. Prints FILE:LINE:WORD for each, then
# "words N passed, M failed", of files.
set -u
cd "$(dirname "$0")/.." || exit 1
list=tools/words.txt
# Words end where a tab or two spaces are; phrases have single spaces.
words=$(sed -e '/^[#!]/d' -e '/^$/d' -e 's/\(	\|  \).*//' "$list")
any=$(echo "$words" | sed 's/ /[[:space:]]+/g' | paste -sd '|' -)
files=$(find Makefile README.md cli cuda docs engine loader moe packaging tests tiers tools \
             -path docs/history -prune -o -path tests/golden -prune -o -type f \
             \( -name Makefile -o -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.sh' -o -name '*.py' \
                -o -name '*.md' -o -name '*.js' -o -name '*.css' -o -name '*.html' \) -print)
echo "$files" | LC_ALL=C xargs grep -HniE "(^|[^a-zA-Z0-9])($any)([^a-zA-Z0-9]|\$)" /dev/null |
LC_ALL=C WORDS=$words awk -v list="$list" -v n_file="$(echo "$files" | wc -l)" '
BEGIN {
    n = split(ENVIRON["WORDS"], word, "\n")
    while ((getline line < list) > 0)
        if (line ~ /^! /) {
            split(line, part, " ")
            phrase = substr(line, length(part[1] part[2]) + 3)
            allowed[part[2] ":" phrase] = 1
        }
}
{
    match($0, /^[^:]*:[0-9]+:/)
    where = substr($0, 1, RLENGTH)
    file = substr(where, 1, index(where, ":") - 1)
    text = " " tolower(substr($0, RLENGTH + 1)) " "
    gsub(/[[:space:]]+/, " ", text)
    for (i = 1; i <= n; i++) {
        if (!index(text, word[i])) continue
        if (text !~ "[^a-z0-9]" word[i] "[^a-z0-9]") continue
        if ((file ":" word[i]) in allowed) used[file ":" word[i]] = 1
        else { print where word[i]; bad[file] = 1 }
    }
}
END {
    for (entry in allowed)
        if (!(entry in used)) { print list ": ! " entry " allows nothing"; bad[list] = 1 }
    n_bad = length(bad)
    print "words " n_file - n_bad " passed, " n_bad " failed"
    exit n_bad > 0
}'
