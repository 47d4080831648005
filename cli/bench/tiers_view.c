/* tiers_view.c - the rows of moe-bench tiers as tables and as JSON.
 *
 * Figures that a row does not have (no GPU, nothing fetched, speeds not measured) are NAN and show
 * as "-" or null, never as 0. */
#include "cli/bench/tiers_view.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/console.h"
#include "cli/view/median_spread.h"
#include "cli/view/plan_view.h"

/* ---- figures --------------------------------------------------------------------------------- */

/* NAN: the row does not have this figure. */
typedef struct figures {
    double prompt, decode, expected, of_limit;
    double gain;                         /* post-fetch's */
    double vram, cpu, bus, drive;        /* bytes of experts per token */
    double overlap, overlap_most;        /* share of fetching while the cores computed: lower and
                                          * upper bound */
    double late, missed, predicted, guessed_right;
    double pad;                          /* post-fetch's share of the VRAM budget */
    double in_vram, in_ram, on_drive;    /* shares of the experts */
    int hot_layers;
} figures;

static double share(double a, double b) { return b > 0 ? a / b : NAN; }

static double median(const double *rates, int n) { return spread_of(rates, n).median; }

/* A token's experts in layers that one processor computes alone. */
typedef struct silent_bytes { double vram, cpu; } silent_bytes;

static silent_bytes silent_bytes_of(const tiers_table *t, const plan *p)
{
    const plan_model *m = &t->unbounded->in.model;
    silent_bytes sum = { 0, 0 };
    for (int l = 0; l < m->n_layer; l++) {
        const double bytes = (double)m->n_used * (double)m->expert_bytes[l];
        if (l >= plan_gpu_layers(p, m->n_layer)) sum.cpu += bytes;
        else if (p->hot[l] == m->n_expert) sum.vram += bytes;
    }
    return sum;
}

static figures figures_of(const tiers_table *t, const tiers_row *r)
{
    const tiers_outcome *o = &r->on;
    const plan *p = &o->p;
    const int runs = t->n_run;
    const double experts = (double)plan_all_experts(&t->unbounded->in.model);
    const double n = (double)t->n_token * runs;
    const silent_bytes silent = silent_bytes_of(t, p);
    const uint64_t vram_free = t->unbounded->in.machine.vram_free;
    const bool bounded = r->vram != TIERS_NO_EXPERTS && r->vram < vram_free;
    const double vram = (double)(bounded ? r->vram : vram_free);
    figures f = {
        .prompt = median(o->prompt, runs), .decode = median(o->decode, runs),
        .expected = o->measured ? p->decode_tok_s : NAN, .gain = NAN,
        .vram = (double)o->host.hot_bytes / n + silent.vram,
        .cpu = (double)o->host.cpu_bytes / n + silent.cpu,
        .bus = (double)o->host.pull_bytes / n, .drive = (double)o->store.read_bytes / n,
        .overlap = share(o->host.hidden_least_s, o->host.pull_s),
        .overlap_most = share(o->host.hidden_most_s, o->host.pull_s),
        .late = share((double)o->host.late, (double)o->host.down_fetched),
        .missed = share((double)o->store.misses, (double)(o->store.hits + o->store.misses)),
        .predicted = share((double)o->store.predicted, (double)o->store.misses),
        .guessed_right = share((double)o->store.predicted, (double)o->store.guesses),
        .pad = p->gpu ? share((double)o->host.pad_bytes, vram) : NAN,
        .in_vram = (double)p->vram.experts / experts,
        .on_drive = (double)p->drive.experts / experts,
    };
    f.of_limit = o->measured ? share(f.decode, p->limit_tok_s) : NAN;
    f.in_ram = fmax(0, 1 - f.in_vram - f.on_drive);
    if (r->off.done) f.gain = share(f.decode, median(r->off.decode, runs));
    for (int l = 0; p->gpu && l < t->unbounded->in.model.n_layer; l++)
        f.hot_layers += p->hot[l] == t->unbounded->in.model.n_expert &&
                        t->unbounded->in.model.expert_bytes[l] > 0;
    return f;
}

const tiers_row *tiers_first_done(const tiers_table *t)
{
    for (int i = 0; i < t->n_row; i++)
        if (t->rows[i].on.done) return &t->rows[i];
    return NULL;
}

static bool says_the_same(const tiers_outcome *o, const tiers_row *first)
{
    return !o->done || (o->same && o->hash == first->on.hash);
}

/* "3, 4 (without post-fetch)": the rows with other tokens than the first. */
static const char *other_rows(char *dst, size_t cap, const tiers_table *t)
{
    const tiers_row *first = tiers_first_done(t);
    size_t used = 0;
    dst[0] = '\0';
    for (int i = 0; first && i < t->n_row; i++) {
        const bool on = says_the_same(&t->rows[i].on, first);
        if ((on && says_the_same(&t->rows[i].off, first)) || used >= cap) continue;
        used += (size_t)snprintf(dst + used, cap - used, "%s%d%s", used ? ", " : "", i + 1,
                                 on ? " (without post-fetch)" : "");
    }
    return dst;
}

/* ---- tables ---------------------------------------------------------------------------------- */

static const char *number(char dst[16], double v, int decimals, const char *unit)
{
    if (isnan(v)) return "-";
    snprintf(dst, 16, "%.*f%s", decimals, v, unit);
    return dst;
}

static const char *budget(char dst[32], uint64_t bytes, bool used)
{
    if (bytes == TIERS_NO_EXPERTS) return "none";
    return !used ? "-" : bytes == TIERS_ALL ? "all" : text_bytes(dst, 32, bytes);
}

static void print_places(const tiers_table *t)
{
    char a[32], b[32], c[32], d[32], x[16], y[16], z[16], pad[16], layers[32];
    printf("%23s  %19s %19s %10s %7s %10s\n", "budget", "taken", "experts in", "layers", "prompt",
           "post-fetch");
    printf("%3s %9s %9s  %9s %9s %5s %6s %6s %10s %7s %10s\n", "row", "VRAM", "RAM", "VRAM", "RAM",
           "VRAM", "RAM", "drive", "in VRAM", "chunk", "of VRAM");
    for (int i = 0; i < t->n_row; i++) {
        const tiers_row *r = &t->rows[i];
        const plan *p = &r->on.p;
        printf("%3d %9s %9s", i + 1, budget(a, r->vram, t->gpu[0]), budget(b, r->ram, true));
        if (!r->on.done) {
            printf("  %s\n", r->on.error[0] ? r->on.error : "interrupted");
            continue;
        }
        const figures f = figures_of(t, r);
        if (p->cache) snprintf(layers, sizeof layers, "cached");
        else snprintf(layers, sizeof layers, "%d of %d", f.hot_layers,
                      plan_n_bank(&t->unbounded->in.model));
        printf("  %9s %9s %5s %6s %6s %10s %7d %10s\n",
               p->gpu ? text_bytes(c, sizeof c, plan_vram(p)) : "-",
               text_bytes(d, sizeof d, plan_ram(p)), number(x, 100 * f.in_vram, 0, "%"),
               number(y, 100 * f.in_ram, 0, "%"), number(z, 100 * f.on_drive, 0, "%"), layers,
               p->chunk, number(pad, 100 * f.pad, 2, "%"));
    }
}

static void print_speeds(const tiers_table *t)
{
    char cell[9][16];
    const char *gain = t->both ? " on/off" : "";
    printf("\n%30s%*s%28s %22s\n", "tok/s", (int)strlen(gain), "", "MB of experts a token", "of");
    printf("%3s %8s %8s %8s%s%7s%7s%7s%7s %7s %6s %6s  %-11s %s\n", "row", "prompt", "decode",
           "expected", gain, "VRAM", "CPU", "bus", "drive", "overlap", "late", "limit", "bound by",
           "tokens");
    for (int i = 0; i < t->n_row; i++) {
        const tiers_row *r = &t->rows[i];
        if (!r->on.done) continue;
        const figures f = figures_of(t, r);
        printf("%3d %8.1f %8.2f %8s", i + 1, f.prompt, f.decode,
               number(cell[0], f.expected, 2, ""));
        if (t->both) printf(" %6s", number(cell[1], f.gain, 2, ""));
        printf("%7s%7s%7s%7s %7s %6s %6s  %-11s %08" PRIx32 "\n",
               number(cell[2], f.vram * 1e-6, 1, ""), number(cell[3], f.cpu * 1e-6, 1, ""),
               number(cell[4], f.bus * 1e-6, 1, ""), number(cell[5], f.drive * 1e-6, 1, ""),
               number(cell[6], 100 * f.overlap, 0, "%"), number(cell[7], 100 * f.late, 1, "%"),
               number(cell[8], 100 * f.of_limit, 0, "%"), plan_bound_name(r->on.p.bound),
               (uint32_t)r->on.hash);
    }
}

void tiers_print(const tiers_table *t)
{
    char name[256], ctx[32], others[256];
    printf("%s: %s, %s%s%d thread%s, %s cache of %s tokens\nprompt of %d, %d tokens after it, "
           "median of %d\n\n",
           ESC(name, str_from(t->path)), t->arch, t->gpu, t->gpu[0] ? ", " : "", t->n_thread,
           t->n_thread == 1 ? "" : "s", kv_type_name(t->so->kv),
           text_count(ctx, sizeof ctx, (uint64_t)t->so->ctx), t->n_prompt, t->n_token, t->n_run);
    print_places(t);
    if (!tiers_first_done(t)) return;
    print_speeds(t);
    if (other_rows(others, sizeof others, t)[0])
        printf("tokens differ from row %d in: %s\n", (int)(tiers_first_done(t) - t->rows) + 1,
               others);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *real(double v) { return isnan(v) ? json_null() : json_real(v); }

static json_t *size_json(uint64_t bytes)
{
    return bytes == TIERS_ALL ? json_null() : json_integer((json_int_t)bytes);
}

static json_t *text_json(const char *s)
{
    char shown[1600];
    return s[0] ? json_string(ESC(shown, str_from(s))) : json_null();
}

static json_t *rates_json(const tiers_table *t, const double *rates)
{
    const spread s = spread_of(rates, t->n_run);
    return spread_json(&s, rates);
}

static json_t *hash_json(const tiers_outcome *o)
{
    char text[24];
    snprintf(text, sizeof text, "%016" PRIx64, o->hash);
    return json_string(text);
}

/* The row without post-fetch. */
static json_t *off_json(const tiers_table *t, const tiers_row *r, const figures *f)
{
    const tiers_outcome *o = &r->off;
    if (!o->done) return json_null();
    return json_pack("{s:o, s:o, s:o, s:o}", "prompt_tok_s", rates_json(t, o->prompt),
                     "decode_tok_s", rates_json(t, o->decode), "ratio", real(f->gain),
                     "tokens", hash_json(o));
}

static json_t *moved_json(const tiers_outcome *o, const figures *f)
{
    return json_pack("{s:f, s:f, s:f, s:f, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:b}",
                     "vram_bytes_per_token", f->vram, "cpu_bytes_per_token", f->cpu,
                     "bus_bytes_per_token", f->bus, "drive_bytes_per_token", f->drive,
                     "overlap", real(f->overlap), "overlap_most", real(f->overlap_most),
                     "late", real(f->late),
                     "missed", real(f->missed), "predicted", real(f->predicted),
                     "guessed_right", real(f->guessed_right),
                     "postfetch_share_of_vram", real(f->pad),
                     "postfetch_bytes", (json_int_t)o->host.pad_bytes,
                     "postfetch_on", (int)o->host.fetching);
}

/* Seconds a token: the device's own, the CPU's replies, and what either of these waited for. */
static json_t *times_json(const tiers_table *t, const tiers_outcome *o)
{
    const double n = (double)t->n_token * t->n_run;
    return json_pack("{s:f, s:f, s:f, s:f, s:f}", "gpu", o->host.ask_s / n,
                     "cpu", o->host.cpu_s / n, "late", o->host.wait_s / n,
                     "bus", o->host.pull_s / n, "drive", o->store.wait_s / n);
}

static json_t *row_json(const tiers_table *t, const tiers_row *r)
{
    const tiers_outcome *o = &r->on;
    const plan_view view = { &o->p, &t->unbounded->in.model, o->measured, 0,
                             t->unbounded->gemm_name };
    json_t *root = json_pack("{s:o, s:o, s:o}", "vram_budget", size_json(r->vram),
                             "ram_budget", size_json(r->ram), "error",
                             text_json(o->done ? "" : o->error[0] ? o->error : "interrupted"));
    if (!root || !o->done) return root;
    const figures f = figures_of(t, r);
    json_t *more = json_pack("{s:o, s:o, s:o, s:o, s:o, s:s, s:o, s:o, s:o, s:o, s:b}",
                             "plan", plan_view_json(&view),
                             "prompt_tok_s", rates_json(t, o->prompt),
                             "decode_tok_s", rates_json(t, o->decode),
                             "expected_tok_s", real(f.expected), "of_limit", real(f.of_limit),
                             "bound_by", plan_bound_name(o->p.bound), "moved", moved_json(o, &f),
                             "seconds_per_token", times_json(t, o),
                             "without_postfetch", off_json(t, r, &f), "tokens", hash_json(o),
                             "same_in_every_run", (int)o->same);
    const bool failed = !more || json_object_update(root, more) < 0;
    json_decref(more);
    if (!failed) return root;
    json_decref(root);
    return NULL;
}

int tiers_print_json(const tiers_table *t)
{
    char name[1024], others[256];
    json_t *rows = json_array();
    for (int i = 0; i < t->n_row; i++) rows = console_append(rows, row_json(t, &t->rows[i]));
    json_t *root = json_pack("{s:s, s:s, s:s, s:i, s:s, s:i, s:s, s:i, s:i, s:i, s:b, s:o}",
                             "model", ESC(name, str_from(t->path)),
                             "architecture", t->arch, "gpu", t->gpu, "threads", t->n_thread,
                             "kv", kv_type_name(t->so->kv), "ctx", t->so->ctx,
                             "cache_policy", cache_policy_name(t->cache),
                             "prompt_tokens", t->n_prompt, "decode_tokens", t->n_token,
                             "runs", t->n_run,
                             "same_tokens", other_rows(others, sizeof others, t)[0] == '\0',
                             "rows", rows);
    return console_report(root, REPORT_FLAGS, "");
}
