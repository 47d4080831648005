#!/bin/sh
# test_cli_soak.sh BUILD - many clients at once, also aborted and malformed requests: each gets the answer
# that it gets alone, every slot becomes idle, memory does not grow; also on a drive that fails at times.
# SOAK=N: so many requests for each model, and half as many on such a drive, instead of a few hundred;
# for many, under a sanitizer, make SAN_LOOPS=0. SOAK_THREADS=N: of the server's team. Ends with
# "cli_soak N passed, N failed".
set -u
area=cli_soak
. tests/cli_harness.sh
. tests/serve_harness.sh
soaker=$build/tests/soak_client
n=${SOAK:-$(rounds 240 48)}
clients=16
team="--threads ${SOAK_THREADS:-2}"
export ASAN_OPTIONS=detect_leaks=1:quarantine_size_mb=4

memory() { sed -n 's/^VmRSS:[[:space:]]*\([0-9]*\) kB/\1/p' /proc/$pid/status; }
soak() {
    what=$1
    shift
    if said=$(timeout 7200 "$soaker" "$port" "$@" 2>&1); then ok; else bad "$what: $said"; fi
    [ -z "${SOAK:-}" ] || echo "$what: $said"
}

for m in $(if [ "${SOAK:-}" ] || long_check; then echo $qwen; fi) $gptoss; do
    start -m $m --ctx 1024 --prompt-cache 24M --prompt-cache-drive 64M $team
    soak "$m" $((n / 2)) $clients 1
    before=$(memory)
    soak "$m" $((n / 2)) $clients 2
    after=$(memory)
    [ -z "${SOAK:-}" ] || echo "$m: $before kB after the first half, $after kB after the second"
    if [ -z "${SOAK:-}" ] || [ "$after" -le $((before + before / 10 + 8192)) ]; then ok
    else bad "$m: $before kB became $after kB"; fi
    stop
    few="-m $m --ctx 1024 --parallel 4 $team"
    small=$(($(least "$serve" --listen 127.0.0.1:0 $few) + 2))M  # one for the cache
    MOE_FAULT="read-error:200:2:1500,read-short:100:20:200"
    export MOE_FAULT
    start $few --prompt-cache 1M --ram $small
    unset MOE_FAULT
    soak "$m, from a drive that fails" $((n / 2)) $clients 3 may-fail
    stop
done
finish
