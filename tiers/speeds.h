/* speeds.h - how fast this machine's links are, and the file that remembers it.
 *
 * Bytes per second and seconds; 0: not measured, because there is nothing to measure. Measuring is
 * done above (engine/measure.h), with the kernels that will run; here the figures are kept, for
 * each machine and drive. */
#ifndef TIERS_SPEEDS_H
#define TIERS_SPEEDS_H

#include "loader/base.h"

typedef struct speeds {
    double vram_read;                    /* a kernel that only reads VRAM */
    double pcie_in, pcie_out;            /* copy engine, page-locked RAM to VRAM and back */
    double pull;                         /* a kernel that reads page-locked RAM, alone, */
    double pull_busy;                    /* and while the CPU computes experts */
    double cpu;                          /* weights through the CPU's expert kernels, one token, */
    double cpu_busy;                     /* and while a kernel pulls */
    double cpu_many;                     /* multiply-adds per second of experts, many tokens */
    double gpu_macs;                     /* multiply-adds per second of prompts on the GPU */
    double hop;                          /* s from a question of the device to its going on, if the
                                          * answer takes no time */
    double disk;                         /* reads of an expert's size from the model's drive, in the
                                          * way that is worth while, */
    double disk_straight;                /* and without a dock (drive.h): less, and it has one */
} speeds;

/* The same, with the figures of a modest machine where nothing was measured: to plan with. Who
 * measured vram_read measured the whole GPU: a pull of 0 then says that there is none. */
speeds speeds_assume(const speeds *s);

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

/* 1 if figures for this key were found, 0 if there are none (no file, a damaged one, another
 * machine). Never an error: whoever gets 0 measures. */
int speeds_load(speeds *out, const char *path, const speeds_key *key);

/* Keeps entries of other keys. The file is replaced in one step, its folder made if need be. */
int speeds_save(const speeds *s, const char *path, const speeds_key *key, err_ctx *err);

#endif
