/* speeds.h - how fast this machine's links are, and the file that remembers it.
 *
 * Bytes per second and seconds; 0: not measured, because there is nothing to measure.
 * engine/plan/measure.h measures, with the kernels that will run; this file keeps the figures for
 * each machine and drive, with the date, which the caller gives. */
#ifndef TIERS_SPEEDS_H
#define TIERS_SPEEDS_H

#include "loader/base.h"

/* Numbers of tokens that prompts' products on the GPU are timed with: cuda/gpu.h has the same. */
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
    double hop;                          /* s from a question of the device until it goes on, if the
                                          * reply takes no time */
    double disk;                         /* reads of an expert's size from the model's drive */
    /* s that a layer of one token takes beyond its weights' bytes: */
    double layer_dense;                  /* on the GPU up to the choice of experts, */
    double layer_hot;                    /* and its experts there; */
    double layer_cpu;                    /* all of it on the CPU; */
    double disk_wait;                    /* if it waits for experts from the drive */
    double gemm_own[SPEEDS_GEMM_POINTS]; /* multiply-adds per second of a dense matrix and 64, 256,
                                          * 1024, 4096 tokens on the GPU: our kernels, */
    double gemm_vendor[SPEEDS_GEMM_POINTS];      /* and the vendor's library, decoding included */
} speeds;

/* A modest machine: the stand-ins for figures that nobody measured. */
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

/* The same, with these stand-ins where nothing was measured: to plan with. If vram_read was
 * measured, so was the whole GPU: a pull of 0 then means that there is none. */
speeds speeds_assume(const speeds *s);

/* ---- the file -------------------------------------------------------------------------------- */

/* What the figures hold for: a change of any of these means measuring again. */
typedef struct speeds_key {
    char cpu[128], gpu[128];             /* names; gpu "" without one */
    int n_thread;
    char kernels[96];                    /* the experts': instruction set, type and shape */
    uint64_t drive;                      /* st_dev of the model's file */
} speeds_key;

/* $XDG_CACHE_HOME/moe/speeds.json, else $HOME/.cache/moe/speeds.json; both are the caller's to read
 * from the environment, and may be NULL. False if there is no home. */
bool speeds_path(char *path, size_t cap, const char *cache_home, const char *home);

/* 1 if figures for this key were found, with the date of the measurement in seconds since 1970; 0 if there are none (no file, a damaged one, one of another
 * version, another machine). Never an error: a caller that gets 0 measures. */
int speeds_load(speeds *out, int64_t *date, const char *path, const speeds_key *key);

/* Keeps entries of other keys. The file is replaced in one step; its folder must exist. */
int speeds_save(const speeds *s, int64_t date, const char *path, const speeds_key *key,
                err_ctx *err);

#endif
