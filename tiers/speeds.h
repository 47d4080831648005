/* speeds.h - the speeds of this machine's links, and the file that stores them.
 *
 * Bytes per second and seconds; 0: not measured, because there is nothing to measure.
 * engine/plan/measure.h measures, with the kernels that will run; this file keeps the figures for
 * each machine and drive, with the date, which the caller gives. */
#ifndef TIERS_SPEEDS_H
#define TIERS_SPEEDS_H

#include "loader/base.h"

/* Batch lengths at which products of prompts on the GPU are timed, as in cuda/gpu.h. */
enum { SPEEDS_GEMM_POINTS = 4 };

typedef struct speeds {
    double vram_read;                    /* a kernel that only reads VRAM */
    double pcie_in, pcie_out;            /* copy engine, page-locked RAM to VRAM and back */
    double pull;                         /* a kernel that reads page-locked RAM, alone, */
    double pull_busy;                    /* and while the CPU computes experts */
    double cpu;                          /* weights through the CPU's expert kernels, one token, */
    double cpu_busy;                     /* and while a kernel pulls */
    double cpu_dense;                    /* the head's through its kernel, one token */
    double cpu_many;                     /* multiply-adds per second of experts, many tokens */
    double gpu_macs;                     /* multiply-adds per second of prompts on the GPU */
    double hop;                          /* s from a question of the device until it continues,
                                          * without the time of the reply */
    double disk;                         /* reads of an expert's size from the model's drive */
    /* overhead of a layer in s for one token, without reading weights: */
    double layer_dense;                  /* on the GPU up to the choice of experts, */
    double layer_hot;                    /* and its experts there; */
    double layer_cpu;                    /* the whole layer on the CPU; */
    double disk_wait;                    /* a wait for experts from the drive */
    double gemm_own[SPEEDS_GEMM_POINTS]; /* multiply-adds per second of a dense matrix and 64, 256,
                                          * 1024, 4096 tokens on the GPU: our kernels, */
    double gemm_vendor[SPEEDS_GEMM_POINTS];      /* and the vendor's library, decoding included */
} speeds;

/* Assumptions for unmeasured figures: a modest machine. */
#define SPEEDS_VRAM_READ 300e9
#define SPEEDS_PCIE 12e9
#define SPEEDS_PULL 11e9
#define SPEEDS_PULL_BUSY 10e9
#define SPEEDS_CPU 30e9
#define SPEEDS_CPU_BUSY 27e9
#define SPEEDS_CPU_DENSE 40e9
#define SPEEDS_CPU_MANY 2e11
#define SPEEDS_GPU_MACS 5e12
#define SPEEDS_HOP 10e-6
#define SPEEDS_DISK 1.5e9
/* These are of an H200: gpt-oss-20b took 780 us for 1300 MB and 24 layers at 4.5 TB/s, Qwen3-Next
 * 1330 us for 1424 MB and 48 layers. */
#define SPEEDS_LAYER_DENSE 20e-6
#define SPEEDS_LAYER_HOT 8e-6
/* The demo models with 2 cores: 240 and 280 us for 4.1 and 2.4 MB and 4 layers. */
#define SPEEDS_LAYER_CPU 30e-6
#define SPEEDS_DISK_WAIT 0.2e-3

/* s with assumptions for unmeasured figures, for the plan. If vram_read was measured, so was the
 * whole GPU: a pull of 0 then means that post-fetch is impossible. */
speeds speeds_assume(const speeds *s);

/* ---- the file -------------------------------------------------------------------------------- */

/* Identifies machine, kernels and drive: if a field changes, the speeds are measured again. */
typedef struct speeds_key {
    char cpu[128], gpu[128];             /* names; gpu "" without one */
    int n_thread;
    char kernels[96];                    /* the experts': instruction set, type and shape */
    uint64_t drive;                      /* st_dev of the model's file */
} speeds_key;

/* $XDG_CACHE_HOME/moe/speeds.json, else $HOME/.cache/moe/speeds.json. The caller reads both from
 * the environment; either may be NULL. False without both. */
bool speeds_path(char *path, size_t cap, const char *cache_home, const char *home);

/* 1 if the file has figures for this key, with their date in seconds since 1970. 0 if not (no file,
 * a damaged one, another version or machine): the caller then measures. Never an error. */
int speeds_load(speeds *out, int64_t *date, const char *path, const speeds_key *key);

/* Keeps entries of other keys. Replaces the file atomically; its folder must exist. */
int speeds_save(const speeds *s, int64_t date, const char *path, const speeds_key *key,
                err_ctx *err);

#endif
