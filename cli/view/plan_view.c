/* plan_view.c - prints a plan: as tables, as one line, as JSON.
 *
 * Computes only sums of the plan's fields. */
#include "cli/view/plan_view.h"

#include <limits.h>
#include <stdio.h>
#include <time.h>

#include "cli/console.h"

#define INT(v) ((json_int_t)(v))

/* layers: with all experts in VRAM; more: VRAM experts of the layer that has only some; first: of
 * the first layer with experts. */
typedef struct hot_count { int layers, more, first; } hot_count;

static hot_count count_hot(const plan_view *v)
{
    hot_count n = { 0, 0, -1 };
    for (int l = 0; l < v->model->n_layer; l++) {
        if (v->model->expert_bytes[l] == 0) continue;
        if (n.first < 0) n.first = v->p->hot[l];
        if (v->p->hot[l] == v->model->n_expert) n.layers++;
        else n.more += v->p->hot[l];
    }
    return n;
}

/* "2026-11-16", or date and time in UTC for scripts. */
static const char *text_date(char *dst, size_t cap, int64_t date, bool whole)
{
    const time_t seconds = (time_t)date;
    struct tm tm;
    if (!(whole ? gmtime_r(&seconds, &tm) : localtime_r(&seconds, &tm)) ||
        strftime(dst, cap, whole ? "%Y-%m-%dT%H:%M:%SZ" : "%Y-%m-%d", &tm) == 0)
        dst[0] = '\0';
    return dst;
}

/* The origin of the speeds. */
static const char *text_source(char *dst, size_t cap, const plan_view *v)
{
    char date[32];
    if (!v->measured)
        snprintf(dst, cap, "assumed speeds: not measured on this machine for these weights; "
                 "--measure measures them");
    else
        snprintf(dst, cap, "measured%s%s", v->date ? " " : "",
                 v->date ? text_date(date, sizeof date, v->date, false) : "");
    return dst;
}

/* ---- tables ---------------------------------------------------------------------------------- */

static void byte_row(const char *what, uint64_t bytes, const char *fmt, ...) PRINTF_LIKE(3, 4);
static void byte_row(const char *what, uint64_t bytes, const char *fmt, ...)
{
    char text[32], about[160];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(about, sizeof about, fmt, ap);
    va_end(ap);
    printf("  %-18s %9s%s%s\n", what, text_bytes(text, sizeof text, bytes), about[0] ? "  " : "",
           about);
}

static void total_row(const char *what, uint64_t bytes)
{
    char text[32];
    printf("%-20s %9s\n", what, text_bytes(text, sizeof text, bytes));
}

static void print_vram(const plan_view *v)
{
    const plan *p = v->p;
    const hot_count hot = count_hot(v);
    const int n_bank = plan_n_bank(v->model);
    char chunk[32], lent[32];
    total_row("VRAM", plan_vram(p));
    if (p->head == PLAN_RAM)
        byte_row("dense weights", p->vram.dense, "of the first %d of %d layers",
                 plan_gpu_layers(p, v->model->n_layer), v->model->n_layer);
    else
        byte_row("dense weights", p->vram.dense, "%s",
                 p->embed == PLAN_RAM ? "all but the experts and the token embeddings" :
                                   "all but the experts");
    if (p->vram_lent > 0)
        byte_row("context", p->vram.state, "keys, values, recurrent state; as it grows, up to %s "
                 "more from the experts", text_bytes(lent, sizeof lent, p->vram_lent));
    else byte_row("context", p->vram.state, "keys, values, recurrent state");
    byte_row("buffers", p->vram.work, "for prompts in chunks of %s tokens",
             text_count(chunk, sizeof chunk, (uint64_t)p->chunk));
    if (p->stage_ranges > 0)
        byte_row("streaming", p->vram.stage, "two buffers, each for 1/%d of a layer's experts",
                 p->stage_ranges);
    if (p->vram.pad > 0)
        byte_row("post-fetch", p->vram.pad, "down matrices that are fetched over the bus");
    if (p->cache)
        byte_row("experts", p->vram.experts, "%d of each layer's %d, the most used",
                 hot.first, v->model->n_expert);
    else if (hot.more > 0)
        byte_row("experts", p->vram.experts, "%d of %d layers, and %d of %d in the next one",
                 hot.layers, n_bank, hot.more, v->model->n_expert);
    else byte_row("experts", p->vram.experts, "%d of %d layers", hot.layers, n_bank);
}

/* Of the CPU, or a GPU's buffers. */
static uint64_t ram_other(const plan *p) { return p->ram.dense + p->ram.state + p->ram.work; }

static void print_ram(const plan_view *v)
{
    const plan *p = v->p;
    total_row("RAM", plan_ram(p));
    byte_row("program", p->ram.program, "code, tokenizer");
    if (p->ram.experts > 0)
        byte_row("experts", p->ram.experts, "%s%s",
                 plan_uses_drive(v->p, v->model->n_layer) ? "the most used" :
                 p->moved ? "outside VRAM, exchanged with it at run time" :
                 p->vram.experts > 0 && !p->cache ? "of layers that are not entirely in VRAM" :
                 "all",
                 p->gpu ? ", page-locked" : "");
    if (ram_other(p) > 0)
        byte_row("other", ram_other(p), "%s",
                 !p->gpu ? "dense weights, context, buffers" :
                 p->head == PLAN_RAM ? "dense weights, context, buffers of the layers on the CPU" :
                 "buffers, snapshots");
    if (p->ram.copy > 0)
        byte_row("repacked head", p->ram.copy, "a copy in a faster layout, if RAM suffices");
    total_row("drive", p->drive.experts);
    if (p->drive.experts > 0) byte_row("experts", p->drive.experts, "read on demand");
}

static void time_row(const char *what, double seconds)
{
    if (seconds > 0) printf("  %-18s %6.2f ms\n", what, seconds * 1e3);
}

static void print_speed(const plan_view *v)
{
    const plan *p = v->p;
    char chunk[32], source[160];
    printf("expected (%s)\n", text_source(source, sizeof source, v));
    printf("  %-18s %6.1f tok/s, bound by %s; at most %.1f without delays\n", "answers",
           p->decode_tok_s, plan_bound_name(p->bound), p->limit_tok_s);
    printf("  %-18s %6.0f tok/s in chunks of %s", "prompts", p->prefill_tok_s,
           text_count(chunk, sizeof chunk, (uint64_t)p->chunk));
    if (p->split_from < p->stream_from && p->split_from <= p->chunk)
        printf("; experts are split between bus and cores from %d tokens on", p->split_from);
    if (p->stage_ranges > 0 && p->stream_from <= p->chunk)
        printf("%s streamed from %d tokens on",
               p->split_from < p->stream_from ? "," : "; experts are", p->stream_from);
    if (p->gpu && v->gemm && v->gemm[0]) printf("; GEMM: %s", v->gemm);
    printf("\ntime per token%s\n", p->gpu && p->vram.experts > 0 && p->ram.experts > 0 ?
           ": dense weights first, then the rest at the same time" : "");
    time_row("dense weights", p->t_dense);
    time_row("experts in VRAM", p->t_hot);
    time_row("experts on the CPU", p->t_cpu);
    time_row("over the bus", p->t_pull);
    time_row("from the drive", p->t_disk);
    time_row("round trips", p->t_hop);
}

void plan_view_print(const plan_view *v)
{
    if (v->p->gpu) print_vram(v);
    print_ram(v);
    print_speed(v);
}

/* ---- one line -------------------------------------------------------------------------------- */

const char *plan_view_line(char *dst, size_t cap, const plan_view *v)
{
    const plan *p = v->p;
    const hot_count hot = count_hot(v);
    char vram[32], ram[32], disk[32], where[128] = "";
    if (p->gpu && p->head == PLAN_RAM)
        snprintf(where, sizeof where, "VRAM %s with the first %d of %d layers, ",
                 text_bytes(vram, sizeof vram, plan_vram(p)),
                 plan_gpu_layers(p, v->model->n_layer), v->model->n_layer);
    else if (p->gpu)
        snprintf(where, sizeof where, "VRAM %s with %d%s of %d layers' experts, ",
                 text_bytes(vram, sizeof vram, plan_vram(p)), hot.layers, hot.more ? "+" : "",
                 plan_n_bank(v->model));
    snprintf(dst, cap, "%sRAM %s, drive %s; %.1f tok/s expected%s, bound by %s", where,
             text_bytes(ram, sizeof ram, plan_ram(p)),
             text_bytes(disk, sizeof disk, p->drive.experts), p->decode_tok_s,
             v->measured ? "" : " (assumed, not measured)",
             plan_bound_name(p->bound));
    return dst;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *vram_json(const plan_view *v)
{
    const plan *p = v->p;
    const hot_count hot = count_hot(v);
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:b, s:i, s:i, s:i, s:i, s:b, "
                     "s:b}", "total", INT(plan_vram(p)), "dense", INT(p->vram.dense),
                     "context", INT(p->vram.state), "context_from_experts", INT(p->vram_lent),
                     "work", INT(p->vram.work),
                     "streaming", INT(p->vram.stage), "post_fetch", INT(p->vram.pad),
                     "experts", INT(p->vram.experts), "cache", (int)p->cache,
                     "moved", (int)p->moved, "stage_parts", p->stage_ranges,
                     "dense_layers", plan_gpu_layers(p, v->model->n_layer),
                     "layers_whole", hot.layers, "experts_of_next_layer", hot.more,
                     "embedding_in_ram", p->gpu && p->embed == PLAN_RAM,
                     "head_in_ram", p->head == PLAN_RAM);
}

static json_t *terms_json(const plan *p)
{
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f}",
                     "dense", p->t_dense, "experts_in_vram", p->t_hot, "experts_on_cpu", p->t_cpu,
                     "bus", p->t_pull, "drive", p->t_disk, "questions", p->t_hop);
}

static json_t *points_json(const double points[SPEEDS_GEMM_POINTS])
{
    return json_pack("[f, f, f, f]", points[0], points[1], points[2], points[3]);
}

json_t *plan_view_speeds_json(const speeds *s)
{
    return json_pack(
        "{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, "
        "s:o, s:o}",
        "vram_read", s->vram_read, "pcie_in", s->pcie_in, "pcie_out", s->pcie_out, "pull", s->pull,
        "pull_busy", s->pull_busy, "cpu", s->cpu, "cpu_busy", s->cpu_busy, "cpu_dense",
        s->cpu_dense, "cpu_many", s->cpu_many, "gpu_macs", s->gpu_macs, "hop", s->hop, "disk",
        s->disk, "layer_dense", s->layer_dense, "layer_hot", s->layer_hot, "layer_cpu",
        s->layer_cpu, "disk_wait", s->disk_wait, "gemm_own", points_json(s->gemm_own),
        "gemm_vendor", points_json(s->gemm_vendor));
}

static json_t *source_json(const plan_view *v)
{
    char date[32];
    if (!v->measured || v->date == 0) return json_null();
    return json_pack("{s:s}", "date", text_date(date, sizeof date, v->date, true));
}

/* json_pack returns NULL if a value is NULL, so one check at the end finds all failures. */
json_t *plan_view_json(const plan_view *v)
{
    const plan *p = v->p;
    json_t *ram = json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "total", INT(plan_ram(p)),
                            "program", INT(p->ram.program), "experts", INT(p->ram.experts),
                            "page_locked", INT(p->gpu ? p->ram.experts : 0),
                            "other", INT(ram_other(p)), "repacked_head", INT(p->ram.copy));
    return json_pack("{s:b, s:i, s:o, s:o, s:I, s:f, s:f, s:f, s:s, s:o, s:o, s:o, s:b, s:o, s:o, "
                     "s:s}",
                     "gpu", (int)p->gpu, "chunk", p->chunk, "vram", vram_json(v), "ram", ram,
                     "drive_experts", INT(p->drive.experts),
                     "answer_tokens_per_second", p->decode_tok_s,
                     "limit_tokens_per_second", p->limit_tok_s,
                     "prompt_tokens_per_second", p->prefill_tok_s,
                     "bound_by", plan_bound_name(p->bound), "token_seconds", terms_json(p),
                     "stream_from", p->stream_from == INT_MAX ? json_null() :
                     json_integer(p->stream_from),
                     "split_from", p->split_from == INT_MAX ? json_null() :
                     json_integer(p->split_from),
                     "measured", (int)v->measured, "measurement", source_json(v),
                     "speeds", plan_view_speeds_json(&p->rate),
                     "gemm", p->gpu && v->gemm ? v->gemm : "");
}
