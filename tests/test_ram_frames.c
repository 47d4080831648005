/* test_ram_frames.c - slots of RAM for experts, beside a twin that keeps plain lists.
 *
 * 100,000 random operations. The twin knows what every slot is; the books must say the same, hand
 * out each slot once, and never lose one. */
#include <string.h>

#include "moe/ram_frames.h"
#include "tests/test.h"
#include "tiers/reader.h"

enum { LAYERS = 5, EXPERTS = 16, ALL = LAYERS * EXPERTS, POOLS = 2, OPERATIONS = 100000,
       FREE = -1, TAKEN = -2, MOST = ALL + POOLS * FREE_RAM_FRAMES };

static const int in_vram[LAYERS] = { 3, 4, 4, 16, 0 };

/* Layers 1 and 4 have larger experts. */
static int pool_of(int layer) { return layer % 3 == 1; }

static tensor tensors[LAYERS][SLAB_COUNT];
static uint8_t bytes[EXPERTS * 64 * 100];
static expert_bank bank_list[LAYERS];
static expert_banks banks = { .n_layer = LAYERS, .n_expert = EXPERTS, .n_used = 2,
                              .of = bank_list };

static void make_banks(void)
{
    for (int l = 0; l < LAYERS; l++) {
        bank_list[l] = (expert_bank){ .n_expert = EXPERTS, .n_embd = 64, .n_ff = 64 };
        for (int s = 0; s < SLAB_COUNT; s++) {
            const uint64_t row = pool_of(l) ? 100 : 34;
            tensors[l][s] = (tensor){ .row_bytes = row, .slab_bytes = 64 * row, .data = bytes,
                                      .offset = (uint64_t)(1000 * l + 32 * s) };
            bank_list[l].weight[s] = &tensors[l][s];
        }
    }
}

/* ---- the twin -------------------------------------------------------------------------------- */

typedef struct reference {
    int is[MOST];                        /* an expert, FREE or TAKEN */
    int n[POOLS];                        /* slots */
    bool changed[LAYERS];
    int taken[MOST], n_taken;
} reference;

static void reference_begin(reference *t)
{
    *t = (reference){ .n = { FREE_RAM_FRAMES, FREE_RAM_FRAMES } };
    for (int s = 0; s < MOST; s++) t->is[s] = FREE;
    for (int l = 0; l < LAYERS; l++) t->n[pool_of(l)] += EXPERTS - in_vram[l];
}

static int reference_free(const reference *t, int kind)
{
    int n = 0;
    for (int s = kind ? t->n[0] : 0; s < (kind ? t->n[0] + t->n[1] : t->n[0]); s++)
        n += t->is[s] == FREE;
    return n;
}

static int reference_find(const reference *t, int id)
{
    for (int s = 0; s < t->n[0] + t->n[1]; s++)
        if (t->is[s] == id) return s;
    return -1;
}

/* ---- a walk ---------------------------------------------------------------------------------- */

static void take(ram_frames *s, reference *t, int layer)
{
    const int kind = pool_of(layer), slot = ram_frames_take(s, layer);
    CHECK((slot < 0) == (reference_free(t, kind) == 0));
    if (slot < 0) return;
    CHECK(t->is[slot] == FREE && (slot >= t->n[0]) == kind);
    t->is[slot] = TAKEN;
    t->taken[t->n_taken++] = slot;
}

static void use_taken(ram_frames *s, reference *t, test_rng *rng, int layer, int expert)
{
    if (t->n_taken == 0) return;
    const int i = (int)test_below(rng, (uint32_t)t->n_taken), slot = t->taken[i];
    const int id = layer * EXPERTS + expert;
    if ((slot >= t->n[0]) != pool_of(layer) || reference_find(t, id) >= 0) {
        ram_frames_return(s, slot);
        t->is[slot] = FREE;
    } else {
        ram_frames_put(s, slot, layer, expert);
        t->is[slot] = id;
        t->changed[layer] = true;
    }
    t->taken[i] = t->taken[--t->n_taken];
}

static void test_walk(void)
{
    static reference t;
    ram_frames *s = NULL;
    test_rng rng = { 5 };
    int n_most = 0;
    if (!CHECK(ram_frames_create(&s, &banks, in_vram, NULL) == 0)) return;
    reference_begin(&t);
    for (int i = 0; i < OPERATIONS; i++) {
        const int l = (int)test_below(&rng, LAYERS), e = (int)test_below(&rng, EXPERTS);
        const int slot = reference_find(&t, l * EXPERTS + e);
        const uint32_t what = test_below(&rng, 8);
        CHECK(ram_frames_find(s, l, e) == slot && ram_frames_left(s, l) ==
              reference_free(&t, pool_of(l)));
        n_most += reference_free(&t, pool_of(l)) == 0;
        if (what < 3) {
            take(s, &t, l);
        } else if (what < 6) {
            use_taken(s, &t, &rng, l, e);
        } else if (what < 7 && slot >= 0) {
            ram_frames_leave(s, l, e);
            t.is[slot] = FREE;
            t.changed[l] = true;
        } else {
            CHECK(ram_frames_changed(s, l) == t.changed[l]);
            t.changed[l] = false;
        }
    }
    CHECK(n_most > 100);
    ram_frames_free(s);
}

/* ---- offsets --------------------------------------------------------------------------------- */

/* Slabs lie in their pages as in the file, and whole pages around them are nobody else's. */
static void test_offsets(void)
{
    ram_frames *s = NULL;
    uint64_t sum = ram_frames_n_free(&banks), end = 0;
    if (!CHECK(ram_frames_create(&s, &banks, in_vram, NULL) == 0)) return;
    for (int l = 0; l < LAYERS; l++)
        sum += (uint64_t)(EXPERTS - in_vram[l]) * ram_frames_one(&banks, l);
    CHECK(ram_frames_bytes(s) == sum);
    for (int kind = 0, slot; kind < POOLS; kind++)
        for (int i = 0; (slot = ram_frames_take(s, kind)) >= 0; i++)
            for (int k = 0; k < SLAB_COUNT; k++) {
                const int l = kind + 3 * (i % 2), e = i % EXPERTS;
                const expert_slab slab = (expert_slab)k;
                const uint64_t n = expert_slab_bytes(&bank_list[l], slab);
                const uint64_t at = ram_frames_at(s, slot, l, e, slab);
                CHECK(at % READER_PAGE == (tensors[l][k].offset + (uint64_t)e * n) % READER_PAGE);
                CHECK(at / READER_PAGE * READER_PAGE >= end);
                end = size_align(at + n, READER_PAGE);
                CHECK(end <= sum);
            }
    ram_frames_free(s);
}

/* A layer without experts takes no RAM, however many of them somebody says are not in VRAM. */
static void test_dense_layer(void)
{
    const expert_bank kept = bank_list[2];       /* not the only one of its size */
    const uint64_t spares = ram_frames_n_free(&banks);
    uint64_t sum = spares;
    ram_frames *s = NULL;
    bank_list[2] = (expert_bank){ .n_expert = 0 };
    CHECK(ram_frames_one(&banks, 2) == 0 && ram_frames_n_free(&banks) == spares);
    for (int l = 0; l < LAYERS; l++)
        sum += (uint64_t)(EXPERTS - in_vram[l]) * ram_frames_one(&banks, l);
    if (CHECK(ram_frames_create(&s, &banks, in_vram, NULL) == 0)) {
        CHECK(ram_frames_bytes(s) == sum && ram_frames_left(s, 2) == 0);
        CHECK(ram_frames_take(s, 2) < 0 && ram_frames_take(s, 0) >= 0);
    }
    ram_frames_free(s);
    bank_list[2] = kept;
}

/* Every allocation that fails leaves nothing. */
static void test_memory(void)
{
    for (int i = 1;; i++) {
        ram_frames *s = NULL;
        err_ctx err = { 0 };
        mem_fail_after(i);
        const int rc = ram_frames_create(&s, &banks, in_vram, &err);
        mem_fail_after(0);
        if (rc == 0) {
            ram_frames_free(s);
            CHECK(i > 5);
            return;
        }
        CHECK(rc == ERR_NOMEM && !s && strstr(err.msg, "slots"));
    }
}

int main(int argc, char **argv)
{
    test_begin("expert_slots", argc, argv);
    make_banks();
    test_walk();
    test_offsets();
    test_dense_layer();
    test_memory();
    return test_end();
}
