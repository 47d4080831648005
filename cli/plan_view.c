/* plan_view.c - prints a plan: as tables, as one line, as JSON.
 *
 * Shows what the plan says and computes nothing of its own but sums. */
#include "cli/plan_view.h"

#include <limits.h>
#include <stdio.h>

#include "cli/console.h"

#define INT(v) ((json_int_t)(v))

/* Layers with all, and experts in VRAM of the one that has some. */
typedef struct hot_count { int layers, more; } hot_count;

static hot_count count_hot(const plan_view *v)
{
    hot_count n = { 0, 0 };
    for (int l = 0; l < v->what->n_layer; l++) {
        if (v->p->hot[l] == v->what->n_expert) n.layers++;
        else n.more += v->p->hot[l];
    }
    return n;
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
    char chunk[32];
    total_row("VRAM", plan_vram(p));
    byte_row("dense weights", p->vram_dense, "%s",
             p->embed_in_ram ? "without the embedding table" : "");
    byte_row("context", p->vram_state, "keys, values, recurrent state");
    byte_row("work", p->vram_work, "prompts in chunks of %s tokens",
             text_count(chunk, sizeof chunk, (uint64_t)p->chunk));
    if (p->stage_parts > 0)
        byte_row("streaming", p->vram_stage, "two buffers, each for 1/%d of a layer's experts",
                 p->stage_parts);
    if (p->vram_pad > 0) byte_row("post-fetch", p->vram_pad, "slabs that cross the bus");
    if (hot.more > 0)
        byte_row("experts", p->vram_experts, "%d of %d layers, and %d of the next one's %d",
                 hot.layers, v->what->n_layer, hot.more, v->what->n_expert);
    else byte_row("experts", p->vram_experts, "%d of %d layers", hot.layers, v->what->n_layer);
}

static void print_ram(const plan_view *v)
{
    const plan *p = v->p;
    char locked[32];
    total_row("RAM", plan_ram(p));
    if (p->ram_experts > 0)
        byte_row("experts", p->ram_experts, "%s%s%s",
                 plan_uses_drive(v->p, v->what->n_layer) ? "the most recent ones" :
                 p->vram_experts > 0 ? "layers that are not whole in VRAM" : "all",
                 p->gpu ? ", page-locked " : "",
                 !p->gpu ? "" : text_bytes(locked, sizeof locked, p->ram_locked));
    if (p->ram_other > 0)
        byte_row("other", p->ram_other, "%s", p->gpu ? "buffers, snapshots" :
                 "dense weights, context, work");
    total_row("drive", p->disk_experts);
    if (p->disk_experts > 0) byte_row("experts", p->disk_experts, "read when they are wanted");
}

static void time_row(const char *what, double seconds)
{
    if (seconds > 0) printf("  %-18s %6.2f ms\n", what, seconds * 1e3);
}

static void print_speed(const plan_view *v)
{
    const plan *p = v->p;
    char chunk[32];
    printf("expected%s\n", v->measured ? "" : " (speeds not measured yet: assumed)");
    printf("  %-18s %6.1f tok/s, bound by %s; the links alone: %.1f\n", "answers", p->decode_tok_s,
           plan_bound_name(p->bound), p->limit_tok_s);
    printf("  %-18s %6.0f tok/s in chunks of %s", "prompts", p->prefill_tok_s,
           text_count(chunk, sizeof chunk, (uint64_t)p->chunk));
    if (p->stage_parts > 0 && p->stream_from <= p->chunk)
        printf("; from %d tokens on experts are streamed", p->stream_from);
    printf("\na token%s\n", p->gpu && p->vram_experts > 0 && plan_ram(p) > p->ram_other ?
           ": dense, then the others at the same time" : "");
    time_row("dense", p->t_dense);
    time_row("experts in VRAM", p->t_hot);
    time_row("experts on the CPU", p->t_cpu);
    time_row("over the bus", p->t_pull);
    time_row("from the drive", p->t_disk);
    time_row("questions", p->t_hop);
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
    if (p->gpu)
        snprintf(where, sizeof where, "VRAM %s with %d%s of %d layers' experts, ",
                 text_bytes(vram, sizeof vram, plan_vram(p)), hot.layers, hot.more ? "+" : "",
                 v->what->n_layer);
    snprintf(dst, cap, "%sRAM %s, drive %s; %.1f tok/s expected%s, bound by %s", where,
             text_bytes(ram, sizeof ram, plan_ram(p)),
             text_bytes(disk, sizeof disk, p->disk_experts), p->decode_tok_s,
             v->measured ? "" : " (not measured yet: assumed)", plan_bound_name(p->bound));
    return dst;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *vram_json(const plan_view *v)
{
    const plan *p = v->p;
    const hot_count hot = count_hot(v);
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:i, s:i, s:i, s:b}",
                     "total", INT(plan_vram(p)), "dense", INT(p->vram_dense),
                     "context", INT(p->vram_state), "work", INT(p->vram_work),
                     "streaming", INT(p->vram_stage), "post_fetch", INT(p->vram_pad),
                     "experts", INT(p->vram_experts), "stage_parts", p->stage_parts,
                     "layers_whole", hot.layers, "experts_of_next_layer", hot.more,
                     "embedding_in_ram", (int)p->embed_in_ram);
}

static json_t *terms_json(const plan *p)
{
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f}",
                     "dense", p->t_dense, "experts_in_vram", p->t_hot, "experts_on_cpu", p->t_cpu,
                     "bus", p->t_pull, "drive", p->t_disk, "questions", p->t_hop);
}

static json_t *speeds_json(const speeds *s)
{
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}",
                     "vram_read", s->vram_read, "pcie_in", s->pcie_in, "pcie_out", s->pcie_out,
                     "pull", s->pull, "pull_busy", s->pull_busy, "cpu", s->cpu,
                     "cpu_busy", s->cpu_busy, "cpu_many", s->cpu_many, "gpu_macs", s->gpu_macs,
                     "hop", s->hop, "disk", s->disk, "disk_straight", s->disk_straight);
}

/* A value that could not be made is NULL, and json_pack makes NULL of whatever it was meant for. */
json_t *plan_view_json(const plan_view *v)
{
    const plan *p = v->p;
    json_t *ram = json_pack("{s:I, s:I, s:I, s:I}", "total", INT(plan_ram(p)),
                            "experts", INT(p->ram_experts), "page_locked", INT(p->ram_locked),
                            "other", INT(p->ram_other));
    return json_pack("{s:b, s:i, s:o, s:o, s:I, s:f, s:f, s:f, s:s, s:o, s:o, s:b, s:o}",
                     "gpu", (int)p->gpu, "chunk", p->chunk, "vram", vram_json(v), "ram", ram,
                     "drive_experts", INT(p->disk_experts),
                     "answer_tokens_per_second", p->decode_tok_s,
                     "limit_tokens_per_second", p->limit_tok_s,
                     "prompt_tokens_per_second", p->prefill_tok_s,
                     "bound_by", plan_bound_name(p->bound), "token_seconds", terms_json(p),
                     "stream_from", p->stream_from == INT_MAX ? json_null() :
                     json_integer(p->stream_from),
                     "measured", (int)v->measured, "speeds", speeds_json(&p->rate));
}
