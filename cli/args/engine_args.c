/* engine_args.c - flags to engine_options and session_options.
 *
 * engine and session refuse numbers that do not suit the model. */
#include "cli/args/engine_args.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "cli/console.h"
#include "engine/cpu/kernels.h"
#include "tiers/machine.h"
#include "tiers/pool.h"

#define FIELD(f) offsetof(engine_args, f)
const arg_option engine_arg_options[ENGINE_N_OPTION] = {
    { "model", 'm', ARG_TEXT, FIELD(model), "FILE", "MOE_MODEL", 0, 0,
      "GGUF file, first part of a split one, or a name of moe-run models. Default: built-in demo" },
    { "ctx", 'c', ARG_INT, FIELD(ctx), "N", "MOE_CTX", 1, INT_MAX,
      "Context in tokens, 1 to the model's limit. Default: 8192 or what the prompt needs; "
      "moe-serve: 32768" },
    { "device", 0, ARG_TEXT, FIELD(device), "NAME", "MOE_DEVICE", 0, 0,
      "cpu, cuda, or auto: the GPU if there is one. Default: auto" },
    { "threads", 't', ARG_THREADS, FIELD(threads), "N", "MOE_THREADS", 0, 0,
      "CPU threads. Default: one per physical core" },
    { "kv", 0, ARG_TEXT, FIELD(kv), "TYPE", "MOE_KV", 0, 0,
      "Type of stored keys and values: f32, f16 or q8_0. Default: f16" },
    { "chunk", 0, ARG_INT, FIELD(chunk), "N", NULL, 1, SESSION_MAX_CHUNK,
      "Prompt tokens per pass, 1 to 8192. Default: 512; up to 4096 on a GPU or with experts on the "
      "drive" },
    { "isa", 0, ARG_TEXT, FIELD(isa), "NAME", "MOE_ISA", 0, 0,
      "Instruction set of the CPU kernels, e.g. avx2; scalar: plain C. Default: the fastest" },
    { "experts-used", 0, ARG_INT, FIELD(experts_used), "N", NULL, 1, MODEL_MOST_USED,
      "Experts per token, 1 to 32. Changes answers; a message states by how much" },
    { "skip-missing", 0, ARG_FLAG, FIELD(skip_missing), NULL, NULL, 0, 0,
      "Skip experts that are not in VRAM, except in prompts of 9 tokens or more. Changes answers; "
      "a message states by how much" },
    /* a variable alone: docs/troubleshooting.md */
    { NULL, 0, ARG_TEXT, FIELD(drafts), "MODE", "MOE_DRAFTS", 0, 0, NULL },
};

void engine_args_init(engine_args *a)
{
    *a = (engine_args){ .kv = "f16", .device = "auto", .drafts = "on" };
}

/* MOE_CORES, or 0. */
static int cores_of_variable(void)
{
    const char *text = getenv("MOE_CORES");
    const int n = text ? atoi(text) : 0;
    return n > 0 && n <= POOL_MAX_THREADS ? n : 0;
}

int engine_args_cores(void)
{
    int n_cpu;
    return cores_of_variable() > 0 ? cores_of_variable() : machine_cores(NULL, 0, &n_cpu);
}

int engine_args_read(placement_options *where, session_options *so, const engine_args *a)
{
    const char *device = a->device ? a->device : "cpu";
    char shown[64];
    err_ctx err;
    kv_type type;
    if (strcmp(device, "cpu") != 0 && strcmp(device, "cuda") != 0 && strcmp(device, "auto") != 0) {
        console_error("%s: '%s' is none of cpu, cuda and auto",
                      a->device == getenv("MOE_DEVICE") ? "MOE_DEVICE" : "--device",
                      ESC(shown, str_from(device)));
        return 2;
    }
    if (!kv_type_from_name(&type, a->kv)) {
        /* the pointer tells the variable's text from the option's */
        console_error("%s: '%s' is none of f32, f16 and q8_0",
                      a->kv == getenv("MOE_KV") ? "MOE_KV" : "--kv", a->kv);
        return 2;
    }
    if (!kernels_named(a->isa, &err)) {
        console_error("%s: %s", a->isa == getenv("MOE_ISA") ? "MOE_ISA" : "--isa", err.msg);
        return 2;
    }
    const char *drafts = a->drafts ? a->drafts : "off";
    where->mtp = strcmp(drafts, "on") == 0;
    if (!where->mtp && strcmp(drafts, "lookup") != 0 && strcmp(drafts, "off") != 0) {
        console_error("MOE_DRAFTS: '%s' is none of on, lookup and off",
                      ESC(shown, str_from(drafts)));
        return 2;
    }
    where->engine = (engine_options){ .threads = a->threads ? (int)a->threads : cores_of_variable(),
                            .isa = a->isa, .exact = a->exact, .yarn_rounded = a->yarn_rounded };
    /* --isa names kernels of the CPU, so auto means the CPU */
    where->device = strcmp(device, "cuda") == 0 ? DEVICE_CUDA :
              strcmp(device, "auto") == 0 && !a->exact && !(a->isa && *a->isa) ? DEVICE_AUTO :
              DEVICE_CPU;
    *so = (session_options){ .ctx = (int)a->ctx, .chunk = (int)a->chunk, .kv = type,
                             .skip_missing = a->skip_missing,
                             .n_version = strcmp(drafts, "off") != 0 };
    return 0;
}
