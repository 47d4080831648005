/* cache_view.c - figures of replays as tables, CSV and JSON.
 *
 * People compare policies at a size, so a table has a row for each size and a column for each
 * policy; scripts get one row for each figure. */
#include "cli/bench/cache_view.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/console.h"

bool cache_has(const cache_table *t, replay_mode mode, int rule)
{
    return t->mode[mode] && t->rule[rule] && !(rule == REPLAY_FIXED && mode == REPLAY_RAM);
}

int cache_rule_at(int i)
{
    static const int order[REPLAY_RULES] = { REPLAY_FIXED, CACHE_LRU, CACHE_LFU, CACHE_LFRU,
                                             CACHE_LCP, CACHE_FADE, REPLAY_BEST };
    return order[i];
}

const char *cache_mode_text(char *dst, size_t cap, const cache_table *t, replay_mode mode)
{
    if (mode == REPLAY_RAM) snprintf(dst, cap, "RAM before a drive: read on demand");
    else snprintf(dst, cap, "VRAM: replaced between tokens, at most %d upload%s a token",
                  t->n_upload, t->n_upload == 1 ? "" : "s");
    return dst;
}

/* ---- tables ---------------------------------------------------------------------------------- */

typedef enum figure { HIT_RATE, LAYERS_INSIDE, TOK_S } figure;

static void print_cell(const replay_figures *f, figure which)
{
    switch (which) {
    case HIT_RATE: printf(" %7.1f%%", 100 * f->hit_rate); break;
    case LAYERS_INSIDE: printf(" %7.1f%%", 100 * f->layers_inside); break;
    case TOK_S: printf(f->tok_s < 1000 ? " %8.2f" : " %8.0f", f->tok_s); break;
    }
}

static void print_figures(const cache_table *t, replay_mode mode, figure which, const char *title)
{
    char bytes[32];
    printf("\n%s\n  %7s %7s %9s", title, "size", "places", "bytes");
    for (int i = 0; i < REPLAY_RULES; i++)
        if (cache_has(t, mode, cache_rule_at(i)))
            printf(" %8s", replay_rule_name(cache_rule_at(i)));
    printf("\n");
    for (int s = 0; s < t->n_size; s++) {
        const cache_column *c = &t->sizes[s];
        printf("  %5.1f%%%c %7d %9s", c->percent, c->one_token ? '*' : ' ', c->size.places,
               text_bytes(bytes, sizeof bytes, c->size.bytes));
        for (int i = 0; i < REPLAY_RULES; i++)
            if (cache_has(t, mode, cache_rule_at(i)))
                print_cell(&t->at[mode][s][cache_rule_at(i)], which);
        printf("\n");
    }
}

/* "uploads a token at 25.0%: lru 7.9, lfu 0.3": at the size in the middle. */
static void print_uploads(const cache_table *t)
{
    const int s = t->n_size / 2;
    bool any = false;
    for (int p = 0; p < CACHE_POLICIES; p++) {
        if (!cache_has(t, REPLAY_VRAM, p)) continue;
        if (any) printf(", ");
        else printf("\nuploads a token at %.1f%%: ", t->sizes[s].percent);
        printf("%s %.1f", replay_rule_name(p), t->at[REPLAY_VRAM][s][p].uploads);
        any = true;
    }
    if (any) printf("\n");
}

void cache_print(const cache_table *t)
{
    const routing_model *m = &t->trace->model;
    char name[256], all[32], line[128], title[256];
    printf("%s: %d layers of %d experts (%s), %d chosen\nprompt of %d, %d tokens after it\n",
           ESC(name, str_from(m->name)), m->n_layer, m->n_expert,
           text_bytes(all, sizeof all, t->all_bytes), m->n_used, t->trace->n_prompt,
           t->trace->n_token - t->trace->n_prompt);
    for (int mode = 0; mode < REPLAY_MODES; mode++) {
        if (!t->mode[mode]) continue;
        printf("\n%s\n", cache_mode_text(line, sizeof line, t, (replay_mode)mode));
        print_figures(t, (replay_mode)mode, HIT_RATE, "hit rate");
        print_figures(t, (replay_mode)mode, LAYERS_INSIDE,
                      "layers whose chosen experts are all inside");
        snprintf(title, sizeof title, "tok/s, %s", t->speeds[mode]);
        print_figures(t, (replay_mode)mode, TOK_S, title);
        if (mode == REPLAY_VRAM) print_uploads(t);
    }
    printf("\n* one token's worth: as many places as a token chooses\n");
}

/* ---- CSV ------------------------------------------------------------------------------------- */

void cache_csv(textbuf *b, const cache_table *t)
{
    char line[256];
    textbuf_str(b, "mode,policy,percent,places,bytes,one_token,hit_rate,layers_inside,uploads,"
                   "tok_s\n");
    for (int mode = 0; mode < REPLAY_MODES; mode++)
        for (int s = 0; s < t->n_size; s++)
            for (int i = 0; i < REPLAY_RULES; i++) {
                const int rule = cache_rule_at(i);
                const cache_column *c = &t->sizes[s];
                const replay_figures *f = &t->at[mode][s][rule];
                if (!cache_has(t, (replay_mode)mode, rule)) continue;
                snprintf(line, sizeof line, "%s,%s,%.2f,%d,%" PRIu64 ",%d,%.6f,%.6f,%.3f,%.3f\n",
                         replay_mode_name((replay_mode)mode), replay_rule_name(rule), c->percent,
                         c->size.places, c->size.bytes, c->one_token, f->hit_rate,
                         f->layers_inside, f->uploads, f->tok_s);
                textbuf_str(b, line);
            }
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *row_json(const cache_table *t, int mode, int s, int rule)
{
    const cache_column *c = &t->sizes[s];
    const replay_figures *f = &t->at[mode][s][rule];
    return json_pack("{s:s, s:s, s:f, s:i, s:I, s:b, s:f, s:f, s:f, s:f}",
                     "mode", replay_mode_name((replay_mode)mode),
                     "policy", replay_rule_name(rule), "percent", c->percent,
                     "places", c->size.places, "bytes", (json_int_t)c->size.bytes,
                     "one_token", (int)c->one_token, "hit_rate", f->hit_rate,
                     "layers_inside", f->layers_inside, "uploads", f->uploads, "tok_s", f->tok_s);
}

static json_t *rows_json(const cache_table *t)
{
    json_t *rows = json_array();
    bool failed = !rows;
    for (int mode = 0; mode < REPLAY_MODES; mode++)
        for (int s = 0; s < t->n_size; s++)
            for (int i = 0; i < REPLAY_RULES && !failed; i++)
                if (cache_has(t, (replay_mode)mode, cache_rule_at(i)))
                    failed = json_array_append_new(rows, row_json(t, mode, s,
                                                                  cache_rule_at(i))) < 0;
    if (!failed) return rows;
    json_decref(rows);
    return NULL;
}

bool cache_print_json(const cache_table *t)
{
    const routing_model *m = &t->trace->model;
    char path[1024], name[256], fingerprint[24];
    snprintf(fingerprint, sizeof fingerprint, "%016" PRIx64, m->fingerprint);
    json_t *root = json_pack("{s:s, s:s, s:s, s:i, s:i, s:i, s:I, s:i, s:i, s:i, "
                             "s:{s:b, s:b, s:b}, s:o}",
                             "trace", ESC(path, str_from(t->path)),
                             "model", ESC(name, str_from(m->name)), "fingerprint", fingerprint,
                             "layers", m->n_layer, "experts", m->n_expert, "chosen", m->n_used,
                             "expert_bytes", (json_int_t)t->all_bytes,
                             "prompt_tokens", t->trace->n_prompt,
                             "tokens", t->trace->n_token - t->trace->n_prompt,
                             "uploads_allowed", t->n_upload,
                             "measured", "gpu", (int)t->gpu_measured, "cpu", (int)t->cpu_measured,
                             "drive", (int)t->disk_measured, "rows", rows_json(t));
    return console_json(root, JSON_COMPACT | JSON_REAL_PRECISION(6));
}
