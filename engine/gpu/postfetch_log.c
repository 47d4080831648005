/* postfetch_log.c - repeats, from a question, where the device puts what it fetches.
 *
 * cuda/experts_with_host.cu lays the pad out: rooms of whole experts first, then rooms of down
 * slabs alone, both in the order of the choices. A room's size is not known here: it is what a
 * pad for it alone would take. */
#include "engine/gpu/postfetch_log.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef struct fetch_note {
    int n;                               /* choices; 0: nothing was noted */
    double s;
    int32_t ids[GPU_MOST_USED];
    uint8_t where[GPU_MOST_USED], by_host[GPU_MOST_USED];
} fetch_note;

struct postfetch_log {
    const model *m;
    int n_layer, pad_all;
    fetch_note *notes;                   /* [n_layer] */
    uint64_t *rooms;                     /* [n_layer, SLAB_COUNT] bytes */
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
        f->rooms = mem_array(n * SLAB_COUNT, sizeof *f->rooms);
    }
    if (!f || !f->notes || !f->rooms) {
        postfetch_log_free(f);
        return err_set(err, ERR_NOMEM, "a log of %zu layers", n);
    }
    for (int l = 0; l < n_layer; l++) {
        const layer_weights_gpu *of = &w->layers[l];
        const gpu_bank *banks[SLAB_COUNT] = { &of->gate, &of->up, &of->down };
        for (int s = 0; s < SLAB_COUNT; s++) {
            const gpu_expert_args alone = { .down = *banks[s] };
            f->rooms[(size_t)l * SLAB_COUNT + (size_t)s] = gpu_with_host_pad(&alone, 1, 0);
        }
    }
    *out = f;
    return 0;
}

void postfetch_log_free(postfetch_log *f)
{
    if (!f) return;
    mem_free(f->rooms);
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

/* The rest of a line; what does not fit is left out. */
typedef struct line_rest {
    char text[900];
    size_t used;
} line_rest;

static void add(line_rest *to, int expert, const char *what, uint64_t bytes, uint64_t at,
                bool unused)
{
    const size_t room = sizeof to->text - to->used;
    const int n = snprintf(to->text + to->used, room, "; expert %d %s %" PRIu64 " bytes at %" PRIu64
                           "%s", expert, what, bytes, at, unused ? ", not used" : "");
    if (n > 0 && (size_t)n < room) to->used += (size_t)n;
    else to->text[to->used] = '\0';
}

static void tell_layer(const postfetch_log *f, int layer, const fetch_note *note)
{
    static const char *const names[SLAB_COUNT] = { "gate", "up", "down" };
    const expert_bank *b = f->m->layers[layer].experts;
    const uint64_t *room = f->rooms + (size_t)layer * SLAB_COUNT;
    uint64_t whole = 0, alone = (uint64_t)f->pad_all * (room[0] + room[1] + room[2]);
    line_rest rest = { .used = 0 };
    for (int i = 0; i < note->n; i++) {
        const bool all = note->where[i] == GPU_FETCHED;
        for (int s = 0; s < SLAB_COUNT; s++) {
            uint64_t *at = all ? &whole : &alone;
            if (!all && (note->where[i] != GPU_COLD_FETCHED || s != SLAB_DOWN)) continue;
            add(&rest, note->ids[i], names[s], expert_slab_bytes(b, (expert_slab)s), *at,
                !all && note->by_host[i]);
            *at += room[s];
        }
    }
    log_line("post-fetch: layer %d, %.3f ms%s", layer, note->s * 1e3, rest.text);
}

void postfetch_log_write(postfetch_log *f)
{
    for (int l = 0; l < f->n_layer; l++) {
        if (f->notes[l].n > 0) tell_layer(f, l, &f->notes[l]);
        f->notes[l] = (fetch_note){ 0 };
    }
}
