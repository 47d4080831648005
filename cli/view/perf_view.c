/* perf_view.c - counts as one JSON object and as lines of /stats.
 *
 * A share with denominator 0 is null. The object does not identify the machine or its folders. */
#include "cli/view/perf_view.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/console.h"
#include "cli/output_file.h"
#include "engine/session/runner.h"

#define FIELD(f) offsetof(perf_args, f)
const arg_option perf_options[PERF_N_OPTION] = {
    { "perf", 0, ARG_TEXT, FIELD(mode), "MODE", "MOE_PERF", 0, 0,
      "Statistics to count: off, update, or full: per layer too. Default: update" },
    { "perf-out", 0, ARG_TEXT, FIELD(out), "FILE", NULL, 0, 0,
      "Write the statistics as JSON to FILE at the end" },
};

static const char *const names[] = {
    [PERF_UPDATE] = "update", [PERF_OFF] = "off", [PERF_FULL] = "full",
};

static bool is_given(const char *text) { return text && *text; }

bool perf_level_named(perf_level *out, const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (strcmp(names[i], name) != 0) continue;
        *out = (perf_level)i;
        return true;
    }
    return false;
}

int perf_args_read(perf_level *to, const perf_args *a)
{
    char shown[64];
    *to = PERF_UPDATE;
    if (is_given(a->mode) && !perf_level_named(to, a->mode)) {
        console_error("%s: '%s' is none of off, update and full",
                      a->mode == getenv("MOE_PERF") ? "MOE_PERF" : "--perf",
                      ESC(shown, str_from(a->mode)));
        return 2;
    }
    if (*to != PERF_OFF || !is_given(a->out)) return output_file_check(a->out);
    console_error("--perf-out has nothing to write with --perf off");
    return 2;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_int_t whole(uint64_t n) { return (json_int_t)n; }

static json_t *share(uint64_t part, uint64_t rest)
{
    return part + rest ? json_real((double)part / (double)(part + rest)) : json_null();
}

static json_t *slots_json(const perf_counts *c)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I}", "hot", whole(c->hot),
                     "cold", whole(c->cold), "on_cpu", whole(c->on_cpu),
                     "down_fetched", whole(c->down_fetched), "all_fetched", whole(c->all_fetched));
}

static json_t *bytes_json(const perf_counts *c)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I}", "vram", whole(c->vram_bytes),
                     "cpu", whole(c->cpu_bytes), "bus_fetched", whole(c->fetch_bytes),
                     "bus_uploaded", whole(c->upload_bytes), "drive", whole(c->drive_bytes));
}

static json_t *seconds_json(const perf_counts *c)
{
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "questions", c->ask_s,
                     "cold", c->cold_s, "late_slabs", c->late_s, "fetching", c->fetch_s,
                     "overlap_least", c->overlap_least_s, "overlap_most", c->overlap_most_s,
                     "join", c->join_s);
}

static json_t *fallbacks_json(const perf_counts *c)
{
    return json_pack("{s:I, s:I, s:I, s:I}", "late", whole(c->late),
                     "not_page_locked", whole(c->not_locked),
                     "failed_uploads", whole(c->failed_uploads), "refused", whole(c->refused));
}

static json_t *vram_cache_json(const perf_counts *c)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I}", "hits", whole(c->frame_hits),
                     "misses", whole(c->frame_misses), "uploads", whole(c->uploads),
                     "swaps", whole(c->swaps), "evictions", whole(c->evictions));
}

static json_t *ram_cache_json(const perf_counts *c)
{
    return json_pack("{s:I, s:I, s:I, s:f}", "hits", whole(c->ram_hits),
                     "misses", whole(c->ram_misses), "read_bytes", whole(c->drive_bytes),
                     "wait_seconds", c->ram_wait_s);
}

static json_t *layers_json(const perf_layer *layers, int n)
{
    json_t *list = json_array();
    for (int l = 0; l < n; l++)
        list = console_append(
            list, json_pack("{s:I, s:I, s:I, s:I, s:f}", "calls", whole(layers[l].calls),
                            "quiet", whole(layers[l].quiet), "hot", whole(layers[l].hot),
                            "cold", whole(layers[l].cold), "cold_seconds", layers[l].cold_s));
    return list;
}

json_t *perf_view_json(const perf_counts *c, perf_level level, const perf_layer *layers,
                       int n_layer)
{
    json_t *root = json_pack(
        "{s:s, s:i, s:s, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I, "
        "s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
        "format", "moe-perf", "version", 1, "mode", names[level], "n_layer", c->n_layer,
        "n_expert_used", c->n_used, "passes", whole(c->passes),
        "rows", whole(c->rows), "tokens", whole(c->tokens), "read_experts", whole(c->read_experts),
        "prompt_tokens", whole(c->prompt_tokens), "calls", whole(c->calls),
        "quiet", whole(c->quiet), "slots", slots_json(c), "hit_rate", share(c->hot, c->cold),
        "bytes", bytes_json(c), "seconds", seconds_json(c), "fallbacks", fallbacks_json(c),
        "vram_cache", vram_cache_json(c), "ram_cache", ram_cache_json(c));
    if (!root || !layers) return root;
    if (json_object_set_new(root, "layers", layers_json(layers, n_layer)) == 0) return root;
    json_decref(root);
    return NULL;
}

json_t *perf_view_session(const session *s, perf_level level)
{
    const perf_counts c = runner_perf(session_runner(s));
    perf_layer *layers = mem_array((size_t)c.n_layer, sizeof *layers);
    if (!layers) return NULL;
    const int n = runner_perf_layers(session_runner(s), layers, c.n_layer);
    json_t *root = perf_view_json(&c, level, n > 0 ? layers : NULL, n);
    mem_free(layers);
    return root;
}

int perf_view_save(const char *path, const session *s, perf_level level)
{
    json_t *root = perf_view_session(s, level);
    err_ctx err = { 0 };
    const int rc = output_file_json(path, root, &err);
    json_decref(root);
    return rc < 0 ? console_fail(path, &err) : 0;
}

/* ---- lines ----------------------------------------------------------------------------------- */

static double percent(uint64_t part, uint64_t all)
{
    return all ? 100.0 * (double)part / (double)all : 0.0;
}

const char *perf_view_vram_line(char *dst, size_t cap, const perf_counts *c)
{
    char slots[32], in[32], out[32], moved[96] = "";
    dst[0] = '\0';
    if (c->calls == 0) return dst;
    if (c->uploads + c->swaps + c->evictions > 0)
        snprintf(moved, sizeof moved, "; %s uploaded, %s evicted",
                 text_count(in, sizeof in, c->uploads + c->swaps),
                 text_count(out, sizeof out, c->evictions));
    snprintf(dst, cap, "%.0f%% of %s choices in VRAM, %.0f%% of layers without the CPU%s",
             percent(c->hot, c->hot + c->cold),
             text_count(slots, sizeof slots, c->hot + c->cold), percent(c->quiet, c->calls), moved);
    return dst;
}

const char *perf_view_ram_line(char *dst, size_t cap, const perf_counts *c)
{
    const uint64_t wanted = c->ram_hits + c->ram_misses;
    char n[32], bytes[32];
    dst[0] = '\0';
    if (wanted == 0) return dst;
    snprintf(dst, cap, "%.0f%% of %s reads in RAM; %s read from the drive, %.1f s waited",
             percent(c->ram_hits, wanted), text_count(n, sizeof n, wanted),
             text_bytes(bytes, sizeof bytes, c->drive_bytes), c->ram_wait_s);
    return dst;
}
