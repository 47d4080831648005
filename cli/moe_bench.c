/* moe_bench.c - main of moe-bench: measurements, and the files to measure with. */
#include "cli/commands.h"

#include "loader/base.h"

static const command ops_table[] = {
    { "decode", "Measures the speed of prompts and of generation", cmd_bench_decode },
    { "batch", "Measures several conversations at once", cmd_bench_batch },
    { "tiers", "Measures a model with several budgets of VRAM and RAM", cmd_bench_tiers },
    { "logits", "Writes the logits of given tokens, for comparison", cmd_bench_logits },
    { "synth", "Writes a GGUF of a real model's shapes with random weights", cmd_bench_synth },
    { "kernels", "Measures the products of each weight type against the memory's speed",
      cmd_bench_kernels },
    { "gemm", "Measures products of prompts on the GPU, ours and the vendor's", cmd_bench_gemm },
    { "machine", "Shows cores, caches and memory; measures memory and drive", cmd_bench_machine },
};

int main(int argc, char **argv)
{
    return commands_main("moe-bench", "Measures the engine against the limits of the machine.",
                         "\nExamples:\n"
                         "  moe-bench decode -m model.gguf -p 512 -n 128\n"
                         "  moe-bench batch -m model.gguf --sessions 1,4,8 --vram 8G\n"
                         "  moe-bench tiers -m model.gguf --vram 4G,8G,all --ram 16G,all\n"
                         "  moe-bench decode -m model.gguf -p 9,64,512,2048 -n 0 --vram 8G\n"
                         "  moe-bench logits -m model.gguf --ids ids.txt -o logits.f32\n"
                         "  moe-bench synth qwen3-next-80b --layers 4 -o q4.gguf\n"
                         "  moe-bench kernels --type MXFP4,Q4_K --tokens 1,8\n"
                         "  moe-bench gemm --type Q8_0 --tokens 512,2048\n"
                         "  moe-bench machine -m model.gguf\n",
                         ops_table, ARRAY_LEN(ops_table), argc, argv);
}
