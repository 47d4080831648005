/* model_handle.c - opens a model for the verbs that compute, and reads its weights ahead.
 *
 * Reading ahead replaces thousands of page faults in the first tokens by one sequential read with a
 * progress bar. A file in the page cache costs one mincore() of the mapping. */
#include "cli/model_handle.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cli/args/engine_args.h"
#include "cli/args/tier_args.h"
#include "cli/cache_directory.h"
#include "cli/console.h"
#include "cli/demo_model.h"
#include "cli/expert_cache_files.h"
#include "cli/interrupt.h"
#include "cli/model_name.h"
#include "cuda/gpu.h"
#include "tiers/numa.h"
#include "tiers/page_advice.h"

/* ---- opening ------------------------------------------------------------------------------- */

/* More threads than cores are slower. */
static void note_threads(const model_handle *l)
{
    const int n_core = engine_args_cores(), n = engine_threads(l->e);
    if (n > n_core)
        console_note("%d threads on %d core%s are slow; the default is one per core", n,
                     n_core, n_core == 1 ? "" : "s");
}

void model_handle_say_gpu(const model_handle *l)
{
    const placement *p = l->where;
    if (!p) return;
    /* gpu_count() starts the driver, so it comes second */
    if (p->note[0] && (gpu_count() > 0 || cache_directory_first_time("no-gpu")))
        console_note("%s", p->note);
    if (p->p.gpu) cache_directory_forget("no-gpu");
    else tier_args_note_vram(&l->asked.wish, l->asked.device);
}

void model_handle_say_notes(const model_handle *l, bool formatted, bool effort_given)
{
    const engine_experts store = engine_expert_store(l->e);
    model_handle_say_gpu(l);
    if (store.note[0]) console_note("%s", store.note);
    if (l->asked.mtp && l->m->hp.n_mtp > 0 && !l->m->hp.uses_mtp)
        console_note("no memory for the next-token block: drafts come from repetitions alone");
    note_threads(l);
    if (!formatted) return;
    if (chat_note(l->format)) console_note("%s", chat_note(l->format));
    if (effort_given && chat_format_of(l->format) != CHAT_HARMONY && !chat_has_switch(l->format))
        console_note("--reasoning is ignored: this model has neither levels nor a switch of "
                     "reasoning");
}

const char *model_handle_kernels_text(char *text, size_t cap, const model_handle *l)
{
    quant_type types[QT_COUNT];
    const int n = engine_slow_types(l->e, types);
    int used = engine_on_gpu(l->e) ? snprintf(text, cap, "%s, GEMM %s", engine_gpu_name(l->e),
                                              engine_gemm(l->e))
                                   : snprintf(text, cap, "%s kernels", engine_kernels(l->e));
    for (int i = 0; i < n && (size_t)used < cap; i++)
        used += snprintf(text + used, cap - (size_t)used, "%s%s%s",
                         i == 0 ? " (no fast ones for " : ", ", quant_name(types[i]),
                         i + 1 < n ? "" : ")");
    return text;
}

json_t *model_handle_slow_json(const model_handle *l)
{
    quant_type types[QT_COUNT];
    const int n = engine_slow_types(l->e, types);
    json_t *list = json_array();
    for (int i = 0; i < n; i++) json_array_append_new(list, json_string(quant_name(types[i])));
    return list;
}

const char *model_handle_copy_text(char *text, size_t cap, const model_handle *l)
{
    const uint64_t copy = engine_repacked_bytes(l->e);
    char bytes[32];
    if (cap) text[0] = '\0';
    if (copy > 0)
        snprintf(text, cap, ", repacked head %s", text_bytes(bytes, sizeof bytes, copy));
    return text;
}

int model_handle_fail(const char *what, const err_ctx *err)
{
    if (err->code == ERR_STOPPED && interrupted()) return interrupt_exit_code();
    if (what) return console_fail(what, err);
    console_error("%s", err->msg);
    return 1;
}

/* Adds advice to a message. */
static int advise(int rc, const char *what, err_ctx *err)
{
    err_ctx said = *err;
    return err_set(err, rc, "%s; %s", said.msg, what);
}

/* Each move (to VRAM, to RAM) counts from 0. */
typedef struct move_bar {
    progress bar;
    uint64_t before, last;
} move_bar;

static bool watch_move(void *ctx, double done, double total)
{
    move_bar *b = ctx;
    (void)total;
    if (done < b->last) b->before += b->last;
    b->last = done;
    progress_update(&b->bar, b->before + done);
    return !interrupted();
}

int model_handle_open(model_handle *out, const load_options *o, err_ctx *err)
{
    topology here;
    int rc;
    topology_read_nodes(&here, "");
    numa_spread(&here);                  /* before the first page, and before threads are started */
    *out = (model_handle){ .path = o->path ? o->path : DEMO_MODEL_NAME, .asked = o->where };
    rc = o->path ? model_name_open(&out->file, o->path, err)
                 : gguf_open_memory(&out->file, demo_model_data, demo_model_bytes(), err);
    if (rc == 0) rc = model_bind(&out->m, out->file, err);
    if (rc == 0 && o->with_text) {
        rc = tokenizer_create(&out->tok, out->file, err);
        if (rc == 0) rc = encoder_create(&out->enc, out->tok, err);
        if (rc == 0) rc = chat_create(&out->format, out->file, out->tok, err);
    }
    if (rc == 0) model_use_mtp(out->m, o->where.mtp);
    if (rc == 0) rc = engine_open(&out->e, out->m, &o->where.engine, err);
    if (rc < 0) model_handle_close(out);
    return rc;
}

int model_handle_use_experts(model_handle *l, int n, err_ctx *err)
{
    engine_close(l->e);
    mem_free(l->where);
    l->e = NULL;
    l->where = NULL;
    const int rc = model_use_experts(l->m, n, err);
    return rc < 0 ? rc : engine_open(&l->e, l->m, &l->asked.engine, err);
}

void model_handle_close(model_handle *l)
{
    engine_close(l->e);
    mem_free(l->where);
    chat_free(l->format);
    encoder_free(l->enc);
    tokenizer_free(l->tok);
    model_free(l->m);
    gguf_close(l->file);
    *l = (model_handle){ 0 };
}

/* ---- reading ahead ------------------------------------------------------------------------- */

enum { WARM_BYTES = 16 << 20 };          /* per mincore(): 4096 pages of 4 KiB */

typedef struct warming {
    int n_layer;                         /* MTP blocks after these are not used */
    bool dense_only;                     /* experts are read on demand */
    bool embed_by_row;                   /* the table may leave memory: rows are read on demand */
    size_t page;
    uint64_t missing;                    /* bytes not in memory: counted by the first walk */
    uint64_t done;
    bool touch;                          /* the second walk: read them */
    progress bar;
    unsigned sum;                        /* of bytes read, so that no read is optimised away */
    bool stopped;
} warming;

/* Up to WARM_BYTES of the mapping, in whole pages. */
static void warm_piece(warming *w, const uint8_t *at, size_t bytes)
{
    unsigned char resident[WARM_BYTES / 4096];           /* pages are 4 KiB or larger */
    const size_t n_page = (bytes + w->page - 1) / w->page;
    size_t missing = 0;

    if (mincore((void *)at, bytes, resident) < 0) return;
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
    if (layer >= w->n_layer) return;
    if (w->dense_only && use >= USE_EXPERT_GATE && use <= USE_EXPERT_DOWN) return;
    for (uintptr_t at = first; at < end; at += WARM_BYTES) {
        /* several pieces ahead: the disk never waits. 2.1 GB cold: 1.5 s; one piece: 5.8 s */
        const size_t left = end - at, ahead = 4 * (size_t)WARM_BYTES;
        if ((w->stopped |= interrupted())) return;
        if (w->touch) madvise((void *)at, left < ahead ? left : ahead, MADV_WILLNEED);
        warm_piece(w, (const uint8_t *)at, left < WARM_BYTES ? left : WARM_BYTES);
    }
    if (use == USE_EMBED && w->embed_by_row) pages_forget(t->data, t->bytes);
}

static int warm(const model *m, bool dense_only, err_ctx *err)
{
    warming w = { .n_layer = hparams_layers(&m->hp), .dense_only = dense_only,
                  .embed_by_row = !m->head_tied && gguf_part_path(m->file, 0)[0] != '\0',
                  .page = (size_t)sysconf(_SC_PAGESIZE) };
    model_visit(m, warm_tensor, &w);
    if (w.missing > 0) {
        w.touch = true;
        progress_begin(&w.bar, "loading", w.missing);
        model_visit(m, warm_tensor, &w);
        progress_end(&w.bar);
    }
    return w.stopped ? err_set(err, ERR_STOPPED, "interrupted") : 0;
}

/* ---- placement ------------------------------------------------------------------------------- */

static bool on_drive(const placement *p)
{
    return plan_uses_drive(&p->p, p->in.model.n_layer);
}

/* Bytes that engine_place moves. */
static uint64_t bytes_to_move(const placement *p)
{
    return p->p.vram.dense + p->p.vram.experts + (on_drive(p) ? 0 : p->p.ram.experts);
}

/* *begun: bytes were moved. All VRAM for weights is allocated before the first move, so a later
 * lack of memory is of RAM. */
static int move(model_handle *l, bool *begun, err_ctx *err)
{
    move_bar b = { .before = 0 };
    int n_expert, n_pin, rc;
    if (!l->where->p.gpu && !on_drive(l->where))
        return warm(l->m, false, err);   /* weights stay in the mapped file */
    int *experts = expert_cache_files_recall(&n_expert, &n_pin, l->where, &l->asked, l->m);
    const engine_placement to = { .gpu = l->where->p.gpu, .plan = &l->where->p,
                                  .postfetch = &l->asked.post, .gemm = &l->where->gemm,
                                  .cache = l->asked.cache, .experts = experts, .n_expert = n_expert,
                                  .watch = watch_move, .watch_ctx = &b };
    progress_begin(&b.bar, "loading", bytes_to_move(l->where));
    rc = engine_place(l->e, &to, err);
    progress_end(&b.bar);
    if (rc == 0 && experts) engine_pin(l->e, experts, n_pin);
    mem_free(experts);
    *begun = b.before + b.last > 0;
    /* dense weights that the CPU reads: all, or those of the last layers */
    return rc == 0 && l->where->p.head == PLAN_RAM ? warm(l->m, true, err) : rc;
}

/* Lowers the limit of the memory that was lacking. */
static void ask_for_less(placement_options *o, const plan *p, bool of_ram)
{
    if (of_ram) o->wish.ram = plan_ram(p) / 8 * 7;
    else o->wish.vram = plan_vram(p) / 8 * 7;
}

/* Takes the plan's chunk if the wished one does not fit. */
static void settle_chunk(session_options *so, int planned)
{
    const int wished = min_int(so->chunk, so->ctx);
    if (wished > planned)
        console_note("chunks of %d tokens instead of %d: memory is short", planned, wished);
    if (so->chunk == 0 || so->chunk > planned) so->chunk = planned;
}

enum { PLACE_TRIES = 3 };

int model_handle_place(model_handle *l, session_options *so, err_ctx *err)
{
    placement_options o = l->asked;
    err_ctx lacking = { 0 };             /* of the last try */
    int rc;
    if (l->where) return 0;
    l->where = mem_zalloc(sizeof *l->where);
    if (!l->where) return err_set(err, ERR_NOMEM, "plan: %zu bytes", sizeof *l->where);
    for (int i = 0;; i++) {
        bool begun = false;
        rc = placement_make(l->where, l->m, l->e, &o, so, err);
        if (rc == ERR_NOMEM && i > 0) *err = lacking;
        if (rc < 0 || (rc = move(l, &begun, err)) != ERR_NOMEM || i == PLACE_TRIES) break;
        console_note("%s; planning again with less memory", err->msg);
        lacking = *err;
        ask_for_less(&o, &l->where->p, begun || !l->where->p.gpu);
        if (i + 1 == PLACE_TRIES && o.device == DEVICE_AUTO) o.device = DEVICE_CPU;
    }
    if (rc == 0) {
        settle_chunk(so, l->where->p.chunk);
        return 0;
    }
    mem_free(l->where);
    l->where = NULL;
    return rc;
}

/* ---- sessions ------------------------------------------------------------------------------ */

int model_handle_plan(model_handle_bytes *out, const model_handle *l, const session_options *o,
                      err_ctx *err)
{
    model_bytes weights;
    uint64_t ses, vram;
    const int rc = session_plan(&ses, &vram, l->e, o, err);

    if (rc < 0) return rc;
    model_count_bytes(&weights, l->m);
    *out = (model_handle_bytes){ .weights = weights.dense + weights.experts,
                                  .session = engine_on_gpu(l->e) ? vram : ses };
    if (engine_on_gpu(l->e)) out->weights = engine_gpu_bytes(l->e);
    return 0;
}

int model_handle_session(session **out, model_handle *l, session_options *o, err_ctx *err)
{
    model_handle_bytes need;
    err_ctx ignored;
    int rc = model_handle_plan(&need, l, o, err);
    *out = NULL;
    if (rc == 0) rc = model_handle_place(l, o, err);
    if (rc == 0) rc = session_create(out, l->e, o, err);
    if (rc == ERR_NOMEM && engine_on_gpu(l->e))
        return advise(rc, "use a smaller --ctx or --chunk, --kv q8_0, or --device cpu", err);
    if (rc == 0 && l->where->p.ram.copy > 0)
        (void)engine_repack_head(l->e, &ignored);        /* a failure only makes decoding slower */
    return rc;
}
