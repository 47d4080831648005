/* sim_gpu.c - the devices: how much memory they have, and which memory is whose.
 *
 * Every gpu that is opened on a device has the memory that another one allocated there, and all
 * have what is page-locked, as with CUDA. No device can use the memory of another. Allocations are
 * known by their exact sizes, so that an operation that goes beyond one is refused, and so is one
 * on memory that was freed. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda/gpu_measure.h"
#include "tests/sim_gpu_internal.h"

enum { SLACK = 16, GRAIN = 512, MAX_PIECES = 4096 };

typedef enum piece_kind { IN_VRAM, OWN_LOCKED, CALLERS_LOCKED } piece_kind;

typedef struct piece {
    uint8_t *at;
    uint64_t bytes;
    piece_kind kind;
    int device;                          /* of VRAM */
    const bool *readable;                /* NULL: always */
} piece;

static struct {
    pthread_mutex_t lock;
    uint64_t total, used[SIM_GPU_DEVICES];       /* guarded by lock, as is the rest; total: of each
                                                  * device; used in whole grains */
    int n_device;
    piece pieces[MAX_PIECES];
    int n_piece;
    int until_refused;                   /* allocations of page-locked RAM; 0: none is refused */
} card = { .lock = PTHREAD_MUTEX_INITIALIZER, .total = (uint64_t)2 << 30, .n_device = 1 };

/* ---- what lies where ------------------------------------------------------------------------- */

/* The piece that p lies in, or NULL. Called with the lock held, as all below that begin so. */
static piece *find(const void *p)
{
    const uint8_t *at = p;
    for (int i = 0; i < card.n_piece; i++) {
        piece *k = &card.pieces[i];
        if (at >= k->at && (uint64_t)(at - k->at) < k->bytes) return k;
    }
    return NULL;
}

static bool find_overlap(const void *p, uint64_t bytes)
{
    const uintptr_t at = (uintptr_t)p;
    for (int i = 0; i < card.n_piece; i++) {
        const uintptr_t from = (uintptr_t)card.pieces[i].at;
        if (at < from + card.pieces[i].bytes && from < at + bytes) return true;
    }
    return false;
}

/* How many bytes from p on are in its piece. */
static uint64_t left_in(const piece *k, const void *p)
{
    return k->bytes - (uint64_t)((const uint8_t *)p - k->at);
}

static bool serves(const piece *k, const gpu *g)
{
    return k->kind != IN_VRAM || k->device == sim_device(g);
}

static bool is_inside(const gpu *g, const void *p, uint64_t bytes, bool vram_only)
{
    pthread_mutex_lock(&card.lock);
    const piece *k = find(p);
    const bool ok = k && bytes <= left_in(k, p) && (!vram_only || k->kind == IN_VRAM) &&
                    serves(k, g);
    pthread_mutex_unlock(&card.lock);
    return ok;
}

bool sim_in_vram(const gpu *g, const void *p, uint64_t bytes)
{
    return is_inside(g, p, bytes, true);
}

bool sim_in_one_piece(const gpu *g, const void *p, uint64_t bytes)
{
    return is_inside(g, p, bytes, false);
}

bool sim_is_reachable(const gpu *g, const void *p, uint64_t bytes)
{
    const uint8_t *at = p;
    bool ok = true;
    pthread_mutex_lock(&card.lock);
    while (ok && bytes > 0) {
        const piece *k = find(at);
        ok = k && serves(k, g);
        if (!ok) break;
        const uint64_t n = left_in(k, at) < bytes ? left_in(k, at) : bytes;
        at += n;
        bytes -= n;
    }
    pthread_mutex_unlock(&card.lock);
    return ok;
}

bool sim_touches_locked(const void *p, uint64_t bytes)
{
    pthread_mutex_lock(&card.lock);
    const bool any = find_overlap(p, bytes);
    pthread_mutex_unlock(&card.lock);
    return any;
}

void sim_guard_vram(const void *p, const bool *readable)
{
    pthread_mutex_lock(&card.lock);
    piece *k = find(p);
    if (k) k->readable = readable;
    pthread_mutex_unlock(&card.lock);
}

bool sim_may_use(const void *p, bool write)
{
    pthread_mutex_lock(&card.lock);
    const piece *k = find(p);
    const bool ok = !k || !k->readable || (!write && *k->readable);
    pthread_mutex_unlock(&card.lock);
    return ok;
}

static bool add_piece(void *p, uint64_t bytes, piece_kind kind, int device)
{
    if (card.n_piece == MAX_PIECES) return false;
    card.pieces[card.n_piece++] = (piece){ p, bytes, kind, device, NULL };
    return true;
}

/* Forgets the piece that begins at p, if there is one of that kind. */
static bool drop_piece(const gpu *g, const void *p, piece_kind kind, uint64_t *bytes)
{
    piece *k = find(p);
    if (!k || k->at != p || k->kind != kind || !serves(k, g)) return false;
    *bytes = k->bytes;
    *k = card.pieces[--card.n_piece];
    return true;
}

void sim_gpu_set_vram(uint64_t bytes)
{
    pthread_mutex_lock(&card.lock);
    card.total = bytes;
    pthread_mutex_unlock(&card.lock);
}

uint64_t sim_gpu_vram_used(void)
{
    pthread_mutex_lock(&card.lock);
    uint64_t used = 0;
    for (int i = 0; i < SIM_GPU_DEVICES; i++) used += card.used[i];
    pthread_mutex_unlock(&card.lock);
    return used;
}

void sim_gpu_set_devices(int n)
{
    pthread_mutex_lock(&card.lock);
    card.n_device = n;
    pthread_mutex_unlock(&card.lock);
}

bool sim_gpu_refuse_locked(int nth)
{
    pthread_mutex_lock(&card.lock);
    const bool refused = card.until_refused == 0;
    card.until_refused = nth;
    pthread_mutex_unlock(&card.lock);
    return refused;
}

/* ---- devices --------------------------------------------------------------------------------- */

const char *gpu_backend(void) { return SIM_GPU_BACKEND; }
/* A real driver takes up to a second for this. With SIM_GPU_UNASKED no caller may need it. */
int gpu_count(void)
{
    if (!getenv("SIM_GPU_UNASKED")) return card.n_device;
    fprintf(stderr, "simulated GPU: gpu_count is called\n");
    exit(3);
}

static int pretended;

void gpu_limit_sms(int n) { pretended = n; }

int sim_sms(const gpu_info *info)
{
    return pretended > 0 && pretended < info->n_sm ? pretended : info->n_sm;
}

static uint64_t unused(int device)
{
    return card.total > card.used[device] ? card.total - card.used[device] : 0;
}

int gpu_describe(gpu_info *out, int device, err_ctx *err)
{
    *out = (gpu_info){ 0 };
    if (device < 0 || device >= card.n_device)
        return err_set(err, ERR_RANGE, "GPU %d: there are %d", device, card.n_device);
    snprintf(out->name, sizeof out->name, "simulated GPU");
    out->cc_major = 9;
    out->n_sm = 8;
    if (sim_sms(out) < out->n_sm)
        snprintf(out->name, sizeof out->name, "simulated GPU (%d multiprocessors)", sim_sms(out));
    pthread_mutex_lock(&card.lock);
    out->vram_total = card.total;
    out->vram_free = unused(device);
    pthread_mutex_unlock(&card.lock);
    return 0;
}

/* ---- VRAM ------------------------------------------------------------------------------------ */

/* Whole grains, as an allocator of VRAM would take. */
static uint64_t grains(uint64_t bytes)
{
    return size_align(bytes, GRAIN);
}

void *gpu_alloc(gpu *g, uint64_t bytes, const char *what, err_ctx *err)
{
    void *p = NULL;
    if (bytes == 0) bytes = 1;           /* even nothing has an address of its own */
    if (sim_is_recording(g)) sim_fail(g, "%s is allocated while operations are recorded", what);
    pthread_mutex_lock(&card.lock);
    const uint64_t left = unused(sim_device(g));
    /* exactly this much, so that the address sanitizer sees what goes beyond it */
    if (bytes <= left && grains(bytes) <= left &&
        posix_memalign(&p, 256, (size_t)bytes + SLACK) != 0)
        p = NULL;
    if (p && !add_piece(p, bytes, IN_VRAM, sim_device(g))) {
        free(p);
        p = NULL;
    }
    if (p) card.used[sim_device(g)] += grains(bytes);
    pthread_mutex_unlock(&card.lock);
    if (p) return memset(p, 0xFF, (size_t)bytes + SLACK);        /* NaN, whatever float it is */
    err_set(err, ERR_NOMEM, "GPU %d: no room for %s: %.2f GB, and %.2f GB are free", sim_device(g),
            what, (double)bytes * 1e-9, (double)left * 1e-9);
    return NULL;
}

bool sim_take_vram(int device, uint64_t bytes)
{
    pthread_mutex_lock(&card.lock);
    const bool fits = bytes <= unused(device);
    if (fits) card.used[device] += bytes;
    pthread_mutex_unlock(&card.lock);
    return fits;
}

void sim_return_vram(int device, uint64_t bytes)
{
    pthread_mutex_lock(&card.lock);
    card.used[device] -= bytes;
    pthread_mutex_unlock(&card.lock);
}

static void free_piece(gpu *g, void *p, piece_kind kind, const char *what)
{
    uint64_t bytes = 0;
    if (!p) return;
    if (sim_is_recording(g)) sim_fail(g, "%s is freed while operations are recorded", what);
    sim_stream_drain(sim_main_stream(g));
    pthread_mutex_lock(&card.lock);
    const bool known = drop_piece(g, p, kind, &bytes);
    if (known && kind == IN_VRAM) card.used[sim_device(g)] -= grains(bytes);
    pthread_mutex_unlock(&card.lock);
    if (!known) sim_fail(g, "%s that is freed was not allocated, or was freed before", what);
    else if (kind != CALLERS_LOCKED) free(p);
}

void gpu_free(gpu *g, void *p) { free_piece(g, p, IN_VRAM, "VRAM"); }

/* ---- page-locked RAM ------------------------------------------------------------------------- */

static size_t page_bytes(void) { return (size_t)sysconf(_SC_PAGESIZE); }

void *gpu_alloc_host(gpu *g, uint64_t bytes, err_ctx *err)
{
    void *p = NULL;
    if (bytes == 0) bytes = 1;
    if (bytes > SIZE_MAX / 2 || posix_memalign(&p, page_bytes(), (size_t)bytes) != 0) p = NULL;
    pthread_mutex_lock(&card.lock);
    const bool refused = card.until_refused > 0 && --card.until_refused == 0;
    if (p && (refused || !add_piece(p, bytes, OWN_LOCKED, 0))) {
        free(p);
        p = NULL;
    }
    pthread_mutex_unlock(&card.lock);
    if (p) return memset(p, 0xFF, (size_t)bytes);
    err_set(err, ERR_NOMEM, "GPU %d: page-locked memory: %.2f GB", sim_device(g),
            (double)bytes * 1e-9);
    return NULL;
}

void gpu_free_host(gpu *g, void *p) { free_piece(g, p, OWN_LOCKED, "page-locked RAM"); }

int gpu_lock(gpu *g, void *p, uint64_t bytes, err_ctx *err)
{
    const char *why = NULL;
    bool twice = false;
    if ((uintptr_t)p % page_bytes() || bytes == 0 || bytes % page_bytes()) why = "not whole pages";
    else if (msync(p, (size_t)bytes, MS_ASYNC) < 0) why = "there is no such memory";
    pthread_mutex_lock(&card.lock);
    if (!why && find_overlap(p, bytes)) {
        twice = true;
        why = "it is locked";
    }
    if (!why && !add_piece(p, bytes, CALLERS_LOCKED, 0)) why = "too many pieces";
    pthread_mutex_unlock(&card.lock);
    if (twice) sim_fail(g, "memory is page-locked twice");
    if (!why) return 0;
    return err_set(err, ERR_NOMEM, "GPU %d: %.2f GB of RAM cannot be page-locked: %s",
                   sim_device(g), (double)bytes * 1e-9, why);
}

void gpu_unlock(gpu *g, void *p) { free_piece(g, p, CALLERS_LOCKED, "page-locked memory"); }

/* ---- helpers --------------------------------------------------------------------------------- */

void *sim_room(size_t n, size_t size)
{
    void *p = malloc((n ? n : 1) * size);
    if (!p) {
        fprintf(stderr, "simulated GPU: no memory for %zu x %zu bytes\n", n, size);
        abort();
    }
    return p;
}
