/* metrics.c - tables of metrics, and the counts of routes. */
#include "cli/serve/metrics.h"

#include <pthread.h>
#include <string.h>

/* ---- by route and status --------------------------------------------------------------------- */

enum { MAX_COUNTS = 256 };              /* routes times statuses */

struct route_counts {
    pthread_mutex_t lock;
    int n;
    struct { const char *route; int status; uint64_t times; } counts[MAX_COUNTS];
};

int route_counts_create(route_counts **out, err_ctx *err)
{
    *out = mem_zalloc(sizeof **out);
    if (!*out) return err_set(err, ERR_NOMEM, "counts: %zu bytes", sizeof **out);
    pthread_mutex_init(&(*out)->lock, NULL);
    return 0;
}

void route_counts_free(route_counts *c)
{
    if (!c) return;
    pthread_mutex_destroy(&c->lock);
    mem_free(c);
}

void route_counts_add(route_counts *c, const char *route, int status)
{
    int i = 0;
    pthread_mutex_lock(&c->lock);
    while (i < c->n && (c->counts[i].status != status ||
                        strcmp(c->counts[i].route, route) != 0)) i++;
    if (i == c->n && i < MAX_COUNTS) {
        c->counts[i].route = route;
        c->counts[i].status = status;
        c->n++;
    }
    if (i < c->n) c->counts[i].times++;
    pthread_mutex_unlock(&c->lock);
}

static void write_routes(textbuf *out, route_counts *c)
{
    static const char name[] = "moe_http_requests_total";
    textbuf_printf(out, "# HELP %s Requests by route and status; 0: the client left first\n"
                   "# TYPE %s counter\n", name, name);
    pthread_mutex_lock(&c->lock);
    for (int i = 0; i < c->n; i++)
        textbuf_printf(out, "%s{route=\"%s\",status=\"%d\"} %llu\n", name, c->counts[i].route,
                       c->counts[i].status, (unsigned long long)c->counts[i].times);
    pthread_mutex_unlock(&c->lock);
}

/* ---- totals ---------------------------------------------------------------------------------- */

typedef struct metric {
    const char *name, *kind, *help;
    double value;
} metric;

static void write_list(textbuf *out, const metric *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        textbuf_printf(out, "# HELP %s %s\n# TYPE %s %s\n%s %.9g\n", list[i].name, list[i].help,
                       list[i].name, list[i].kind, list[i].name, list[i].value);
}

/* A value of a metric with a label. */
typedef struct labelled { const char *label; double value; } labelled;

static void write_labelled(textbuf *out, const char *name, const char *label, const char *help,
                           const labelled *list, size_t n)
{
    textbuf_printf(out, "# HELP %s %s\n# TYPE %s counter\n", name, help, name);
    for (size_t i = 0; i < n; i++)
        textbuf_printf(out, "%s{%s=\"%s\"} %.17g\n", name, label, list[i].label, list[i].value);
}

static void write_experts(textbuf *out, const perf_counts *p)
{
    const labelled choices[] = {
        { "hot", (double)p->hot }, { "cold", (double)p->cold },
        { "drive", (double)p->ram_misses },
    };
    const labelled bytes[] = {
        { "vram", (double)p->vram_bytes }, { "ram", (double)p->cpu_bytes },
        { "bus", (double)(p->fetch_bytes + p->upload_bytes) },
        { "drive", (double)p->drive_bytes },
    };
    const metric passes[] = {
        { "moe_passes_total", "counter", "Passes through the layers for tokens of answers",
          (double)p->passes },
        { "moe_pass_rows_total", "counter", "Answers in these passes", (double)p->rows },
        { "moe_pass_tokens_total", "counter", "Tokens in these passes, drafts included",
          (double)p->tokens },
        { "moe_pass_experts_total", "counter",
          "Different experts that these passes read on the CPU, in all layers",
          (double)p->read_experts },
    };
    write_list(out, passes, ARRAY_LEN(passes));
    write_labelled(out, "moe_expert_choices_total", "found",
                   "Experts chosen by tokens of answers, in VRAM (hot) and outside (cold); experts "
                   "read from the drive, also for prompts", choices, ARRAY_LEN(choices));
    write_labelled(out, "moe_expert_bytes_total", "from",
                   "Bytes of experts by the tier that they were read from",
                   bytes, ARRAY_LEN(bytes));
}

void metrics_write(textbuf *out, const queue_stats *c, const perf_counts *perf,
                   route_counts *routes)
{
    const metric list[] = {
        { "llamacpp:prompt_tokens_total", "counter", "Prompt tokens computed",
          (double)c->prompt_tokens },
        { "llamacpp:prompt_tokens_cached_total", "counter",
          "Prompt tokens taken from a cache", (double)c->cached_tokens },
        { "llamacpp:prompt_seconds_total", "counter", "Seconds spent on prompts", c->prompt_s },
        { "llamacpp:tokens_predicted_total", "counter", "Tokens of answers",
          (double)c->answer_tokens },
        { "llamacpp:tokens_predicted_seconds_total", "counter", "Seconds spent on answers",
          c->answer_s },
        { "llamacpp:n_decode_total", "counter", "Steps: a token of each answer, or a chunk of a prompt",
          (double)c->work.steps },
        { "llamacpp:n_busy_slots_per_decode", "gauge", "Busy slots per step, on average",
          c->work.steps > 0 ? (double)c->work.busy_steps / (double)c->work.steps : 0 },
        { "llamacpp:n_tokens_max", "counter", "Tokens of the longest conversation",
          (double)c->longest_tokens },
        { "llamacpp:prompt_tokens_seconds", "gauge", "Prompt tokens per second",
          c->prompt_s > 0 ? (double)c->prompt_tokens / c->prompt_s : 0 },
        { "llamacpp:predicted_tokens_seconds", "gauge",
          "Answer tokens per second of a conversation", c->answer_s > 0
              ? (double)c->answer_tokens / c->answer_s : 0 },
        { "llamacpp:requests_processing", "gauge", "Requests in a slot", c->running },
        { "llamacpp:requests_deferred", "gauge", "Requests in the queue", c->waiting },
        { "moe_drafts_total", "counter", "Drafts that were verified", (double)c->work.drafts },
        { "moe_drafts_right_total", "counter", "Verified drafts that were right",
          (double)c->work.right_drafts },
        { "moe_queue_seconds_total", "counter", "Seconds that requests waited for a slot",
          c->queue_s },
        { "moe_requests_total", "counter", "Requests for answers", (double)c->requests },
        { "moe_requests_cancelled_total", "counter", "Requests whose client left",
          (double)c->cancelled },
        { "moe_requests_failed_total", "counter", "Requests that failed", (double)c->failed },
        { "moe_requests_refused_total", "counter", "Requests refused because the queue was full",
          (double)c->refused },
    };
    write_list(out, list, ARRAY_LEN(list));
    write_routes(out, routes);
    if (perf) write_experts(out, perf);
}
