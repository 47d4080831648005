/* postfetch_log.c - computes, from a question, the pad offsets of the slabs that the device
 * fetches.
 *
 * cuda/experts_with_host.cu lays the pad out: whole experts first, then down slabs alone, both in
 * the order of the choices. A slab takes as many bytes as a pad for that slab alone. */
#include "engine/gpu/postfetch_log.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef struct fetch_note {
    int n;                               /* choices; 0: no question */
    double s;
    int32_t ids[GPU_MOST_USED];
    uint8_t where[GPU_MOST_USED], by_host[GPU_MOST_USED];
} fetch_note;

struct postfetch_log {
    const model *m;
    int n_layer, pad_all;
    fetch_note *notes;                   /* [n_layer] */
    uint64_t *pad_bytes;                 /* [n_layer, SLAB_COUNT] that a slab takes in the pad */
};

int postfetch_log_create(postfetch_log **out, const model *m, const weights_gpu *w, int n_layer,
                         int pad_all, err_ctx *err)
{
    const size_t n = (size_t)n_layer;
    postfetch_log *f = mem_zalloc(sizeof *f);
    *out = NULL;
    if (f) {
        *f = (postfetch_log){ .m = m, .n_layer = n_layer, .pad_all = pad_all };
        f->notes = mem_zalloc(n * sizeof *f->notes);
        f->pad_bytes = mem_array(n * SLAB_COUNT, sizeof *f->pad_bytes);
    }
    if (!f || !f->notes || !f->pad_bytes) {
        postfetch_log_free(f);
        return err_set(err, ERR_NOMEM, "a log of %zu layers", n);
    }
    for (int l = 0; l < n_layer; l++) {
        const layer_weights_gpu *of = &w->layers[l];
        const gpu_bank *banks[SLAB_COUNT] = { &of->gate, &of->up, &of->down };
        for (int s = 0; s < SLAB_COUNT; s++) {
            const gpu_expert_args alone = { .down = *banks[s] };
            f->pad_bytes[(size_t)l * SLAB_COUNT + (size_t)s] = gpu_with_host_pad(&alone, 1, 0);
        }
    }
    *out = f;
    return 0;
}

void postfetch_log_free(postfetch_log *f)
{
    if (!f) return;
    mem_free(f->pad_bytes);
    mem_free(f->notes);
    mem_free(f);
}

void postfetch_log_note(postfetch_log *f, int layer, const gpu_mailbox *mailbox)
{
    fetch_note *note = &f->notes[layer];
    const size_t n = (size_t)mailbox->k;
    note->n = mailbox->k;
    memcpy(note->ids, mailbox->ids, n * sizeof *note->ids);
    memcpy(note->where, mailbox->where, n);
    memcpy(note->by_host, mailbox->by_host, n);
}

void postfetch_log_time(postfetch_log *f, int layer, double seconds)
{
    f->notes[layer].s = seconds;
}

/* The rest of a line. A slab that does not fit is left out. */
typedef struct line_rest {
    char text[900];
    size_t used;
} line_rest;

static void add(line_rest *line, int expert, const char *slab, uint64_t bytes, uint64_t offset,
                bool unused)
{
    const size_t left = sizeof line->text - line->used;
    const int n = snprintf(line->text + line->used, left, "; expert %d %s %" PRIu64 " bytes at %"
                           PRIu64 "%s", expert, slab, bytes, offset, unused ? ", not used" : "");
    if (n > 0 && (size_t)n < left) line->used += (size_t)n;
    else line->text[line->used] = '\0';
}

static void write_layer(const postfetch_log *f, int layer, const fetch_note *note)
{
    static const char *const names[SLAB_COUNT] = { "gate", "up", "down" };
    const expert_bank *b = f->m->layers[layer].experts;
    const uint64_t *bytes = f->pad_bytes + (size_t)layer * SLAB_COUNT;
    uint64_t whole = 0, alone = (uint64_t)f->pad_all * (bytes[0] + bytes[1] + bytes[2]);
    line_rest rest = { .used = 0 };
    for (int i = 0; i < note->n; i++) {
        const bool all = note->where[i] == GPU_FETCHED;
        for (int s = 0; s < SLAB_COUNT; s++) {
            uint64_t *offset = all ? &whole : &alone;
            if (!all && (note->where[i] != GPU_COLD_FETCHED || s != SLAB_DOWN)) continue;
            add(&rest, note->ids[i], names[s], expert_slab_bytes(b, (expert_slab)s), *offset,
                !all && note->by_host[i]);
            *offset += bytes[s];
        }
    }
    log_line("post-fetch: layer %d, %.3f ms%s", layer, note->s * 1e3, rest.text);
}

void postfetch_log_write(postfetch_log *f)
{
    for (int l = 0; l < f->n_layer; l++) {
        if (f->notes[l].n > 0) write_layer(f, l, &f->notes[l]);
        f->notes[l] = (fetch_note){ 0 };
    }
}
