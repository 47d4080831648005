/* perf_view.h - a session's counters as text and as JSON, and the options for them.
 *
 * Put a perf_args into the verb's options, call perf_args_read after args_parse, and add to the
 * verb's groups: { "Statistics:", perf_options, PERF_N_OPTION, offsetof(..., perf) }.
 * docs/troubleshooting.md explains the keys of the JSON. */
#ifndef CLI_VIEW_PERF_VIEW_H
#define CLI_VIEW_PERF_VIEW_H

#include <jansson.h>

#include "cli/args/args.h"
#include "engine/session/runner.h"

typedef struct perf_args {
    const char *mode;                    /* "off", "update", "full"; NULL or "": update */
    const char *out;                     /* a file, or NULL */
} perf_args;

enum { PERF_N_OPTION = 2 };
extern const arg_option perf_options[PERF_N_OPTION];

bool perf_level_named(perf_level *out, const char *name);        /* false: no level's name */

/* 0, or 2, the exit code, after one line on stderr. */
int perf_args_read(perf_level *to, const perf_args *a);

/* layers [n_layer], or NULL: not counted. NULL without memory. */
json_t *perf_view_json(const perf_counts *c, perf_level level, const perf_layer *layers,
                       int n_layer);
json_t *perf_view_session(const session *s, perf_level level);

/* Replaces a file by the JSON, atomically. 0, or 1, the exit code, after one line on stderr. */
int perf_view_save(const char *path, const session *s, perf_level level);

/* "93% of 12,345 choices in VRAM, 61% of layers without the CPU; 210 uploaded, 198 evicted"; and
 * "82% of 1,234 reads in RAM; 1.2 GB read from the drive, 0.8 s waited". "" without a VRAM cache,
 * or without experts on the drive. PERF_LINE_CAP is enough. Return dst. */
enum { PERF_LINE_CAP = 200 };
const char *perf_view_vram_line(char *dst, size_t cap, const perf_counts *c);
const char *perf_view_ram_line(char *dst, size_t cap, const perf_counts *c);

#endif
