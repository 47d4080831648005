/* expert_store.c - common to all kinds of stores: memory, page-locking, addresses, counts.
 *
 * An address in the table is that of a complete, page-locked slab, or 0. expert_store_load.c and
 * expert_store_cache.c bring bytes into the arena. */
#include "moe/expert_store_internal.h"

#include <stdio.h>
#include <string.h>

#include "cuda/gpu.h"
#include "tiers/fault_injection.h"
#include "tiers/page_advice.h"


/* ---- memory ---------------------------------------------------------------------------------- */

int store_map(expert_store *s, uint64_t bytes, err_ctx *err)
{
    void *arena;
    if (bytes == 0) return 0;
    if (bytes > SIZE_MAX - HUGE_PAGE)
        return err_set(err, ERR_NOMEM, "experts: %llu bytes", (unsigned long long)bytes);
    bytes = size_align(bytes, HUGE_PAGE);
    const int rc = pages_map(&arena, (size_t)bytes, PAGES_HUGE, err);
    if (rc < 0) return err_prefix(err, rc, "experts");
    s->arena = arena;
    s->arena_bytes = bytes;
    return 0;
}

void store_touch(expert_store *s, uint64_t from, uint64_t to)
{
    const uint64_t first = from & ~(uint64_t)(READER_PAGE - 1);
    pages_touch(s->arena + first, (size_t)(to - first), s->team);
}

void store_add_note(expert_store *s, const char *text)
{
    const size_t used = strlen(s->note);
    if (*text)
        snprintf(s->note + used, sizeof s->note - used, "%s%s", used > 0 ? "; " : "", text);
}

/* Of the piece that begins at `at`: pieces end where copies are cut, too. */
static uint64_t piece_bytes(const expert_store *s, uint64_t at, uint64_t end)
{
    const uint64_t n = GPU_LOCK_PIECE - (uint64_t)(uintptr_t)(s->arena + at) % GPU_LOCK_PIECE;
    return n < end - at ? n : end - at;
}

void store_lock(expert_store *s)
{
    char text[128];
    if (!s->device) return;
    while (s->table && s->locked < s->arena_bytes) {
        const uint64_t n = piece_bytes(s, s->locked, s->arena_bytes);
        if (fault_hits(FAULT_PAGE_LOCK) || gpu_lock(s->device, s->arena + s->locked, n, NULL) < 0)
            break;
        s->locked += n;
    }
    if (s->locked == s->arena_bytes) return;
    snprintf(text, sizeof text, "page-locked %.1f of %.1f GB: the system refuses more",
             (double)s->locked * 1e-9, (double)s->arena_bytes * 1e-9);
    store_add_note(s, text);
}

static void unlock(expert_store *s)
{
    for (uint64_t at = 0; at < s->locked; at += piece_bytes(s, at, s->locked))
        gpu_unlock(s->device, s->arena + at);
}

/* ---- the table ------------------------------------------------------------------------------- */

static uint64_t *table_of(const expert_store *s, int layer, int expert)
{
    return s->table + ((size_t)layer * (size_t)s->banks->n_expert + (size_t)expert) * SLAB_COUNT;
}

/* Without a table there is nothing to page-lock for. */
static void make_table(expert_store *s)
{
    const expert_banks *b = s->banks;
    const size_t n = (size_t)b->n_layer * (size_t)b->n_expert * SLAB_COUNT;
    if (!s->device) return;
    s->table = fault_hits(FAULT_PAGE_LOCK) ? NULL
             : gpu_alloc_host(s->device, n * sizeof *s->table, NULL);
    if (s->table) memset(s->table, 0, n * sizeof *s->table);
}

void store_publish(expert_store *s, int layer, int expert, const expert_slabs *at)
{
    const expert_bank *b = store_bank(s, layer);
    if (!s->table) return;
    uint64_t *entry = table_of(s, layer, expert);
    for (int i = 0; i < SLAB_COUNT; i++) {
        const uint64_t bytes = expert_slab_bytes(b, (expert_slab)i);
        const bool locked = at && (uint64_t)(at->at[i] - s->arena) + bytes <= s->locked;
        entry[i] = locked ? (uint64_t)(uintptr_t)at->at[i] : 0;
    }
}

const uint64_t *expert_store_table(const expert_store *s, int layer)
{
    return s->table ? table_of(s, layer, 0) : NULL;
}

/* ---- making one ------------------------------------------------------------------------------ */

/* All parts of the file; none if the model is in memory. */
static int open_reader(expert_store *s, const reader_options *o, err_ctx *err)
{
    const gguf *g = s->banks->file;
    const int n = gguf_n_part(g);
    const char *note = "";
    if (!*gguf_part_path(g, 0)) return 0;
    const char **paths = mem_array((size_t)n, sizeof *paths);
    if (!paths) return err_set(err, ERR_NOMEM, "experts: %d paths", n);
    for (int i = 0; i < n; i++) paths[i] = gguf_part_path(g, i);
    const int rc = reader_open(&s->r, paths, n, o, &note, err);
    mem_free(paths);
    if (rc < 0) return rc;
    snprintf(s->reader_name, sizeof s->reader_name, "%s", reader_name(s->r));
    store_add_note(s, note);
    return 0;
}

static int fill_store(expert_store *s, const store_options *o, err_ctx *err)
{
    int rc;
    make_table(s);
    if (s->kind == STORE_MAPPED) return 0;
    reader_options how = o->reader;
    how.goes_on = s->kind == STORE_CACHED;
    if ((rc = open_reader(s, &how, err)) < 0) return rc;
    if (s->kind == STORE_LOADED && o->n_in_vram) return store_make_ram_frames(s, o->n_in_vram, err);
    return s->kind == STORE_LOADED ? store_load(s, o, err)
                                   : store_cache_create(s, o->cache_bytes, o->policy, err);
}

int expert_store_create(expert_store **out, const expert_banks *b, pool *team,
                        const store_options *o, err_ctx *err)
{
    expert_store *s = mem_zalloc(sizeof *s);
    *out = NULL;
    if (!s) return err_set(err, ERR_NOMEM, "experts: %zu bytes", sizeof *s);
    s->banks = b;
    s->team = team;
    s->kind = o->kind;
    s->device = o->device;
    s->served = mem_array((size_t)b->n_layer, sizeof *s->served);
    if (!s->served) {
        expert_store_free(s);
        return err_set(err, ERR_NOMEM, "experts: %d layers", b->n_layer);
    }
    for (int l = 0; l < b->n_layer; l++)
        s->served[l] = b->of[l].n_expert > 0 && (!o->layers || o->layers[l]);
    const int rc = fill_store(s, o, err);
    if (rc < 0) {
        expert_store_free(s);
        return rc;
    }
    *out = s;
    return 0;
}

void expert_store_free(expert_store *s)
{
    if (!s) return;
    reader_close(s->r);                  /* waits: then no read writes to the arena */
    store_cache_free(s);
    mem_free(s->loaded);
    ram_frames_free(s->ram);
    unlock(s);
    pages_unmap(s->arena, (size_t)s->arena_bytes);
    if (s->table) gpu_free_host(s->device, s->table);
    mem_free(s->served);
    mem_free(s);
}

/* ---- questions ------------------------------------------------------------------------------- */

store_kind expert_store_kind(const expert_store *s) { return s->kind; }
uint64_t expert_store_bytes(const expert_store *s) { return s->arena_bytes; }
uint64_t expert_store_locked(const expert_store *s) { return s->locked; }
const char *expert_store_note(const expert_store *s) { return s->note; }
const char *expert_store_reader(const expert_store *s) { return s->reader_name; }
store_stats expert_store_counts(const expert_store *s) { return s->stats; }
void expert_store_reset_counts(expert_store *s) { s->stats = (store_stats){ 0 }; }

int expert_store_after(const expert_store *s, int layer)
{
    for (int l = layer + 1; l < s->banks->n_layer; l++)
        if (s->served[l]) return l;
    return -1;
}

bool expert_store_find(const expert_store *s, int layer, int expert, expert_slabs *out)
{
    const expert_bank *b = store_bank(s, layer);
    const int slot = s->ram ? ram_frames_find(s->ram, layer, expert) : -1;
    if (s->served[layer] && s->kind == STORE_CACHED) return store_cache_find(s, layer, expert, out);
    for (int i = 0; i < SLAB_COUNT; i++) {
        const expert_slab slab = (expert_slab)i;
        out->at[i] = slot >= 0 ? expert_store_frame_slab(s, slot, layer, expert, slab)
                   : s->loaded && s->served[layer]
                   ? s->loaded[layer * SLAB_COUNT + i] + slab_offset(b, slab, expert)
                   : expert_slab_data(b, slab, expert);
    }
    return true;
}
