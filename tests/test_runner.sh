#!/bin/sh
# test_runner.sh - tools/run_tests.sh with programs that pass, fail, hang or leave something behind:
# each ends as a failure that names it, and the next one runs.
set -u
area=runner
build=none
. tests/cli_harness.sh
mkdir -p "$tmp/build/tests"

# program NAME SCRIPT; runs NAME...: through the runner with a limit of 1 s
program() { printf '#!/bin/sh\n%s\n' "$2" >"$tmp/build/tests/$1" && chmod +x "$tmp/build/tests/$1"; }
runs() { TEST_LIMIT=1 TEST_SAN= TEST_LONG= tools/run_tests.sh "$tmp/build" "$@"; }
# gives NAME CODE TEXT LAST: its exit code, a line with TEXT, and the last line
gives() {
    expect "$2" "$3" runs "$1"
    if [ "$(tail -n 1 "$tmp/out")" = "$4" ]; then ok; else bad "$1: '$(tail -n 1 "$tmp/out")' instead of '$4'"; fi
}

program good 'echo "good 3 passed, 0 failed"'
program skips 'echo "skips 1 passed, 0 failed, 2 skipped"'
program fails 'echo "fails 3 passed, 1 failed"; exit 1'
program silent 'exit 0'
program dies 'echo "dies 3 passed, 0 failed"; kill -SEGV $$'
program empty 'echo "empty 0 passed, 0 failed"'
program litters 'echo x >"$TMPDIR/litter"; echo "litters 1 passed, 0 failed"'
# it ends, its child does not, in a group of its own that ignores a polite request
program child 'setsid sh -c "trap \"\" TERM HUP; echo \$\$ >'"$tmp"'/child; sleep 60" & while [ ! -s '"$tmp"'/child ]; do :; done; echo "child 1 passed, 0 failed"'
# neither it nor its child ends, even when asked to
program hangs 'trap "" TERM; echo "about to hang"; setsid sleep 60 & echo $! >'"$tmp"'/child; while :; do sleep 1; done'

gives good 0 "good 3 passed" "3 passed, 0 failed"
gives skips 0 "skips 1 passed" "1 passed, 0 failed, 2 skipped"
gives fails 1 "fails 3 passed, 1 failed" "3 passed, 1 failed"
gives silent 1 "FAIL: silent: exit code 0 and no count of checks" "0 passed, 1 failed"
gives dies 1 "FAIL: dies: exit code 139 and no failure counted" "3 passed, 1 failed"
gives empty 1 "FAIL: empty: it checks nothing" "0 passed, 1 failed"
gives litters 1 "FAIL: litters: left in the folder for temporary files: litter" "1 passed, 1 failed"
gives none 1 "FAIL: none: exit code 127" "0 passed, 1 failed"
# is_gone WHAT: no process with the number in $tmp/child (a zombie has no command)
is_gone() { if grep -qs . "/proc/$(cat "$tmp/child")/cmdline"; then bad "$1: its child still runs"; else ok; fi; }
gives child 1 "FAIL: child: left running: s" "1 passed, 1 failed"
is_gone child
expect 1 "FAIL: hangs: stopped after 1 s" runs hangs good fails skips
equal "four of them" "7 passed, 3 failed, 2 skipped" "$(tail -n 1 "$tmp/out")"
is_gone hangs
if grep -q "about to hang" "$tmp/out"; then ok; else bad "what it printed before is lost"; fi
if [ -z "$(ls -A "$tmp" | grep moe-check)" ]; then ok; else bad "its folder is left"; fi

# stopped from outside: it says what was running, and nothing runs on
rm -f "$tmp/child"
TMPDIR=$tmp TEST_LIMIT=60 tools/run_tests.sh "$tmp/build" hangs >"$tmp/out" 2>"$tmp/err" &
wait_until "the program does not run" test -s "$tmp/child"
kill -TERM $!
wait $!
equal "exit code of a runner that is stopped" 143 $?
said "not done: hangs" "a runner that is stopped"
is_gone "stopped"

finish
