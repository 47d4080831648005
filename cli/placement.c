/* placement.c - probes the machine, loads or measures speeds, and makes the plan.
 *
 * Speeds are measured only if the plan depends on them: with experts outside VRAM, or on the
 * drive. */
#include "cli/placement.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/args/args.h"
#include "cli/cache_directory.h"
#include "cli/console.h"
#include "cli/interrupt.h"
#include "engine/engine_stats.h"
#include "engine/gpu/weights_gpu.h"
#include "engine/plan/measure.h"
#include "tiers/machine.h"

/* The GPU, if it may be used and can compute this model. */
static int open_gpu(gpu **out, placement *p, const model *m, device_choice device, err_ctx *err)
{
    const bool none_built = strcmp(gpu_backend(), "none") == 0;
    int rc;
    *out = NULL;
    if (device == DEVICE_CPU || (device == DEVICE_AUTO && none_built))
        return 0;                        /* a CPU build prints no note */
    if (none_built)
        return err_set(err, ERR_UNSUPPORTED, "cuda: this program is built for the CPU alone (make "
                       "CUDA=1); use --device cpu");
    if (gpu_count() == 0) {
        if (device == DEVICE_CUDA)
            return err_set(err, ERR_UNSUPPORTED, "cuda: there is no GPU, or no driver for it; use "
                           "--device cpu");
        snprintf(p->note, sizeof p->note, "no GPU: CPU only");
        return 0;
    }
    if ((rc = weights_gpu_check(m, err)) == 0 && (rc = gpu_describe(&p->info, 0, err)) == 0)
        rc = gpu_open(out, 0, err);
    if (rc == 0 || device == DEVICE_CUDA) return rc;
    snprintf(p->note, sizeof p->note, "%s: CPU only", err->msg);
    return 0;
}

/* The program's own memory, measured once, before the GPU's driver takes about 100 MB, which no
 * plan counts. */
static uint64_t program_bytes(const model *m)
{
    static uint64_t bytes;               /* set once */
    planning_forget(m);
    if (bytes == 0) bytes = planning_program_bytes();
    return bytes;
}

/* Free memory, or MOE_RAM_AVAILABLE, which simulates a smaller machine. */
static int read_machine(placement *p, uint64_t program, bool use_gpu, uint64_t aside, err_ctx *err)
{
    const char *text = getenv("MOE_RAM_AVAILABLE");
    const int rc = planning_machine(&p->in.machine, use_gpu, err);
    if (rc < 0) return rc;
    p->in.machine.ram_program = program;
    if (text && *text && !arg_parse_size(&p->in.machine.ram_available, text))
        return err_set(err, ERR_FORMAT, "MOE_RAM_AVAILABLE is not a size such as 512M or 20G");
    const uint64_t half = p->in.machine.ram_available / 2;
    p->in.machine.ram_available -= aside < half ? aside : half;
    p->in.machine.ram_program += aside;
    return 0;
}

static bool depends_on_speed(const plan *p)
{
    return p->drive.experts > 0 || (p->gpu && p->ram.experts > 0);
}

/* Measures, and stores the speeds if none is missing; else they are for this plan alone. */
static int measure(placement *p, engine *e, gpu *g, uint64_t most_ram, bool asked, err_ctx *err)
{
    const uint64_t have = p->in.machine.ram_available, own = p->in.machine.ram_program;
    err_ctx unsaved;
    int rc;
    console_status("measuring this machine...");
    p->date = time(NULL);
    if (most_ram != UINT64_MAX) most_ram -= most_ram < own ? most_ram : own;
    rc = engine_measure(&p->in.machine.rate, e, g, have < most_ram ? have : most_ram,
                        MEASURE_SECONDS, interrupt_watch, NULL, err);
    console_status_clear();
    if (rc < 0) return rc;
    p->measured = rc != MEASURE_PARTIAL;
    if (!p->measured) return 0;
    if (p->kept[0]) cache_directory_make(p->kept);
    else err_set(&unsaved, ERR_IO, "no folder for them (HOME, XDG_CACHE_HOME)");
    if (p->kept[0] &&
        speeds_save(&p->in.machine.rate, p->date, p->kept, &p->key, &unsaved) == 0)
        return 0;
    if (asked) console_note("speeds are not stored: %s", unsaved.msg);
    return 0;
}

/* The library's scratch is at most 1/32 of the usable VRAM and of the model: in little VRAM experts
 * gain more, and a small model is fast without the library. */
enum { LIBRARY_PART = 32 };

static bool library_has_room(const placement *p, const model *m, const gpu *g, uint64_t most)
{
    uint64_t room = p->in.machine.vram_free, file = 0;
    for (int i = 0; i < gguf_n_part(m->file); i++) file += gguf_part_bytes(m->file, i);
    if (most < room) room = most;
    if (file < room) room = file;
    return gpu_gemm_scratch(g, INT_MAX) <= room / LIBRARY_PART;
}

/* Chooses how products of prompts are computed, by speeds and VRAM. */
static void choose_gemm(placement *p, const model *m, gpu *g, const placement_options *o)
{
    const speeds *rate = &p->in.machine.rate;
    if (!g) return;
    p->gemm = (gpu_gemm){ .use = o->wish.fixed ? GPU_GEMM_OWN : GPU_GEMM_FASTER,
                          .from = o->prefill_m };
    for (int i = 0; i < SPEEDS_GEMM_POINTS; i++) {
        p->gemm.rates.own[i] = rate->gemm_own[i];
        p->gemm.rates.vendor[i] = rate->gemm_vendor[i];
    }
    gpu_gemm_set(g, &p->gemm);
    if (!library_has_room(p, m, g, o->wish.vram)) {
        p->gemm.use = GPU_GEMM_OWN;
        gpu_gemm_set(g, &p->gemm);
    }
    snprintf(p->gemm_name, sizeof p->gemm_name, "%s", gpu_gemm_name(g));
}

static int make(placement *p, const model *m, gpu *g, const placement_options *o,
                const session_options *so, err_ctx *err)
{
    plan_wish wish = o->wish;
    wish.gpu_wanted = o->device == DEVICE_CUDA;
    wish.whole_banks |= !m->family->cache_experts;
    wish.ram_copy = planning_copy_bytes(m, o->engine.isa, o->engine.exact);
    choose_gemm(p, m, g, o);
    return planning_make(&p->p, &p->in, m, so, o->engine.threads, g ? planning_gpu_work : NULL, g,
                         &wish, err);
}

static int make_with_speeds(placement *p, const model *m, engine *e, gpu *g,
                            const placement_options *o, const session_options *so, err_ctx *err)
{
    int rc = planning_key(&p->key, m, o->engine.threads, o->engine.isa, p->info.name, err);
    if (rc < 0) return rc;
    if (!speeds_path(p->kept, sizeof p->kept, getenv("XDG_CACHE_HOME"), getenv("HOME")) ||
        !cache_directory_allows(p->kept))
        p->kept[0] = '\0';
    p->measured = p->kept[0] && speeds_load(&p->in.machine.rate, &p->date, p->kept, &p->key) > 0;
    if ((rc = make(p, m, g, o, so, err)) < 0 || !e) return rc;
    const bool needed = !p->measured && depends_on_speed(&p->p);
    if (!o->measure && !needed) return 0;
    rc = measure(p, e, g, o->wish.ram, o->measure, err);
    return rc < 0 ? rc : make(p, m, g, o, so, err);
}

/* Whether a lack of RAM keeps the plan off the GPU: with unlimited RAM it would use it. */
static bool ram_is_short(const placement *p, const model *m, gpu *g, const placement_options *o,
                         const session_options *so)
{
    placement_options more = *o;
    placement probe = *p;
    err_ctx unused;
    more.wish.ram = UINT64_MAX;
    probe.in.machine.ram_available = UINT64_MAX / 2;
    return make(&probe, m, g, &more, so, &unused) == 0 && probe.p.gpu;
}

static int make_once(placement *out, const model *m, engine *e, const placement_options *o,
                     const session_options *so, err_ctx *err)
{
    gpu *g;
    int rc;
    *out = (placement){ .measured = false };
    const uint64_t program = program_bytes(m);
    if ((rc = open_gpu(&g, out, m, o->device, err)) < 0) return rc;
    const bool has_gpu = g != NULL;
    if ((rc = read_machine(out, program, has_gpu, o->ram_aside, err)) == 0)
        rc = make_with_speeds(out, m, e, g, o, so, err);
    const bool no_ram = rc == 0 && has_gpu && !out->p.gpu && ram_is_short(out, m, g, o, so);
    gpu_close(g);
    if (rc < 0) return rc;
    if (no_ram && o->device == DEVICE_CUDA)
        return err_set(err, ERR_NOMEM, "%s: RAM is too small for a GPU's host buffers; use a "
                       "larger --ram, a smaller --ctx, or --device cpu", out->info.name);
    if (has_gpu && !out->p.gpu && o->device == DEVICE_CUDA)
        return err_set(err, ERR_NOMEM, "%s: its VRAM (%.1f GB free) is too small for what every "
                       "token needs; use a smaller --ctx, --kv q8_0, or --device cpu",
                       out->info.name, (double)out->in.machine.vram_free * 1e-9);
    if (has_gpu && !out->p.gpu)
        snprintf(out->note, sizeof out->note, "%s: %s: CPU only", out->info.name, no_ram ?
                 "RAM is too small for a GPU's host buffers" :
                 "VRAM is too small for what every token needs");
    return 0;
}

int placement_make(placement *out, model *m, engine *e, const placement_options *o,
                 const session_options *so, err_ctx *err)
{
    const int rc = make_once(out, m, e, o, so, err);
    if (!m->hp.uses_mtp || (rc < 0 && rc != ERR_NOMEM) ||
        (rc == 0 && planning_has_mtp_room(&out->in, &out->p, m)))
        return rc;
    model_use_mtp(m, false);
    return make_once(out, m, e, o, so, err);
}

plan_view placement_view(const placement *p)
{
    return (plan_view){ &p->p, &p->in.model, p->measured, p->date, p->gemm_name };
}
