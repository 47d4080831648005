#!/bin/sh
# check_words.sh - no tracked source, script or document has a word of tools/words.txt, except where
# that file allows it. Skips docs/history/ and tests/golden/. Prints FILE:LINE:WORD for each and exits
# 1.
set -u
cd "$(dirname "$0")/.." || exit 1
list=tools/words.txt
# Words end where a tab or two spaces are; phrases have single spaces.
words=$(sed -e '/^[#!]/d' -e '/^$/d' -e 's/\(	\|  \).*//' "$list")
any=$(echo "$words" | sed 's/ /[[:space:]]+/g' | paste -sd '|' -)
git ls-files -- '*.c' '*.h' '*.cu' '*.cuh' '*.js' '*.css' '*.html' '*.sh' '*.py' '*.md' '*Makefile' \
                ':!docs/history' ':!tests/golden' |
LC_ALL=C xargs grep -HniE "(^|[^a-zA-Z0-9])($any)([^a-zA-Z0-9]|\$)" /dev/null |
LC_ALL=C WORDS=$words awk -v list="$list" '
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
        else { print where word[i]; bad = 1 }
    }
}
END {
    for (entry in allowed)
        if (!(entry in used)) { print list ": ! " entry " allows nothing"; bad = 1 }
    exit bad
}'
