/* test_ram_frames.c - frames of RAM for experts: sizes, offsets, failures.
 *
 * test_frame_table.c walks at random through the states of frames, and counts them. */
#include <string.h>

#include "moe/ram_frames.h"
#include "tests/test.h"
#include "tiers/reader.h"

enum { LAYERS = 5, EXPERTS = 16, POOLS = 2 };

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

/* ---- offsets --------------------------------------------------------------------------------- */

/* Slabs begin in their pages as in the file. Their pages do not overlap. */
static void test_offsets(void)
{
    ram_frames *s = NULL;
    uint64_t sum = ram_frames_spare_bytes(&banks), end = 0;
    if (!CHECK(ram_frames_create(&s, &banks, in_vram, NULL) == 0)) return;
    for (int l = 0; l < LAYERS; l++)
        sum += (uint64_t)(EXPERTS - in_vram[l]) * ram_frames_frame_bytes(&banks, l);
    CHECK(ram_frames_bytes(s) == sum);
    for (int kind = 0, frame; kind < POOLS; kind++)
        for (int i = 0; (frame = ram_frames_take(s, kind)) >= 0; i++)
            for (int k = 0; k < SLAB_COUNT; k++) {
                const int l = kind + 3 * (i % 2), e = i % EXPERTS;
                const expert_slab slab = (expert_slab)k;
                const uint64_t n = expert_slab_bytes(&bank_list[l], slab);
                const uint64_t first = ram_frames_offset(s, frame, l, e, slab);
                CHECK(first % READER_PAGE ==
                      (tensors[l][k].offset + (uint64_t)e * n) % READER_PAGE);
                CHECK(first / READER_PAGE * READER_PAGE >= end);
                end = size_align(first + n, READER_PAGE);
                CHECK(end <= sum);
            }
    ram_frames_free(s);
}

/* A layer without experts takes no RAM, whatever n_in_vram says. */
static void test_dense_layer(void)
{
    const expert_bank saved = bank_list[2];      /* not the only one of its size */
    const uint64_t spares = ram_frames_spare_bytes(&banks);
    uint64_t sum = spares;
    ram_frames *s = NULL;
    bank_list[2] = (expert_bank){ .n_expert = 0 };
    CHECK(ram_frames_frame_bytes(&banks, 2) == 0 && ram_frames_spare_bytes(&banks) == spares);
    for (int l = 0; l < LAYERS; l++)
        sum += (uint64_t)(EXPERTS - in_vram[l]) * ram_frames_frame_bytes(&banks, l);
    if (CHECK(ram_frames_create(&s, &banks, in_vram, NULL) == 0)) {
        CHECK(ram_frames_bytes(s) == sum);
        CHECK(ram_frames_take(s, 2) < 0 && ram_frames_take(s, 0) >= 0);
    }
    ram_frames_free(s);
    bank_list[2] = saved;
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
        CHECK(rc == ERR_NOMEM && !s && strstr(err.msg, "frames"));
    }
}

int main(int argc, char **argv)
{
    test_begin("ram_frames", argc, argv);
    make_banks();
    test_offsets();
    test_dense_layer();
    test_memory();
    return test_end();
}
