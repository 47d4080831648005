/* loaded.c - opens a model for the verbs that compute, and reads its weights ahead of time.
 *
 * Reading ahead changes no result: it turns thousands of page faults in the first tokens into one
 * sequential read that can be shown and interrupted. A file that is in the page cache already costs
 * one look at the page table of the mapping. */
#include "cli/loaded.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cli/args.h"
#include "cli/console.h"
#include "cli/demo_model.h"
#include "cli/interrupt.h"
#include "cuda/gpu.h"
#include "tiers/machine.h"
#include "tiers/numa.h"

/* ---- opening ------------------------------------------------------------------------------- */

/* A newcomer types a model's name: say where files come from. */
static int explain_missing(const char *path, int rc, err_ctx *err)
{
    err_ctx said = *err;
    if (access(path, F_OK) == 0) return rc;
    return err_set(err, rc, "%s (moe-run models lists files that are known to work)", said.msg);
}

/* More threads than cores only get in each other's way, and someone may not know. */
static void note_threads(const loaded *l)
{
    int n_cpu;
    const int n_core = machine_cores(NULL, 0, &n_cpu), n = engine_threads(l->e);
    if (n > n_core)
        console_note("%d threads on %d core%s will be slow; without --threads it is one each", n,
                     n_core, n_core == 1 ? "" : "s");
}

void loaded_say_notes(const loaded *l, bool formatted, bool effort_given)
{
    if (l->device_note[0]) console_note("%s", l->device_note);
    note_threads(l);
    if (!formatted) return;
    if (chat_note(l->talk)) console_note("%s", chat_note(l->talk));
    if (effort_given && chat_format_of(l->talk) != CHAT_HARMONY)
        console_note("--reasoning is ignored: only gpt-oss models know levels");
}

const char *loaded_kernels_text(char *text, size_t cap, const loaded *l)
{
    quant_type types[QT_COUNT];
    const int n = engine_slow_types(l->e, types);
    int used = engine_on_gpu(l->e) ? snprintf(text, cap, "%s", engine_gpu_name(l->e))
                                   : snprintf(text, cap, "%s kernels", engine_kernels(l->e));
    for (int i = 0; i < n && (size_t)used < cap; i++)
        used += snprintf(text + used, cap - (size_t)used, "%s%s%s",
                         i == 0 ? " (no fast ones for " : ", ", quant_name(types[i]),
                         i + 1 < n ? "" : ")");
    return text;
}

json_t *loaded_slow_json(const loaded *l)
{
    quant_type types[QT_COUNT];
    const int n = engine_slow_types(l->e, types);
    json_t *list = json_array();
    for (int i = 0; i < n; i++) json_array_append_new(list, json_string(quant_name(types[i])));
    return list;
}

const char *loaded_copy_text(char *text, size_t cap, const loaded *l)
{
    const uint64_t copy = engine_arranged_bytes(l->e);
    char bytes[32];
    if (cap) text[0] = '\0';
    if (copy > 0)
        snprintf(text, cap, ", output matrix again %s", text_bytes(bytes, sizeof bytes, copy));
    return text;
}

int loaded_fail(const char *what, const err_ctx *err)
{
    if (err->code == ERR_STOPPED && interrupted()) return interrupt_exit_code();
    if (what) return console_fail(what, err);
    console_error("%s", err->msg);
    return 1;
}

/* Adds to a message what could be done about it. */
static int advise(int rc, const char *what, err_ctx *err)
{
    err_ctx said = *err;
    return err_set(err, rc, "%s; %s", said.msg, what);
}

static bool watch_upload(void *ctx, uint64_t done, uint64_t total)
{
    progress *bar = ctx;
    (void)total;
    progress_update(bar, done);
    return !interrupted();
}

enum { FIT_CTX = 8192 };                 /* where --ctx was not given */

/* The GPU, if it is asked for or takes it all; else a word about why not, unless this is a build
 * that has no business with GPUs. */
static bool choose_gpu(loaded *l, const load_options *o)
{
    const int most = l->m->hp.ctx_train;
    session_options fit = o->fit;
    err_ctx why;
    if (!o->try_gpu || strcmp(gpu_backend(), "none") == 0) return o->engine.gpu;
    if (fit.ctx == 0) fit.ctx = most < FIT_CTX ? most : FIT_CTX;
    if (engine_gpu_fits(l->m, &fit, &why) == 0) return true;
    snprintf(l->device_note, sizeof l->device_note, "%s: CPU only", why.msg);
    return false;
}

/* Weights that go to a GPU go there now. */
static int open_engine(loaded *l, const load_options *o, err_ctx *err)
{
    engine_options opt = o->engine;
    model_bytes weights;
    progress bar;
    int rc;

    opt.gpu = choose_gpu(l, o);
    if (!opt.gpu) return engine_open(&l->e, l->m, &opt, err);
    model_count_bytes(&weights, l->m);
    progress_begin(&bar, "loading", weights.dense + weights.experts);
    opt.watch = watch_upload;
    opt.watch_ctx = &bar;
    rc = engine_open(&l->e, l->m, &opt, err);
    progress_end(&bar);
    return rc == ERR_NOMEM ? advise(rc, "use --device cpu, or a smaller model", err) : rc;
}

int loaded_open(loaded *out, const load_options *o, err_ctx *err)
{
    topology here;
    int rc;
    topology_read_nodes(&here, "");
    numa_spread(&here);                  /* before the first page, and before threads are started */
    *out = (loaded){ .path = o->path ? o->path : DEMO_MODEL_NAME };
    rc = o->path ? gguf_open(&out->file, o->path, err)
                 : gguf_open_memory(&out->file, demo_model_data, demo_model_bytes(), err);
    if (rc < 0 && o->path) rc = explain_missing(o->path, rc, err);
    if (rc == 0) rc = model_bind(&out->m, out->file, err);
    if (rc == 0 && o->with_text) {
        rc = tokenizer_create(&out->tok, out->file, err);
        if (rc == 0) rc = encoder_create(&out->enc, out->tok, err);
        if (rc == 0) rc = chat_create(&out->talk, out->file, out->tok, err);
    }
    if (rc == 0) rc = open_engine(out, o, err);
    if (rc < 0) loaded_close(out);
    return rc;
}

void loaded_close(loaded *l)
{
    engine_close(l->e);
    chat_free(l->talk);
    encoder_free(l->enc);
    tokenizer_free(l->tok);
    model_free(l->m);
    gguf_close(l->file);
    *l = (loaded){ 0 };
}

/* ---- reading ahead ------------------------------------------------------------------------- */

enum { WARM_BYTES = 16 << 20 };          /* looked at together: 4096 pages of 4 KiB */

typedef struct warming {
    int n_layer;                         /* what lies behind (MTP blocks) is not used yet */
    size_t page;
    uint64_t missing;                    /* bytes not in memory: counted by the first walk */
    uint64_t done;
    bool touch;                          /* the second walk: read them */
    progress bar;
    unsigned sum;                        /* of bytes touched, so that reading them is not idle */
    bool stopped;
} warming;

/* Up to WARM_BYTES of the mapping, in whole pages. */
static void warm_piece(warming *w, const uint8_t *at, size_t bytes)
{
    unsigned char resident[WARM_BYTES / 4096];           /* pages are 4 KiB or larger */
    const size_t n_page = (bytes + w->page - 1) / w->page;
    size_t missing = 0;

    if (mincore((void *)at, bytes, resident) < 0) return;        /* cannot be known: leave it */
    for (size_t i = 0; i < n_page; i++) missing += !(resident[i] & 1);
    if (!w->touch) {
        w->missing += missing * w->page;
        return;
    }
    if (missing == 0) return;
    for (size_t i = 0; i < n_page; i++) {
        if (resident[i] & 1) continue;
        w->sum += *(const volatile uint8_t *)(at + i * w->page);
        w->done += w->page;
        if (i % 256 == 0) progress_update(&w->bar, w->done < w->missing ? w->done : w->missing);
    }
}

static void warm_tensor(void *ctx, const tensor *t, model_use use, int layer)
{
    warming *w = ctx;
    const uintptr_t first = (uintptr_t)t->data & ~(uintptr_t)(w->page - 1);
    const uintptr_t end = (uintptr_t)t->data + t->bytes;
    (void)use;
    if (layer >= w->n_layer) return;
    for (uintptr_t at = first; at < end; at += WARM_BYTES) {
        /* several pieces ahead: the disk never waits. 2.1 GB cold: 1.5 s; one piece: 5.8 s */
        const size_t left = end - at, ahead = 4 * (size_t)WARM_BYTES;
        if ((w->stopped |= interrupted())) return;
        if (w->touch) madvise((void *)at, left < ahead ? left : ahead, MADV_WILLNEED);
        warm_piece(w, (const uint8_t *)at, left < WARM_BYTES ? left : WARM_BYTES);
    }
}

static int warm(const model *m, err_ctx *err)
{
    warming w = { .n_layer = m->hp.n_layer, .page = (size_t)sysconf(_SC_PAGESIZE) };
    model_visit(m, warm_tensor, &w);
    if (w.missing > 0) {
        w.touch = true;
        progress_begin(&w.bar, "loading", w.missing);
        model_visit(m, warm_tensor, &w);
        progress_end(&w.bar);
    }
    return w.stopped ? err_set(err, ERR_STOPPED, "interrupted") : 0;
}

/* ---- sessions ------------------------------------------------------------------------------ */

/* What there is, or what the variable says there is: to try out a smaller machine. */
static int available(uint64_t *bytes, const char **whose, err_ctx *err)
{
    const char *text = getenv("MOE_RAM_AVAILABLE");
    if (!text || !*text) return memory_room(bytes, whose, err);
    *whose = "MOE_RAM_AVAILABLE";
    if (arg_parse_size(bytes, text)) return 0;
    return err_set(err, ERR_FORMAT, "MOE_RAM_AVAILABLE is not a size such as 512M or 20G");
}

int loaded_plan(loaded_bytes *out, const loaded *l, const session_options *o, err_ctx *err)
{
    const int most = l->m->hp.ctx_train;
    model_bytes weights;
    uint64_t ses, vram;
    int rc;

    if (o->ctx < 1 || o->ctx > most)
        return err_set(err, ERR_RANGE, "a context of %d tokens: the model's is %d; use --ctx %d or "
                       "less", o->ctx, most, most);
    if ((rc = session_plan(&ses, &vram, l->e, o, err)) < 0) return rc;
    model_count_bytes(&weights, l->m);
    *out = (loaded_bytes){ .weights = weights.dense + weights.experts,
                           .session = engine_on_gpu(l->e) ? vram : ses };
    return 0;
}

/* *left: bytes that nobody has a use for. */
static int check_memory(uint64_t *left, const loaded_bytes *need, const session_options *o,
                        err_ctx *err)
{
    char total[32], weights[32], ses[32], room[32];
    const char *whose;
    uint64_t have, sum;
    int rc = available(&have, &whose, err);

    if (rc < 0) return rc;
    if (!size_add(&sum, need->weights, need->session)) sum = UINT64_MAX;
    *left = sum <= have ? have - sum : 0;
    if (sum <= have) return 0;
    return err_set(err, ERR_NOMEM, "needs %s (weights %s, context of %d tokens %s), but %s are "
                   "available (%s); %s",
                   text_bytes(total, sizeof total, sum),
                   text_bytes(weights, sizeof weights, need->weights), o->ctx,
                   text_bytes(ses, sizeof ses, need->session),
                   text_bytes(room, sizeof room, have), whose,
                   need->weights < have ? "use a smaller --ctx, or --kv q8_0" :
                   "use a smaller model or quantisation (moe-run models lists some)");
}

int loaded_session(session **out, const loaded *l, const session_options *o, err_ctx *err)
{
    loaded_bytes need;
    uint64_t left = 0;
    err_ctx ignored;
    int rc = loaded_plan(&need, l, o, err);
    *out = NULL;
    if (rc == 0 && engine_on_gpu(l->e)) {
        rc = session_create(out, l->e, o, err);
        return rc == ERR_NOMEM ? advise(rc, "use a smaller --ctx or --chunk, --kv q8_0, or --device "
                                        "cpu", err) : rc;
    }
    if (rc == 0) rc = check_memory(&left, &need, o, err);
    if (rc == 0) rc = warm(l->m, err);
    if (rc == 0) rc = session_create(out, l->e, o, err);
    if (rc == 0 && engine_arrange_bytes(l->e) <= left)   /* if it fails: slower, and no worse */
        (void)engine_arrange(l->e, &ignored);
    return rc;
}
