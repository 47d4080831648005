/* test_command_lines.c - what the programs say to a command line: one row for each, exit code
 * and words. A row runs main() in a child that has the files of make_files() in its folder, no
 * GPU, and a cache with speeds alone. A code other than 0 also means: nothing on stdout, and one
 * line on stderr that is an error. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/test.h"

int run_main(int argc, char **argv);
int bench_main(int argc, char **argv);
int quant_main(int argc, char **argv);
#define main run_main
#define ops_table run_verbs
#include "cli/moe_run.c"
#undef main
#undef ops_table
#define main bench_main
#define ops_table bench_verbs
#include "cli/moe_bench.c"
#undef main
#undef ops_table
#define main quant_main
#include "cli/moe_quant.c"
#undef main

/* Words are split at spaces but within '...'; NAME=VALUE before the program sets a variable. */
static const struct { int code; const char *says, *words;
} rows[] = {
    /* help and usage */
    {0, "Usage: ", "run --help"},
    {0, "GPU support", "run --version"},
    {2, "no verb", "run"},
    {2, "unknown verb 'nonsense'", "run nonsense"},
    {0, "Usage: ", "bench --help"},
    {0, "GPU support", "bench --version"},
    {2, "no verb", "bench"},
    {2, "unknown verb 'nonsense'", "bench nonsense"},
    {0, "Usage: moe-run inspect", "run inspect --help"},
    {0, "Usage: moe-run tokenize", "run tokenize --help"},
    {0, "Usage: moe-run render", "run render --help"},
    {0, "Usage: moe-run models", "run models --help"},
    {0, "Usage: moe-run chat", "run chat --help"},
    {0, "Usage: moe-bench synth", "bench synth --help"},
    {0, "Usage: moe-bench decode", "bench decode --help"},
    {0, "Usage: moe-bench tiers", "bench tiers --help"},
    {0, "Usage: moe-bench logits", "bench logits --help"},
    {0, "Usage: moe-bench kernels", "bench kernels --help"},
    {0, "Usage: moe-bench gemm", "bench gemm --help"},
    {0, "Usage: moe-bench machine", "bench machine --help"},
    {2, "unknown option --frobnicate", "run inspect --frobnicate qwen.gguf"},
    {2, "FILE missing", "run inspect"},
    {2, "unexpected argument", "run inspect qwen.gguf gptoss.gguf"},
    /* inspect */
    {0, "qwen3next", "run inspect qwen.gguf"},
    {0, "gpt-oss", "run inspect gptoss.gguf"},
    {0, "blk.3.attn_q.weight", "run inspect --tensors qwen.gguf"},
    {0, "\"architecture\"", "run inspect --json gptoss.gguf"},
    {0, "qwen2", "run inspect golden/tokenizer/qwen3-vocab.gguf"},
    {0, "layers              4 (2 windowed, 2 full attention)", "run inspect gptoss.gguf"},
    {1, "none.gguf: cannot open: No such file or directory", "run inspect none.gguf"},
    {1, "page.gguf: not a GGUF file", "run inspect page.gguf"},
    {1, "head.gguf: ", "run inspect head.gguf"},
    {1, "file truncated?", "run inspect cut.gguf"},
    {1, "empty", "run inspect empty.gguf"},
    {1, "truncated", "run inspect five.gguf"},
    {1, "not a GGUF file", "run inspect --json page.gguf"},
    /* tokenize */
    {2, "-m FILE", "run tokenize"},
    {1, "cannot open", "run tokenize -m none.gguf"},
    /* render */
    {0, "<|im_start|>user", "run render -m qwen.gguf req.json"},
    {0, "<|start|>assistant", "run render -m gptoss.gguf req.json"},
    {0, "{\"x\": 0.1, \"y\": [1e-05, 2]}", "run render -m qwen.gguf call.json"},
    {0, "functions.f to=assistant", "run render -m gptoss.gguf call.json"},
    {1, "half.json", "run render -m qwen.gguf half.json"},
    {1, "bare.json: messages[0].role: it is missing", "run render -m qwen.gguf bare.json"},
    {2, "--reasoning: 'some' is none of", "run render qwen.gguf req.json --reasoning some"},
    /* models */
    {0, "gpt-oss-20b", "run models"},
    {0, "\"name\"", "run models --json"},
    /* synth */
    {2, "gpt-oss-20b", "bench synth nonsense -o x.gguf"},
    {2, "Q4_K", "bench synth gpt-oss-20b --experts Q4_K -o x.gguf"},
    {1, "none/x.gguf", "bench synth gpt-oss-20b --layers 1 -o none/x.gguf"},
    /* decode */
    {2, "each larger than the one before", "bench decode -m tiny.gguf -p -1"},
    {2, "each larger than the one before", "bench decode -m tiny.gguf -p x"},
    {2, "each larger than the one before", "bench decode -m tiny.gguf -p ''"},
    {2, "each larger than the one before", "bench decode -m tiny.gguf -p 9,"},
    {2, "each larger than the one before", "bench decode -m tiny.gguf -p 9,,33"},
    {2, "each larger than the one before", "bench decode -m tiny.gguf -p 33,9"},
    {2, "each larger than the one before", "bench decode -m tiny.gguf -p 9,9"},
    {2, "each larger than the one before", "bench decode -m tiny.gguf -p 99999999999"},
    {2, "each larger than the one before",
     "bench decode -m tiny.gguf -p 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,"
     "26,27,28,29,30,31,32,33"},
    {0, "decode", "bench decode -m tiny.gguf -p 9 -n 3 -r 2"},
    /* gemm */
    {2, "--type: 'Q9_0' is no type with a kernel on the GPU", "bench gemm --type Q8_0,Q9_0"},
    {2, "--tokens: '8' is not a number within 9..16384", "bench gemm --tokens 16,8"},
    /* machine, io and kernels */
    {0, "reading", "bench machine --threads 2 --seconds 0.002 --buffer 4M"},
    {2, "--threads: 2000 is out of range 1..", "bench machine --threads 2000"},
    {2, "out of range", "bench machine --threads 0"},
    {2, "out of range", "bench machine --seconds 0"},
    {1, "--buffer: needs 1", "bench machine --buffer 1000T"},
    {2, "--buffer: 'much' is not a size", "bench machine --buffer much"},
    {2, "unexpected argument", "bench machine now"},
    {0, "disk_wait", "bench machine --threads 2 --seconds 0.002 --buffer 4M qwen.gguf"},
    {0, "\"disk_wait\":",
     "bench machine --threads 2 --seconds 0.002 --buffer 4M -m qwen.gguf --json"},
    {1, "none.gguf: ", "bench machine --threads 2 --seconds 0.002 --buffer 4M -m none.gguf"},
    {2, "--type: 'Q9_0' is not all and none of F32 F16", "bench kernels --type Q8_0,Q9_0"},
    {2, "--type: 'Q8_1' is", "bench kernels --type Q8_1"},
    {2, "--type: '' is", "bench kernels --type Q8_0,"},
    {2, "--isa: instruction set 'avx9000'", "bench kernels --isa scalar,avx9000"},
    {2, "--isa: a name is missing", "bench kernels --isa ''"},
    {2, "--shape: '0x32' is not ROWSxCOLS", "bench kernels --shape 0x32"},
    {2, "--shape: '32x0' is not ROWSxCOLS", "bench kernels --shape 32x0"},
    {2, "--shape: '32' is not ROWSxCOLS", "bench kernels --shape 32"},
    {2, "--shape: 'x32' is not ROWSxCOLS", "bench kernels --shape x32"},
    {2, "--shape: '32x' is not ROWSxCOLS", "bench kernels --shape 32x"},
    {2, "--shape: '32x32x32' is not ROWSxCOLS", "bench kernels --shape 32x32x32"},
    {2, "--shape: '-1x32' is not ROWSxCOLS", "bench kernels --shape -1x32"},
    {2, "--shape: '1e3x32' is not ROWSxCOLS", "bench kernels --shape 1e3x32"},
    {2, "--shape: '99999999999999999999x32' is not ROWSxCOLS",
     "bench kernels --shape 99999999999999999999x32"},
    {2, "--shape: '32x16777217' is not ROWSxCOLS", "bench kernels --shape 32x16777217"},
    {2, "100 columns are not a multiple of 32, the block of Q8_0",
     "bench kernels --type F32,Q8_0 --shape 8x100"},
    {2, "is not a number within 1..4096", "bench kernels --tokens 0"},
    {2, "is not a number within 1..4096", "bench kernels --tokens -1"},
    {2, "is not a number within 1..4096", "bench kernels --tokens 1,0"},
    {2, "is not a number within 1..4096", "bench kernels --tokens 4097"},
    {2, "is not a number within 1..4096", "bench kernels --tokens 99999999999999999999"},
    {2, "is not a number within 1..4096", "bench kernels --tokens 1.5"},
    {2, "is not a number within 1..4096", "bench kernels --tokens ''"},
    {2, "more than 16 numbers", "bench kernels --tokens 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17"},
    {1, "weights: needs",
     "bench kernels --type F32 --shape 16777216x16777216 --threads 2 --seconds 0.002 --buffer 4M"},
    {1, "weights: needs",
     "bench kernels --type F32 --shape 1x16777216 --tokens 4096 --threads 2 --seconds 0.002 --buffer 4M"},
    /* decode, once more */
    {0, "\"slow_types\":[]", "bench decode -m gptoss.gguf -p 1 -n 1 -r 1 --json"},
    /* tiers */
    {2, "--ram: 'much' is neither a size such as 4G nor all", "bench tiers --ram 1G,much"},
    {2, "--ram: '' is neither", "bench tiers --ram 1G,"},
    {2, "--ram: 'none' is neither", "bench tiers --ram none"},
    {2, "--vram: '4X' is neither a size such as 4G nor all nor none", "bench tiers --vram all,4X"},
    {2, "--ram: more than 16 sizes", "bench tiers --ram 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17"},
    {2, "--postfetch: 'often' is none of on, off", "bench tiers --postfetch often"},
    {2, "--cache-policy: 'mru' is none of fade, lcp", "bench tiers --cache-policy mru"},
    {2, "MOE_CACHE_POLICY: 'mru' is none of fade, lcp", "MOE_CACHE_POLICY=mru bench decode"},
    {1, "5000 tokens are more than the context of 4096",
     "bench tiers -m qwen.gguf -p 4000 -n 1000"},
    {1, "none.gguf: ", "bench tiers -m none.gguf"},
    /* answers of a given form */
    {2, "calls itself", "run -m tiny.gguf -p x --grammar left.gbnf"},
    {2, "line 2, column 3: this ( is never closed", "run -m tiny.gguf -p x --grammar open.gbnf"},
    {2, "#/properties/a: unsupported keyword \"not\"",
     "run -m tiny.gguf -p x --json-schema not.json"},
    {2, "line 2, column", "run -m tiny.gguf -p x --json-schema half.json"},
    {2, "No such file", "run -m tiny.gguf -p x --json-schema missing.json"},
    {2, "--json-schema: line 1, column", "run -m tiny.gguf -p x --json-schema ' {\"type\"'"},
    {2, "--grammar: line 1, column", "run -m tiny.gguf -p x --grammar 'root ::= (\"a\"'"},
    {0, "true", "run -m qwen.gguf -p x --raw -q --json-schema '{\"const\": true}'"},
    {0, "yes", "run -m qwen.gguf -p x --raw -q --grammar 'root ::= \"yes\"'"},
    {2, "exclude each other", "run -m tiny.gguf -p x --grammar yes.gbnf --json-schema not.json"},
    /* help and usage */
    {0, "Usage: moe-run [run]", "run run --help"},
    {0, "Usage: moe-run [run]", "run -p x --help"},
    {0, "MOE_RAM_AVAILABLE", "run help run"},
    {0, "the verb may be left out", "run --help"},
    {2, "no verb and no prompt", "run"},
    {2, "unknown verb 'story'", "run story"},
    {2, "unknown option --frobnicate", "run --frobnicate -p x"},
    {2, "'many' is not a whole number", "run -p x -n many"},
    {2, "'warm' is not a number", "run -p x --temp warm"},
    {2, "-p \"x story ...\"", "run -m tiny.gguf -p x story"},
    {2, "no prompt", "run -m tiny.gguf"},
    {2, "exclude each other", "run -m tiny.gguf -f x -"},
    {2, "none of f32, f16 and q8_0", "run -m tiny.gguf -p x --kv q4_0"},
    {2, "none of low, medium, high, on and off", "run -m tiny.gguf -p x --reasoning a-lot"},
    {2, "--system needs the chat format", "run -m tiny.gguf -p x --raw --system y"},
    {2, "is not ID=VALUE", "run -m tiny.gguf -p x --logit-bias 5"},
    {2, "is not ID=VALUE", "run -m tiny.gguf -p x --logit-bias 5=1,6"},
    {2, "none of cpu, cuda and auto", "run -m tiny.gguf -p x --device gpu"},
    {2, "MOE_DEVICE: 'x' is none of", "MOE_DEVICE=x run -m tiny.gguf -p x"},
    {2, "out of range", "run -m tiny.gguf -p x --ctx 0"},
    {2, "out of range", "run -m tiny.gguf -p x --threads 0"},
    {2, "MOE_KV: 'zz' is none of", "MOE_KV=zz run -m tiny.gguf -p x"},
    {2, "kv: 'yy' is none of", "MOE_KV=zz run -m tiny.gguf -p x --kv yy"},
    {2, "--date: 'tomorrow' is not a date such as", "run -m tiny.gguf -p x --date tomorrow"},
    {2, "--date: '2026-1-31' is not a date such as", "run -m tiny.gguf -p x --date 2026-1-31"},
    {2, "--date: '2026-13-01' is not a date such as", "run -m tiny.gguf -p x --date 2026-13-01"},
    {2, "--date: '2026-01-31T12:00' is not a date such as",
     "run -m tiny.gguf -p x --date 2026-01-31T12:00"},
    {2, "--date: ' 026-01-31' is not a date such as", "run -m tiny.gguf -p x --date ' 026-01-31'"},
    /* files that are no models */
    {1, "none.gguf: cannot open: No such file", "run -m none.gguf -p x"},
    {1, "page.gguf: not a GGUF file", "run -m page.gguf -p x"},
    {1, "cut.gguf: ", "run -m cut.gguf -p x"},
    {1, "none.gguf", "MOE_MODEL=none.gguf run -p x"},
    /* prompts that are none, and too long ones */
    {2, "the prompt is empty", "run -m tiny.gguf -p ''"},
    {1, "the prompt is empty", "run -m tiny.gguf -f empty.txt"},
    {1, "the prompt is empty", "run -m tiny.gguf -"},
    {1, "none.txt: cannot open", "run -m tiny.gguf -f none.txt"},
    {1, "the context 10: use --ctx ",
     "run -m tiny.gguf --ctx 10 -p 'Once upon a time there was a king.'"},
    {1, "(the model's limit is 4096)",
     "run -m tiny.gguf --ctx 10 -p 'Once upon a time there was a king.'"},
    {1, "a context of 5000 tokens: the model's is 4096", "run -m tiny.gguf --ctx 5000 -p x"},
    /* impossible values */
    {1, "the vocabulary has 512 tokens", "run -m tiny.gguf -p x --logit-bias 99999=1"},
    {2, "stop", "run -m tiny.gguf -p x --stop ''"},
    {2, "top-p", "run -m none.gguf -p x --top-p 7"},
    /* memory */
    {1, "MB of memory at least (program ", "MOE_RAM_AVAILABLE=1M run -m tiny.gguf -p x"},
    {1, "MB may be used (1.0 MB are available)", "MOE_RAM_AVAILABLE=1M run -m tiny.gguf -p x"},
    {1, "may be used (--ram); use --ram ", "run -m tiny.gguf -p x --ram 1M"},
    {1, "use --ctx ", "MOE_RAM_AVAILABLE=12M run -m tiny.gguf -p x --threads 2"},
    {2, "not a size", "MOE_RAM_AVAILABLE=lots run -m tiny.gguf -p x"},
    /* where experts go */
    {2, "MOE_FAULT", "MOE_FAULT=rain run -m tiny.gguf -p x"},
    {2, "--cache-policy: 'mru' is none of fade, lcp, lru and off",
     "run -m tiny.gguf -p x --cache-policy mru"},
    {2, "MOE_CACHE_POLICY: 'LRU' is none of", "MOE_CACHE_POLICY=LRU run -m tiny.gguf -p x"},
    {0, "", "MOE_CACHE_POLICY=LRU run -m tiny.gguf -p x -n 1 --cache-policy lcp"},
    {2, "MOE_POSTFETCH_ENABLE: 'maybe' is none of on, off and auto",
     "MOE_POSTFETCH_ENABLE=maybe run -m tiny.gguf -p x"},
    {2, "LLAMA_POSTFETCH_ENABLE", "LLAMA_POSTFETCH_ENABLE=maybe run -m tiny.gguf -p x"},
    {2, "not a size", "run -m tiny.gguf -p x --vram lots"},
    {0, "bound by", "run plan -m gptoss.gguf --vram 2G --ram 8G"},
    {0, "\"bound_by\"", "run plan -m gptoss.gguf --json"},
    /* another number of experts */
    {2, "--experts-used: ", "run -m tiny.gguf -p x --experts-used 0"},
    {2, "--experts-used: ", "run -m tiny.gguf -p x --experts-used 33"},
    {2, "--experts-used: ", "run -m tiny.gguf -p x --experts-used -1"},
    {2, "--experts-used: ", "run -m tiny.gguf -p x --experts-used x"},
    /* --skip-missing */
    {0, "--skip-missing has no effect: no GPU is used",
     "run plan -m tiny.gguf --device cpu --skip-missing"},
    /* what is said about it */
    {0, "--reasoning is ignored", "run -m tiny.gguf -p Hello -n 1 --reasoning high"},
    {0, "context full", "run -m tiny.gguf --raw -p x --ctx 4 --logit-bias 64=1000"},
    {0, "stopped: stop", "run -m tiny.gguf -p x --logit-bias 511=1000"},
    {0, "using the built-in demo model", "run -p Hello -n 1"},
    /* reasoning */
    {0, "stopped: length while reasoning", "run -m gptoss.gguf -p Hello -n 9 --seed 2 --temp 0.6 --date ''"},
    /* profiles */
    {2, "MOE_WEIGHTING: 'most' is none of flat", "MOE_WEIGHTING=most run -m tiny.gguf -p x"},
    {2, "MOE_LAYER_CURVE", "MOE_LAYER_CURVE=1.5 run -m tiny.gguf -p x"},
    /* counts */
    {2, "--perf: 'much' is none of off, update and full", "run -m tiny.gguf -p x --perf much"},
    {2, "MOE_PERF: 'much' is none of", "MOE_PERF=much run -m tiny.gguf -p x"},
    /* names that people know from other programs */
    {0, "\"threads\": 3,", "LLAMA_POSTFETCH_CPU_LIMIT=3 run tiny.gguf -p Hello -n 1 --json"},
    {0, "--moe-hot-cache-max-mib (--expert-cache in MiB),", "run help run"},
    {0, "GPU support", "run -V"},
    {0, "GPU support", "bench -V"},
    {0, "Also understood: --ctx-size, --temperature", "run help run"},
    {0, "-c, --ctx N", "run run --help"},
    {0, "\nOutput:\n", "run run --help"},
    {0, "-h, --help", "run run --help"},
    {0, "bound by", "run plan tiny.gguf"},
    {0, "\"architecture\"", "run inspect -m tiny.gguf --json"},
    {0, "\"decode\"", "bench decode tiny.gguf -p 3 -n 2 -r 1 -t 1 --json"},
    {0, "<|im_start|>", "run tokenize tiny.gguf --text <|im_start|>"},
    {0, "<|im_start|>user", "run render qwen.gguf req.json"},
    {1, "none.gguf: cannot open", "run none.gguf -p x"},
    {2, "two models", "run tiny.gguf -p x -m qwen.gguf"},
    {2, "no prompt: use -p TEXT", "run tiny.gguf"},
    {2, "moe-bench decode tiny.gguf", "bench tiny.gguf"},
    /* what has no meaning here */
    {2, "error: -mg: ", "run tiny.gguf -p x -mg 99"},
    {2, "error: -ctk: ", "run tiny.gguf -p x -ctk 99"},
    {2, "error: -hf: ", "run tiny.gguf -p x -hf 99"},
    {2, "error: -np: ", "run tiny.gguf -p x -np 99"},
    {2, "error: -e: ", "run tiny.gguf -p x -e 99"},
    {2, "error: --chat-template: ", "run tiny.gguf -p x --chat-template 99"},
    {2, "error: --lora=x: ", "run tiny.gguf -p x --lora=x 99"},
    {2, "error: -sys: use --system", "bench decode tiny.gguf -sys x"},
    {0, "-ngl 99: ignored", "bench decode tiny.gguf -p 2 -n 1 -r 1 -t 1 -ngl 99"},
    {0, "", "run tiny.gguf -p x -n 1 -q -cmoe"},
    {2, "unknown option --sys", "run tiny.gguf -p x --sys y"},
    {2, "-p \"hi extra ...\"", "run tiny.gguf -p hi extra words"},
    {2, "-seed: a long name takes two dashes: --seed", "run tiny.gguf -p x -seed 5"},
    {2, "did you mean --top-p?", "run tiny.gguf -p x --topp 0.9"},
    {2, "did you mean --threads?", "bench machine --thread 2"},
    {2, "unknown verb 'serv': did you mean serve? (moe-run --help lists the verbs)",
     "run serv -m tiny.gguf"},
    {2, "did you mean chat?", "run chats -m tiny.gguf"},
    {2, "did you mean inspect?", "run help inspekt"},
    {2, "did you mean plan?", "run plans"},
    {2, "unknown verb 'hi': a prompt follows -p", "run hi"},
    {2, "did you mean machine?", "bench machin"},
    {2, "--json takes no value", "run tiny.gguf -p x --json=yes"},
    /* numbers out of range */
    {2, "--threads: 0 is out of range 1..", "bench decode tiny.gguf --threads 0"},
    {2, "--threads: 100000 is out of range 1..", "bench decode tiny.gguf -t 100000"},
    {2, "--threads: 0 is out of range 1..", "bench tiers tiny.gguf --threads 0"},
    {2, "--threads: 100000 is out of range 1..", "bench tiers tiny.gguf -t 100000"},
    {2, "--threads: 0 is out of range 1..", "bench machine --threads 0"},
    {2, "--threads: 100000 is out of range 1..", "bench machine -t 100000"},
    {2, "--threads: 0 is out of range 1..", "bench kernels --type F32 --threads 0"},
    {2, "--threads: 100000 is out of range 1..", "bench kernels --type F32 -t 100000"},
    {2, "--threads: 0 is out of range 1..", "bench synth gpt-oss-20b -o x.gguf --threads 0"},
    {2, "--threads: 100000 is out of range 1..", "bench synth gpt-oss-20b -o x.gguf -t 100000"},
    {2, "is not a date", "run render qwen.gguf req.json --date soon"},
    {2, "MOE_THREADS: 0 is out of range", "MOE_THREADS=0 run tiny.gguf -p x"},
    /* text that is not UTF-8 */
    {1, "not UTF-8: byte 0xE9 at offset 3", "run tiny.gguf -f latin.txt"},
    {1, "not UTF-8: byte 0xE9 at offset 3", "run tiny.gguf --raw -f latin.txt"},
    /* why nothing came */
    {0, "stopped: length while reasoning, before the answer began: use a larger -n",
     "run gptoss.gguf -p Hello -n 2 -s 2"},
    {0, "stopped: length while reasoning, before the answer began: use a larger -n",
     "run gptoss.gguf -p Hello -n 2 -s 2 --json"},
    {0, "use a larger --ctx", "run gptoss.gguf -p Hello -c 103 -s 2"},
    /* a bound for VRAM where there is none */
    {0, "--vram has no effect: ", "run tiny.gguf -p x -n 1 --vram 2G"},
    {0, "--vram has no effect: ", "run plan tiny.gguf --vram 2G"},
    {0, "--expert-cache has no effect: ", "run plan tiny.gguf --expert-cache 2G"},
    {0, "--vram and --expert-cache have no effect: ",
     "run tiny.gguf -p x -n 1 --vram 2G --moe-hot-cache-max-mib 9"},
    /* the list of models */
    {0,
     "\"url\":\"https://huggingface.co/ggml-org/gpt-oss-20b-GGUF/resolve/main/gpt-oss-20b-mxfp4.gguf\"",
     "run models --json"},
    /* moe-quant */
    {0, "Examples:", "quant --help"},
    {0, "GPU support", "quant --version"},
    /* a bad value is bad usage, before the model is opened */
    {2, "", "run none.gguf -p x --threads 0"},
    {2, "", "run none.gguf -p x --threads 100000"},
    {2, "", "run none.gguf -p x --threads x"},
    {2, "", "run none.gguf -p x --ctx 0"},
    {2, "", "run none.gguf -p x --seed -2"},
    {2, "", "run none.gguf -p x -n -2"},
    {2, "", "run none.gguf -p x --temp -1"},
    {2, "", "run none.gguf -p x --temp x"},
    {2, "", "run none.gguf -p x --top-k -1"},
    {2, "", "run none.gguf -p x --top-p 0"},
    {2, "", "run none.gguf -p x --min-p 2"},
    {2, "", "run none.gguf -p x --chunk 0"},
    {2, "", "run none.gguf -p x --chunk 999999999"},
    {2, "", "run none.gguf -p x --kv q4"},
    {2, "", "run none.gguf -p x --device tpu"},
    {2, "", "run none.gguf -p x --isa none"},
    {2, "", "run none.gguf -p x --ram x"},
    {2, "", "run none.gguf -p x --expert-cache x"},
    {2, "", "run none.gguf -p x --moe-hot-cache-max-mib -2"},
    {2, "", "run none.gguf -p x --cache-policy x"},
    {2, "", "run none.gguf -p x --cpu-moe=1"},
    {2, "", "run none.gguf -p x --temp 1000"},
    {2, "", "run none.gguf -p x --top-p 1.5"},
    {2, "", "run none.gguf -p x --min-p -0.1"},
    {2, "", "run none.gguf -p x --repeat-penalty 0"},
    {2, "", "run none.gguf -p x --presence-penalty 5"},
    {2, "", "run none.gguf -p x --frequency-penalty -5"},
    {2, "", "run none.gguf -p x --penalty-window -2"},
    {2, "", "run none.gguf -p x --logit-bias 5=1e9"},
    {2, "", "run chat none.gguf --threads 0"},
    {2, "", "run chat none.gguf --threads 100000"},
    {2, "", "run chat none.gguf --threads x"},
    {2, "", "run chat none.gguf --ctx 0"},
    {2, "", "run chat none.gguf --seed -2"},
    {2, "", "run chat none.gguf -n -2"},
    {2, "", "run chat none.gguf --temp -1"},
    {2, "", "run chat none.gguf --temp x"},
    {2, "", "run chat none.gguf --top-k -1"},
    {2, "", "run chat none.gguf --top-p 0"},
    {2, "", "run chat none.gguf --min-p 2"},
    {2, "", "run chat none.gguf --chunk 0"},
    {2, "", "run chat none.gguf --chunk 999999999"},
    {2, "", "run chat none.gguf --kv q4"},
    {2, "", "run chat none.gguf --device tpu"},
    {2, "", "run chat none.gguf --isa none"},
    {2, "", "run chat none.gguf --ram x"},
    {2, "", "run chat none.gguf --expert-cache x"},
    {2, "", "run chat none.gguf --moe-hot-cache-max-mib -2"},
    {2, "", "run chat none.gguf --cache-policy x"},
    {2, "", "run chat none.gguf --cpu-moe=1"},
};

enum { MOST_WORDS = 40, MOST_SAID = 1 << 16, MOST_OPTIONS = 45 };
static char folder[256];

static void put(const char *name, const void *bytes, size_t n)
{
    FILE *f = fopen(name, "wb");
    CHECK_MSG(f && fwrite(bytes, 1, n, f) == n && fclose(f) == 0, "cannot write %s", name);
}

static void put_text(const char *name, const char *text) { put(name, text, strlen(text)); }

/* A name in the folder for a file of the tree, or of the folder that the build has unpacked. */
static void link_to(const char *root, const char *file, const char *name)
{
    char path[1024];
    snprintf(path, sizeof path, "%s%s%s", file[0] == '/' ? "" : root, file[0] == '/' ? "" : "/",
             file);
    CHECK_MSG(symlink(path, name) == 0, "cannot link %s", name);
}

static bool make_files(void)
{
    char root[512], unpacked[700], path[900];
    size_t n;
    if (!CHECK(getcwd(root, sizeof root)) || !CHECK(mkdtemp(test_temp(folder, sizeof folder))))
        return false;
    snprintf(unpacked, sizeof unpacked, "%s", test_unpacked());
    uint8_t *model = test_read_file("tests/models/demo-qwen3next-Q4_K_M.gguf", &n);
    if (!model || !CHECK(chdir(folder) == 0)) return false;
    link_to(root, "tests/models/demo-qwen3next-Q4_K_M.gguf", "qwen.gguf");
    link_to(root, "tests/models/demo-gptoss-MXFP4.gguf", "gptoss.gguf");
    link_to(root, "LICENSE", "LICENSE");
    link_to(root, "models.txt", "models.txt");
    link_to(root, unpacked, "golden");
    snprintf(path, sizeof path, "%s/models/tiny-qwen3next-f32.gguf", unpacked);
    link_to(root, path, "tiny.gguf");
    snprintf(path, sizeof path, "%s/models/tiny-gptoss-f32.gguf", unpacked);
    link_to(root, path, "tinyoss.gguf");
    put("head.gguf", model, 100000);
    put("cut.gguf", model, n - 1000);
    mem_free(model);
    if (CHECK(mkdir("cache", 0700) == 0 && mkdir("cache/moe", 0700) == 0))
        link_to(root, "tests/golden/speeds.json", "cache/moe/speeds.json");   /* nothing measures */
    put_text("page.gguf", "<!DOCTYPE html><html>page not found</html>");
    put_text("five.gguf", "GGUF\001");
    put_text("empty.gguf", "");
    put_text("empty.txt", "");
    put_text("latin.txt", "caf\351");
    put_text("req.json", "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi <|im_end|>\"}]}");
    put_text(
        "call.json",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"tool_calls\":"
        "[{\"id\":\"1\",\"function\":{\"name\":\"f\",\"arguments\":{\"x\":0.1,\"y\":[1e-5,2]}}}]},"
        "{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":\"ok\"}]}");
    put_text("half.json", "{\"a\":\n");
    put_text("bare.json", "{\"messages\":[{\"content\":\"Hi\"}]}");
    put_text("not.json", "{\"properties\": {\"a\": {\"not\": {}}}}");
    put_text("yes.gbnf", "root ::= \"yes\" | \"no\"\n");
    put_text("left.gbnf", "root ::= root \"x\"\n");
    put_text("open.gbnf", "root ::= \"yes\" |\n  (no\n");
    return true;
}

/* line is cut up; words[] ends with NULL. */
static int split(char **words, char *line)
{
    int n = 0;
    for (char *p = line; *p && n < MOST_WORDS;) {
        char end = ' ';
        if (*p == '\'') end = *p++;
        words[n++] = p;
        p += strcspn(p, end == ' ' ? " " : "'");
        if (*p) *p++ = '\0';
        if (end != ' ' && *p == ' ') p++;
    }
    words[n] = NULL;
    return n;
}

static _Noreturn void run_child(const char *words)
{
    static char line[1024];
    char *argv[MOST_WORDS + 1];
    snprintf(line, sizeof line, "%s", words);
    int n = split(argv, line), first = 0, rc = 99;
    for (; first < n && strchr(argv[first], '='); first++) putenv(argv[first]);
    if (freopen("/dev/null", "r", stdin) && freopen("out", "w", stdout) &&
        freopen("err", "w", stderr)) {
        const char *program = argv[first];
        n -= first;
        if (!strcmp(program, "run")) rc = run_main(n, argv + first);
        else if (!strcmp(program, "bench")) rc = bench_main(n, argv + first);
        else if (!strcmp(program, "quant")) rc = quant_main(n, argv + first);
        fflush(NULL);
    }
    _exit(rc);
}

static const char *read_said(char *text, const char *name)
{
    FILE *f = fopen(name, "rb");
    const size_t n = f ? fread(text, 1, MOST_SAID - 1, f) : 0;
    if (f) fclose(f);
    text[n] = '\0';
    return text;
}

static bool is_one_error(const char *err)
{
    const char *end = strchr(err, '\n');
    return !strncmp(err, "moe-", 4) && strstr(err, ": error: ") && end && end[1] == '\0';
}

/* Lines of --help that describe an option: "  -m, --model FILE ..." or "      --kv TYPE ...". */
static int count_options(const char *text)
{
    int n = 0;
    for (const char *p = text; p; p = strchr(p, '\n'), p += p != NULL) {
        const size_t at = strspn(p, " ");
        const bool letter = at == 2 && p[2] == '-' && p[3] != '-' && !strncmp(p + 4, ", --", 4);
        n += letter || (at == 6 && p[6] == '-' && p[7] == '-');
    }
    return n;
}

static void test_rows(void)
{
    static char out[MOST_SAID], err[MOST_SAID];
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        int status = -1;
        fflush(NULL);
        const pid_t child = fork();
        if (child == 0) run_child(rows[i].words);
        if (!CHECK(child > 0 && waitpid(child, &status, 0) == child)) return;
        read_said(out, "out");
        read_said(err, "err");
        const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
        CHECK_MSG(count_options(out) <= MOST_OPTIONS, "%s: %d options", rows[i].words,
                  count_options(out));
        test_check(code == rows[i].code &&
                       (strstr(out, rows[i].says) || strstr(err, rows[i].says)) &&
                       (code == 0 || (out[0] == '\0' && is_one_error(err))),
                   "row", (int)i, "%s: exit code %d instead of %d, or no '%s': %.300s",
                   rows[i].words, code, rows[i].code, rows[i].says, err);
    }
}

int main(int argc, char **argv)
{
    test_begin("command_lines", argc, argv);
    setenv("MOE_DEVICE", "cpu", 1);
    if (make_files()) {
        char path[512];
        setenv("HOME", folder, 1);
        setenv("XDG_CACHE_HOME", test_path(path, sizeof path, "%s/cache", folder), 1);
        setenv("XDG_STATE_HOME", test_path(path, sizeof path, "%s/state", folder), 1);
        test_rows();
        test_remove(folder);
    }
    return test_end();
}
