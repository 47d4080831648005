/* expert_store_load.c - whole banks, or single experts, into RAM, from the drive or from the page
 * cache.
 *
 * A tensor begins at the same offset in its page of the arena as in the file, and shares no page,
 * so that direct reads can end at page ends; with RAM frames this holds for each slab. A tensor is
 * split into chunks: the team copies chunks in the page cache, while the others are read. */
#include "moe/expert_store_internal.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    CHUNK = 16 << 20,                    /* bytes; chunks begin at multiples of it in the file */
    WINDOW = 64,                         /* chunks that are prepared at a time */
    COPY = 256 << 10                     /* bytes that a thread copies at a time */
};

/* A chunk of a tensor: the reader's job, and the address in the mapping. */
typedef struct chunk {
    read_job job;
    const uint8_t *from;
} chunk;

typedef struct loading {
    expert_store *s;
    progress_fn *watch;
    void *watch_ctx;
    chunk *chunks;                       /* in order of addresses, unless they go to RAM frames */
    int n_chunk;
    bool *has_mincore;                   /* [part]: mincore reports the page cache correctly */
    uint64_t done, total;
} loading;

/* ---- the layout ------------------------------------------------------------------------------ */

static bool same_as_gate(const expert_bank *b, int slab)
{
    return slab == SLAB_UP && b->weight[SLAB_UP] == b->weight[SLAB_GATE];
}

static void count_chunks(loading *d, uint64_t offset, uint64_t bytes)
{
    d->n_chunk += (int)((offset + bytes - 1) / CHUNK - offset / CHUNK + 1);
    d->total += bytes;
}

/* Places all tensors of the served layers, from the arena's first byte on; while there is no arena,
 * as offsets. Returns the bytes, and counts tensors and chunks. */
static uint64_t place_banks(loading *d)
{
    expert_store *s = d->s;
    uint64_t at = 0;
    d->n_chunk = 0;
    d->total = 0;
    for (int l = 0; l < s->banks->n_layer; l++)
        for (int i = 0; s->served[l] && i < SLAB_COUNT; i++) {
            const expert_bank *b = store_bank(s, l);
            const tensor *t = b->weight[i];
            uint8_t **bank = &s->loaded[l * SLAB_COUNT + i];
            if (same_as_gate(b, i)) {
                *bank = bank[-1];
                continue;
            }
            const uint64_t first = at + t->offset % READER_PAGE;
            if (s->arena) *bank = s->arena + first;
            at = size_align(first + t->bytes, READER_PAGE);
            count_chunks(d, t->offset, t->bytes);
        }
    return at;
}

/* Bytes from .. from + bytes - 1 of a tensor. */
static void add_chunks(loading *d, const tensor *t, uint64_t from, uint64_t bytes, uint8_t *to)
{
    const uint64_t first = t->offset + from, end = first + bytes;
    for (uint64_t at = first; at < end;) {
        const uint64_t next = (at / CHUNK + 1) * CHUNK, n = (next < end ? next : end) - at;
        d->chunks[d->n_chunk++] = (chunk){
            .job = { .file = t->part, .offset = at, .bytes = n, .to = to + (at - first),
                     .tag = n },
            .from = t->data + (at - t->offset),
        };
        at += n;
    }
}

static void make_chunks(loading *d)
{
    const expert_store *s = d->s;
    d->n_chunk = 0;
    for (int l = 0; l < s->banks->n_layer; l++)
        for (int i = 0; s->served[l] && i < SLAB_COUNT; i++) {
            const expert_bank *b = store_bank(s, l);
            const tensor *t = b->weight[i];
            if (!same_as_gate(b, i)) add_chunks(d, t, 0, t->bytes, s->loaded[l * SLAB_COUNT + i]);
        }
}

/* ---- the page cache -------------------------------------------------------------------------- */

/* For files that the caller may not write to, mincore says that every page is in memory. */
static bool may_ask(const char *path)
{
    struct stat st;
    if (stat(path, &st) < 0) return false;
    return st.st_uid == geteuid() || access(path, W_OK) == 0;
}

static bool in_page_cache(const loading *d, const chunk *p)
{
    unsigned char there[CHUNK / READER_PAGE + 1];
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t from = (uintptr_t)p->from / page * page;
    const size_t bytes = (size_t)((uintptr_t)p->from - from + p->job.bytes);
    if (!d->has_mincore[p->job.file] || mincore((void *)from, bytes, there) < 0) return false;
    for (size_t i = 0; i < (bytes + page - 1) / page; i++)
        if (!(there[i] & 1)) return false;
    return true;
}

static void copy_parts(void *ctx, int64_t begin, int64_t end, int thread)
{
    const chunk *p = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        const uint64_t at = (uint64_t)i * COPY, left = p->job.bytes - at;
        memcpy(p->job.to + at, p->from + at, (size_t)(left < COPY ? left : COPY));
    }
}

/* ---- loading --------------------------------------------------------------------------------- */

static int tell(loading *d, err_ctx *err)
{
    if (!d->watch || d->watch(d->watch_ctx, d->done, d->total)) return 0;
    return err_set(err, ERR_STOPPED, "experts: stopped after %.1f of %.1f GB",
                   (double)d->done * 1e-9, (double)d->total * 1e-9);
}

/* Counts complete reads; waits until there are at least min. */
static int reap(loading *d, int min, err_ctx *err)
{
    uint64_t tags[WINDOW];
    if (!d->s->r) return 0;
    const int n = reader_wait(d->s->r, tags, WINDOW, min, err);
    if (n < 0) return n;
    for (int i = 0; i < n; i++) d->done += tags[i];
    return n > 0 ? tell(d, err) : 0;
}

/* Pieces first .. end - 1: sends the reads, then copies the others. */
static int load_window(loading *d, int first, int end, err_ctx *err)
{
    expert_store *s = d->s;
    read_job jobs[WINDOW];
    int copies[WINDOW], n_job = 0, n_copy = 0, rc;
    const read_job *last = &d->chunks[end - 1].job;

    if (!s->ram)
        store_touch(s, (uint64_t)(d->chunks[first].job.to - s->arena),
                    (uint64_t)(last->to - s->arena) + last->bytes);
    for (int i = first; i < end; i++) {
        if (!s->r || in_page_cache(d, &d->chunks[i])) copies[n_copy++] = i;
        else jobs[n_job++] = d->chunks[i].job;
    }
    if (n_job > 0 && (rc = reader_submit(s->r, jobs, n_job, err)) < 0) return rc;
    for (int i = 0; i < n_copy; i++) {
        chunk *p = &d->chunks[copies[i]];
        pool_run(s->team, (int64_t)((p->job.bytes + COPY - 1) / COPY), 1, copy_parts, p);
        d->done += p->job.bytes;
        if ((rc = tell(d, err)) < 0 || (rc = reap(d, 0, err)) < 0) return rc;
    }
    return reap(d, 0, err);
}

static int load_all(loading *d, err_ctx *err)
{
    int rc = tell(d, err);
    for (int i = 0; rc == 0 && i < d->n_chunk; i += WINDOW)
        rc = load_window(d, i, min_int(i + WINDOW, d->n_chunk), err);
    while (rc == 0 && d->s->r && reader_open_jobs(d->s->r) > 0) rc = reap(d, 1, err);
    d->s->stats.read_bytes = d->done;
    return rc;
}

static void publish_all(expert_store *s)
{
    expert_slabs at;
    for (int l = 0; s->locked > 0 && l < s->banks->n_layer; l++)
        for (int e = 0; s->served[l] && e < s->banks->n_expert; e++)
            if (expert_store_find(s, l, e, &at)) store_publish(s, l, e, &at);
}

/* Allocates the counted chunks. */
static int make_lists(loading *d, err_ctx *err)
{
    const gguf *g = d->s->banks->file;
    const size_t n_part = (size_t)gguf_n_part(g);
    d->has_mincore = mem_zalloc(n_part * sizeof *d->has_mincore);
    d->chunks = mem_array((size_t)max_int(d->n_chunk, 1), sizeof *d->chunks);
    if (!d->has_mincore || !d->chunks)
        return err_set(err, ERR_NOMEM, "experts: %d chunks", d->n_chunk);
    for (size_t i = 0; i < n_part; i++) d->has_mincore[i] = may_ask(gguf_part_path(g, (int)i));
    return 0;
}

static int load(loading *d, err_ctx *err)
{
    expert_store *s = d->s;
    int rc;

    s->loaded = mem_zalloc((size_t)s->banks->n_layer * SLAB_COUNT * sizeof *s->loaded);
    if (!s->loaded) return err_set(err, ERR_NOMEM, "experts: %d layers", s->banks->n_layer);
    const uint64_t bytes = place_banks(d);
    if ((rc = make_lists(d, err)) < 0 || (rc = store_map(s, bytes, err)) < 0) return rc;
    place_banks(d);
    make_chunks(d);
    if ((rc = load_all(d, err)) < 0) return rc;
    reader_close(s->r);
    s->r = NULL;
    store_lock(s);
    publish_all(s);
    return 0;
}

int store_load(expert_store *s, const store_options *o, err_ctx *err)
{
    loading d = { .s = s, .watch = o->watch, .watch_ctx = o->watch_ctx };
    const int rc = load(&d, err);
    mem_free(d.has_mincore);
    mem_free(d.chunks);
    return rc;
}

/* ---- RAM frames ------------------------------------------------------------------------------ */

/* Page-locks all frames before the first read, because any expert may get any frame. */
int store_make_ram_frames(expert_store *s, const int *in_vram, err_ctx *err)
{
    int rc = ram_frames_create(&s->ram, s->banks, in_vram, err);
    if (rc < 0 || (rc = store_map(s, ram_frames_bytes(s->ram), err)) < 0) return rc;
    store_touch(s, 0, s->arena_bytes);
    store_lock(s);
    return 0;
}

/* The chunks of an expert's slabs; counts them first. */
static void add_expert(loading *d, int layer, int expert, int frame)
{
    const expert_bank *b = store_bank(d->s, layer);
    for (int i = 0; i < SLAB_COUNT; i++) {
        const expert_slab slab = (expert_slab)i;
        const uint64_t from = slab_offset(b, slab, expert), bytes = expert_slab_bytes(b, slab);
        if (frame < 0) count_chunks(d, b->weight[i]->offset + from, bytes);
        else add_chunks(d, b->weight[i], from, bytes,
                        expert_store_frame_slab(d->s, frame, layer, expert, slab));
    }
}

/* Whether expert i, counted over all layers, exists and is outside VRAM. */
static bool has_frame(const expert_store *s, int i, const bool *in_vram)
{
    return store_bank(s, i / s->banks->n_expert)->n_expert > 0 && !in_vram[i];
}

static int fill_frames(loading *d, const bool *in_vram, err_ctx *err)
{
    expert_store *s = d->s;
    const int n_expert = s->banks->n_expert, n = s->banks->n_layer * n_expert;
    int rc;
    for (int i = 0; i < n; i++)
        if (has_frame(s, i, in_vram)) add_expert(d, i / n_expert, i % n_expert, -1);
    if ((rc = make_lists(d, err)) < 0) return rc;
    d->n_chunk = 0;
    for (int i = 0; i < n; i++) {
        if (!has_frame(s, i, in_vram)) continue;
        const int frame = ram_frames_take(s->ram, i / n_expert);
        if (frame < 0)
            return err_set(err, ERR_RANGE, "experts: no frame for expert %d of layer %d",
                           i % n_expert, i / n_expert);
        add_expert(d, i / n_expert, i % n_expert, frame);
        ram_frames_put(s->ram, frame, i / n_expert, i % n_expert);
    }
    return load_all(d, err);
}

int expert_store_fill(expert_store *s, const bool *in_vram, progress_fn *watch, void *watch_ctx,
                      err_ctx *err)
{
    loading d = { .s = s, .watch = watch, .watch_ctx = watch_ctx };
    const int rc = fill_frames(&d, in_vram, err);
    mem_free(d.has_mincore);
    mem_free(d.chunks);
    if (rc < 0) return rc;
    reader_close(s->r);
    s->r = NULL;
    for (int l = 0; l < s->banks->n_layer; l++) (void)expert_store_refresh(s, l);
    return 0;
}

ram_frames *expert_store_ram_frames(const expert_store *s) { return s->ram; }

uint8_t *expert_store_frame_slab(const expert_store *s, int frame, int layer, int expert,
                                 expert_slab slab)
{
    return s->arena + ram_frames_offset(s->ram, frame, layer, expert, slab);
}

bool expert_store_refresh(expert_store *s, int layer)
{
    expert_slabs at;
    if (!ram_frames_changed(s->ram, layer)) return false;
    for (int e = 0; e < s->banks->n_expert; e++) {
        const bool here = ram_frames_find(s->ram, layer, e) >= 0;
        if (here) expert_store_find(s, layer, e, &at);
        store_publish(s, layer, e, here ? &at : NULL);
    }
    return true;
}
