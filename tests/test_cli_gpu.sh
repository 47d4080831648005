#!/bin/sh
# test_cli_gpu.sh BUILD [PART] - moe-run and moe-bench on a GPU: budgets of VRAM from too little to all,
# the plan against what a run then reports, post-fetch by its variables, the file of measured
# speeds, and faults of the GPU, of page-locking and of the drive. Ends with "cli_gpu N
# passed, N failed"; without a GPU, or a build for one, with one skip.
#
# Prompts have up to eight tokens and draws are greedy: then the same tokens are promised for every
# budget on one processor (docs/numerics.md). Budgets are asked of moe-run plan.
#
# Each point of tiers/fault_injection.h is armed by a test:
#   read-error, read-short, read-end, direct, io-uring   test_reader.c, test_cli_memory.sh; here with a GPU
#   page-lock   here, and test_expert_store.c with a GPU
#   vram        here (weights), gpu-lost  here (with all experts in VRAM, and with some)
set -u
# Parts, which may run at the same time: either demo model, one with a layer without experts, one
# whose layers norm what they add, and the speeds. sim: the programs of BUILD/sim, which have a
# simulated GPU, and the models that are quick there.
area=cli_gpu${2:+_$2}
case ${2:-} in
'') parts="qwen3next gptoss glm4moe gemma4 speeds" ;;
sim) parts="qwen3next glm4moe gemma4"; set -- "$1/sim" ;;
*) parts=$2 ;;
esac
. tests/cli_harness.sh
if "$run" --version | grep -q "no GPU"; then
    skip "no GPU"
    finish
    exit
fi
unset MOE_DEVICE
slow="timeout 600"                 # a hang is a failure, and the next check goes on

# answer NAME ARGUMENTS...: exit code 0, the answer in $tmp/NAME
answer() {
    name=$1
    shift
    $slow "$run" $ask "$@" >"$tmp/$name" 2>"$tmp/err" </dev/null
    equal "exit code of $ask $*" 0 $?
}
# same NAME WANTED WHAT: not empty, and the same bytes
same() {
    if [ -s "$tmp/$1" ] && cmp -s "$tmp/$1" "$tmp/$2"; then ok
    else bad "$3: expected '$(head -c 200 "$tmp/$2")', got '$(head -c 200 "$tmp/$1")'"; fi
}
# fails TEXT ARGUMENTS...: exit code 1, one error line, which holds TEXT
fails() {
    text=$1
    shift
    $slow "$run" $ask "$@" >"$tmp/out" 2>"$tmp/err" </dev/null
    equal "exit code of $ask $*" 1 $?
    equal "error lines of $ask $*" 1 "$(grep -c '^moe-run: error: ' "$tmp/err")"
    if grep '^moe-run: error: ' "$tmp/err" | grep -qF -e "$text"; then ok
    else bad "$ask $*: expected an error with '$text'"; fi
}

# row N NAME: a number of the Nth row of the last moe-bench tiers --json
row() {
    read -r text <"$tmp/out"
    for i in $(seq "$1"); do text=${text#*'{"vram_budget":'}; done
    json_number "$2" "${text%%'{"vram_budget":'*}"
}
whole() { printf '%.0f' "$1"; }          # 1.5e3 as 1500
# moved N NAME: a number of bytes a token, which may be written with a point or an exponent
moved() {
    whole "$(sed 's/{"vram_budget":/\
&/g' "$tmp/out" | sed -n "$(($1 + 1))p" | sed -n 's/.*"'"$2"'":\([0-9.eE+]*\).*/\1/p')"
}

on_gpu() { case $1 in *'"gpu":true'*) true ;; *) false ;; esac; }
half_there() { on_gpu "$1" && [ $((2 * $(json_number vram.experts "$1"))) -ge "$experts" ]; }
fetches() { on_gpu "$1" && [ "$(json_number vram.post_fetch "$1")" -gt 0 ] && [ "$(json_number vram.experts "$1")" -lt "$experts" ]; }

# ---- what there is
expect 0 "GPU 0: " $run --version
expect 0 "sm_" $bench machine --threads 2 --seconds 0.002 --buffer 4M
gpu=$("$run" plan --json | sed 's/.*"gpu_name":"\([^"]*\)".*/\1/')
if [ "$gpu" ]; then ok; else bad "plan --json: expected a gpu_name"; fi
# a run on the CPU does not wait for a driver
if [ "${build%/sim}" != "$build" ]; then
    export SIM_GPU_UNASKED=1
    expect 3 "gpu_count is called" $run -m $qwen -p Hello -n 1
    expect 0 "" $run -m $qwen -p Hello -n 1 --device cpu
    expect 0 "" $run plan -m $qwen --device cpu
    expect 0 "" $bench decode -m $qwen -p 4 -n 1 -r 1 --device cpu
    unset SIM_GPU_UNASKED
fi

# a smaller card on this one; some builds and drivers have none
small="$slow $bench decode -m $qwen -p 9 -n 3 -r 1 --device cuda --sms"
case $parts in *qwen3next*)
    $small 4 >"$tmp/out" 2>"$tmp/err"
    code=$?
    if ! grep -q "cannot divide it\|cannot be set apart" "$tmp/err"; then
        equal "exit code of $small 4" 0 $code
        if grep -qF " (4 multiprocessors)" "$tmp/out"; then ok       # by its name its speeds are kept
        else bad "$small 4: expected its multiprocessors after the name"; fi
        expect 0 '"sms":' $small 4 --json
        # readers need slices of time that other programs may have just now
        $small 4 --bandwidth-share 50 >"$tmp/out" 2>"$tmp/err"
        code=$?
        if grep -q "other programs use the GPU\|not limited all the time" "$tmp/err"; then
            skip "a smaller card: the GPU is busy"
        else
            equal "exit code of $small 4 --bandwidth-share 50" 0 $code
            if grep -q "^limit " "$tmp/out"; then ok; else bad "$small 4: expected a limit"; fi
        fi
        refuse 1 "none is left to read" $small 100000 --bandwidth-share 50
        # the simulated one has no times to show
        [ "${build%/sim}" != "$build" ] || expect 0 "of limit" $small 4 --profile
    else
        skip "a smaller card: $(head -n 1 "$tmp/err")"
    fi
    refuse 2 "needs --device cuda" $bench decode -m $qwen -p 4 -n 1 -r 1 --sms 4
    refuse 2 "needs --device cuda" $bench decode -m $qwen -p 4 -n 1 -r 1 --device cpu --sms 4
    refuse 2 "cannot be used with --bandwidth-share" $small 4 --bandwidth-share 50 --profile
    refuse 2 "needs --sms" $bench decode -m $qwen --bandwidth-share 50 ;;
esac

# with MODEL: what is asked of it; how much VRAM takes all of it, and how much leaves something to
# post-fetch
with() {
    m=$1 model="-m $1 --ctx $(rounds 256 128)"
    ask="$model --raw -p Hello -n $(rounds 24 16) --temp 0"
    json=$("$run" plan --json $model --device cuda)
    all=$(json_number vram.total "$json")
    experts=$(json_number vram.experts "$json")
    [ "${build%/sim}" = "$build" ] || long_check || [ ! -s "${TEST_SPEEDS:-}" ] ||
        case $json in *'"measured":true'*) ok ;; *) bad "$m: its speeds are not in TEST_SPEEDS" ;; esac
    equal "$m: bytes on the drive with no bound" 0 "$(json_number drive_experts "$json")"
    grain=$((all / $(rounds 64 16)))    # every question starts the GPU's driver
    fetch=$(least_budget --vram "$all" $grain fetches $model)
}

prepare() {
    # ---- budgets: all, half of the experts, enough for post-fetch, the least; and in RAM
    least=$(least_budget --vram "$all" $grain on_gpu $model)
    half=$(least_budget --vram "$all" $grain half_there $model)
    in_ram=$(plan_number ram.total $model --device cuda --vram "$least")
    # half-way between what has to be in RAM and all experts there: the program itself takes a
    # little more or less each time
    drive=$(least_budget --ram "$in_ram" $((in_ram / 256)) on_gpu $model --device cuda --vram "$least")
    drive=$(((drive + in_ram) / 2))
    at_least "$m --vram $least --ram $drive: bytes on the drive" 1 \
        "$(plan_number drive_experts $model --device cuda --vram "$least" --ram $drive)"
    at_least "$m: VRAM for half of the experts" "$least" "$half"
    at_least "$m: VRAM for all" "$half" "$all"

    # ---- the answer, by either processor
    answer cpu --device cpu
    answer all --device cuda
    said "$gpu" "$m --device cuda"
    answer now --vram "$fetch"           # measures
    same now all "$m --vram $fetch"
}

# ---- answers: the same tokens for every budget
budgets() {
    answer auto
    same auto all "$m: --device auto"
    said "$gpu" "$m --device auto"
    for v in $(rounds "$all $fetch" "") $((all - 1)) "$half" "$least"; do
        answer now --vram "$v"
        said "$gpu" "$m --vram $v"
        same now all "$m --vram $v"
    done
    answer now --vram "$half" --deterministic --device cuda
    same now all "$m --vram $half --deterministic"
    answer now --vram "$least" --ram "$drive" --device cuda
    same now all "$m: experts on the drive, with a GPU"
    answer now --vram "$fetch" --threads 1
    same now all "$m --threads 1"
    for v in $(rounds 0 "") $((least - grain - 1)); do   # too little for what every token needs
        answer now --vram "$v"
        said "CPU only" "$m --vram $v"
        same now cpu "$m --vram $v"
        fails "VRAM" --vram "$v" --device cuda
    done

    # conversations at once draw what each draws alone
    expect 0 '"sessions":9,' $slow $bench batch -m $m -s 9 -p 4 -n 4 -r 1 --vram "$half" --json

    # ---- the plan against what moe-bench tiers reports for the same budgets
    list="none,$least,$half,all"
    expect 0 '"same_tokens":true' $slow $bench tiers $model -p 4 -n 12 -r 1 --vram $list --json
    equal "$m tiers: rows that were done" 4 "$(grep -o '"error":null' "$tmp/out" | wc -l)"
    cp "$tmp/out" "$tmp/rows"
    token=$(moved 4 vram_bytes_per_token)
    equal "$m tiers: experts in VRAM, row none" 0 "$(row 1 vram.experts)"
    equal "$m tiers: experts in VRAM, row all" "$experts" "$(row 4 vram.experts)"
    equal "$m tiers: bytes a token on the CPU, row all" 0 "$(moved 4 cpu_bytes_per_token)"
    equal "$m tiers: bytes a token over the bus, row all" 0 "$(moved 4 bus_bytes_per_token)"
    equal "$m tiers: bytes a token in VRAM, row none" 0 "$(moved 1 vram_bytes_per_token)"
    for i in 1 2 3; do                   # every byte is read somewhere; what came late, twice
        at_least "$m tiers: bytes a token, row $i" $((token - 4)) $(($(moved $i vram_bytes_per_token) +
            $(moved $i cpu_bytes_per_token) + $(moved $i bus_bytes_per_token)))
        [ "$(row $i vram.post_fetch)" -gt 0 ] || equal "$m tiers: pad, row $i" 0 "$(row $i postfetch_bytes)"
    done
    i=2
    for v in $least $half $all; do
        json=$("$run" plan --json $model --device cuda --vram $v)
        for n in vram.total vram.dense vram.context vram.work vram.experts vram.streaming vram.post_fetch \
                 vram.layers_whole vram.experts_of_next_layer vram.dense_layers ram.experts ram.other drive_experts chunk; do
            equal "$m tiers row $i, $n" "$(json_number $n "$json")" "$(row $i $n)"
        done
        at_least "$m tiers row $i: VRAM within its budget of $v" "$(row $i vram.total)" "$v"
        i=$((i + 1))
    done
}

options() {
    # ---- a bound for experts alone: the same answer, and no more of them in VRAM than it says
    third=$((experts / 3))
    for f in --cpu-moe "--expert-cache 0" "--moe-hot-cache-max-mib 0"; do
        equal "$m $f: experts in VRAM" 0 "$(plan_number vram.experts $model --device cuda $f)"
    done
    for f in "--expert-cache $third" "--cpu-moe --expert-cache $third"; do
        n=$(plan_number vram.experts $model --device cuda $f)
        at_least "$m $f: experts in VRAM" "$n" "$third"
        at_least "$m $f: most of that" $((third / 2)) "$n"
    done
    for f in --cpu-moe "--cpu-moe --expert-cache $third"; do
        answer now $f
        same now all "$m $f"
    done
    for f in "--expert-cache auto" "--moe-hot-cache-max-mib -1 --cpu-moe"; do
        equal "$m $f: experts in VRAM" "$experts" "$(plan_number vram.experts $model --device cuda $f)"
    done

    # ---- another number of experts: the same answer in every budget, and what it costs is said
    for n in $(rounds "2 7" 7); do
        answer other --experts-used $n
        said "--experts-used $n (the model's number: 4): KL 0." "$m"
        for v in "$half" $(rounds "$fetch" ""); do       # the least is for the model's own number
            answer now --experts-used $n --vram "$v"
            same now other "$m --experts-used $n --vram $v"
        done
    done

    # ---- a choice that looks at what is in VRAM: what it costs is said, or that it has no effect
    cached="--expert-cache $((experts / 2))"
    answer now --skip-missing $cached
    said "--skip-missing: KL " "$m $cached"
    answer now --skip-missing
    same now all "$m --skip-missing, all in VRAM"
    said " no effect: all experts are in VRAM" "$m --skip-missing"

    # ---- post-fetch by its variables, under one name and the other in turn
    p=MOE
    for list in ENABLE=0 "ENABLE=1 FORCE_CPU=1 DEBUG=1" "ENABLE=auto BLOCK_ON_MISS=1 SCRATCHPAD_MB=1" \
                "MAX_TRANSFERS=1 DEDICATED_STREAMS=0 USE_DEDICATED_STREAMS=0 CPU_LIMIT=2"; do
        if [ $p = MOE ]; then p=LLAMA; else p=MOE; fi
        for e in $list; do export "${p}_POSTFETCH_$e"; done
        answer now --vram "$fetch"
        same now all "$m: ${p}_POSTFETCH_ $list"
        for e in $list; do unset "${p}_POSTFETCH_${e%%=*}"; done
    done
    refuse 2 "${p}_POSTFETCH_MAX_TRANSFERS" env ${p}_POSTFETCH_MAX_TRANSFERS=x $run $ask
    expect 0 '"error":null' env ${p}_POSTFETCH_ENABLE=0 $slow $bench tiers $model -p 4 -n 12 -r 1 --vram none --json
    equal "$m ${p}_POSTFETCH_ENABLE=0: pad" 0 "$(row 1 postfetch_bytes)"
    equal "$m ${p}_POSTFETCH_ENABLE=0: bytes over the bus" 0 "$(moved 1 bus_bytes_per_token)"
    expect 0 '"postfetch_on":true' env ${p}_POSTFETCH_ENABLE=1 $slow $bench tiers $model -p 4 -n 12 -r 1 --vram none --json
    at_least "$m ${p}_POSTFETCH_ENABLE=1: pad" 1 "$(row 1 postfetch_bytes)"
    at_least "$m ${p}_POSTFETCH_ENABLE=1: bytes over the bus" 1 "$(moved 1 bus_bytes_per_token)"
    expect 0 '"postfetch_on":false' env MOE_POSTFETCH_ENABLE=0 LLAMA_POSTFETCH_ENABLE=1 \
        $slow $bench tiers $model -p 4 -n 12 -r 1 --vram none --json
}

faults() {
    # ---- faults. Speeds are known by now: a fault hits the run, not a measurement.
    export MOE_FAULT=vram:0:1            # VRAM that the plan counted on is gone
    answer now
    said "planning again with less" "$m: $MOE_FAULT"
    equal "$m $MOE_FAULT: times planned again" 1 "$(grep -c 'planning again' "$tmp/err")"
    if cmp -s "$tmp/now" "$tmp/all" || cmp -s "$tmp/now" "$tmp/cpu"; then ok
    else bad "$m $MOE_FAULT: neither the GPU's answer nor the CPU's: $(head -c 200 "$tmp/now")"; fi
    expect 0 '"error":null' $slow $bench tiers $model -p 4 -n 4 -r 1 --vram all --json
    export MOE_FAULT=vram
    answer now
    same now cpu "$m $MOE_FAULT: it ends on the CPU"
    at_least "$m $MOE_FAULT: times planned again" 1 "$(grep -c 'planning again' "$tmp/err")"
    fails "no room for the weights" --device cuda
    if [ -s "$tmp/out" ]; then bad "$m $MOE_FAULT: expected no answer, got '$(head -c 200 "$tmp/out")'"; else ok; fi
    for v in "$fetch gpu-lost" "$all gpu-lost:4:1"; do
        export MOE_FAULT=${v#* }
        fails "the GPU stopped" --vram "${v% *}"
    done
    # in a chat the message fails, and so does the end
    printf 'Hi\nHo\n' | MOE_FAULT=gpu-lost $slow "$run" chat $model -n 4 --vram "$half" >"$tmp/out" 2>"$tmp/err"
    equal "$m: exit code of a chat without its GPU" 1 $?
    said "moe-run: error: the GPU stopped" "$m: a chat without its GPU"
    for f in page-lock page-lock:1; do   # the table of addresses; the experts themselves
        export MOE_FAULT=$f
        answer now --vram "$fetch"
        said "the system refuses more" "$m: $f"
        same now all "$m: $f"
    done
    few="--vram $least --ram $drive --device cuda"
    for f in io-uring,direct:"reading with threads" read-short:; do
        export MOE_FAULT="${f%%:*}"
        answer now $few
        said "${f#*:}" "$m: $MOE_FAULT with a GPU"
        same now all "$m: $MOE_FAULT with a GPU"
    done
    export MOE_FAULT=read-error:5        # a single one may be of a read that no thread waits for
    fails "cannot read at byte" $few
    export MOE_FAULT=read-end:5
    fails "was it cut while in use?" $few
    unset MOE_FAULT

    # ---- a file that is cut while a chat uses it: nothing of it may be needed any more; if it is,
    # one line says so
    answered() { [ "$(wc -l <"$tmp/out")" -gt 0 ]; }
    cp $m "$tmp/cut.gguf"
    : >"$tmp/out"
    {
        printf 'Hi\n'
        wait_until "there is no answer" answered
        truncate -s 4096 "$tmp/cut.gguf"
        printf 'Ho\n'
    } | $slow "$run" chat -m "$tmp/cut.gguf" --ctx 256 -n 4 >"$tmp/out" 2>"$tmp/err"
    code=$?
    if [ $code -eq 0 ] || { [ $code -eq 1 ] && grep -q "it was changed while in use" "$tmp/err"; }; then ok
    else bad "$m cut while in use: expected exit code 0, or 1 and a line, got $code"; fi
    rm "$tmp/cut.gguf"
}

# at_once FUNCTION...: all at the same time, each in a folder of its own that begins as $tmp
at_once() {
    for f in "$@"; do
        mkdir "$tmp/$f"
        cp -r "$tmp/all" "$tmp/cpu" "$tmp/err" "$tmp/cache" "$tmp/$f"
        (
            tmp=$tmp/$f passed=0 failed=0
            export XDG_CACHE_HOME="$tmp/cache"
            $f
            echo "$passed $failed" >"$tmp/counts"
        ) >"$tmp/$f/log" 2>&1 &
    done
    wait
    for f in "$@"; do
        cat "$tmp/$f/log"
        if read -r p f_bad <"$tmp/$f/counts"; then passed=$((passed + p)) failed=$((failed + f_bad))
        else bad "$m: $f: it did not end"; fi
        rm -r "${tmp:?}/$f"
    done
}

# ---- small models of other families: the same tokens wherever experts are
# small FAMILY N: N of its two layers have experts
small() {
    "${build%/sim}/tests/small_model" "$1" "$tmp/$1.gguf"
    with "$tmp/$1.gguf"
    answer all --device cuda
    said "with $2 of $2 layers' experts" "$m --device cuda"
    for v in $((all - 1)) $(! long_check || least_budget --vram "$all" $grain half_there $model) "$fetch"; do
        answer now --vram "$v"
        said "$gpu" "$m --vram $v"
        same now all "$m --vram $v"
    done
    expect 0 '"same_tokens":true' $slow $bench tiers $model -p 4 -n 12 -r 1 --vram "$fetch,all" --json
}

# Each question starts the GPU's driver, so without LONG=1 a model has its budgets and one of the
# other two; the simulated GPU has one demo model, and both.
both="options faults"
for part in $parts; do
    case $part in
    qwen3next) with $qwen; more=options; [ "${build%/sim}" = "$build" ] || more=$both ;;
    glm4moe) small glm4moe 1; continue ;;
    gemma4) small gemma4 2; continue ;;
    gptoss) with $gptoss; more=faults ;;
    *) continue ;;
    esac
    prepare
    at_once budgets $(rounds "$both" "$more")
done

case $parts in *speeds*) ;; *) finish; exit ;; esac

# ---- the file of measured speeds: whatever it holds, the answer is the same, and afterwards it is
# this machine's
kept=$XDG_CACHE_HOME/moe/speeds.json
speeds_count() { grep -c '"processor"' "$kept" 2>/dev/null; }
is_measured() { "$run" plan $model --vram "$fetch" --json 2>/dev/null | grep -c '"measured":true'; }
look_again() {                           # WHAT
    answer now --vram "$fetch"
    same now all "speeds: $1"
    equal "speeds: $1: error lines" 0 "$(grep -c error "$tmp/err")"
    if grep -q "assumed" "$tmp/err"; then bad "speeds: $1: expected measured ones, said assumed"; else ok; fi
    equal "speeds: $1: measured now" 1 "$(is_measured)"
}
with $gptoss
answer all --device cuda
answer now --vram "$fetch"
cp "$kept" "$tmp/good"
rm -r "$XDG_CACHE_HOME"
equal "speeds: none: measured" 0 "$(is_measured)"
look_again "a missing file"
# test_speeds.c reads more damaged files than these; here each is measured anew, by all threads
for text in $(rounds 'no-JSON {"speeds":[7,null,{}]}' ''); do
    printf '%s' "$text" >"$kept"
    look_again "'$text'"
done
head -c $(($(wc -c <"$tmp/good") / 2)) "$tmp/good" >"$kept"
look_again "half a file"
if long_check; then
    sed 's/"vram_read": [0-9.e+]*/"vram_read": -1/; s/"cpu": [0-9.e+]*/"cpu": "fast"/' "$tmp/good" >"$kept"
    look_again "figures that are none"
fi
sed 's/"gpu": "[^"]*"/"gpu": "Another One"/' "$tmp/good" >"$kept"
n=$(speeds_count)
equal "speeds: of another GPU: measured" 0 "$(is_measured)"
look_again "of another GPU"
equal "speeds: of another GPU: entries" $((n + 1)) "$(speeds_count)"
# a library that wins everywhere: its scratch is larger than all that these models need
sed 's/"gemm_vendor_\([0-9]*\)": [0-9.e+]*/"gemm_vendor_\1": 1e18/g' "$tmp/good" >"$kept"
answer now --vram "$all"
same now all "speeds: a fast library, --vram $all"
said "$gpu" "speeds: a fast library, --vram $all"
cp "$tmp/good" "$kept"
for x in /proc/none relative; do             # where nothing can be kept
    XDG_CACHE_HOME=$x answer now --vram "$fetch"
    same now all "XDG_CACHE_HOME=$x"
    equal "XDG_CACHE_HOME=$x: error lines" 0 "$(grep -c error "$tmp/err")"
done
if [ ! -e relative ]; then ok; else bad "XDG_CACHE_HOME=relative: something was written here"; fi

# ---- moe-bench on a GPU
for m in $qwen $gptoss; do
    expect 0 '"decode"' $slow $bench decode -m $m -p 9 -n 3 -r 1 --device cuda --json
    printf '1 2 3\n\n[4,5]\n' >"$tmp/ids"
    expect 0 "" $slow $bench logits -m $m --ids "$tmp/ids" -o "$tmp/all.f32" --device cuda
    equal "$m: bytes of five rows of logits" $((5 * 4096 * 4)) "$(wc -c <"$tmp/all.f32")"
done
expect 0 "post-fetch" $slow $bench tiers -m $gptoss --ctx 64 -p 4 -n 4 -r 1 --postfetch both
finish
