/* metrics.c - counts to text. */
#include "cli/serve/metrics.h"

typedef struct metric {
    const char *name, *kind, *help;
    double value;
} metric;

void metrics_write(textbuf *to, const desk_counts *c)
{
    const metric list[] = {
        { "llamacpp:prompt_tokens_total", "counter", "Tokens of prompts that were computed",
          (double)c->prompt_tokens },
        { "llamacpp:prompt_tokens_cached_total", "counter",
          "Tokens of prompts that were there already", (double)c->cached_tokens },
        { "llamacpp:prompt_seconds_total", "counter", "Time for prompts", c->prompt_s },
        { "llamacpp:tokens_predicted_total", "counter", "Tokens of answers",
          (double)c->answer_tokens },
        { "llamacpp:tokens_predicted_seconds_total", "counter", "Time for answers", c->answer_s },
        { "llamacpp:n_tokens_max", "counter", "Tokens of the longest conversation",
          (double)c->most_tokens },
        { "llamacpp:prompt_tokens_seconds", "gauge", "Tokens of prompts a second",
          c->prompt_s > 0 ? (double)c->prompt_tokens / c->prompt_s : 0 },
        { "llamacpp:predicted_tokens_seconds", "gauge", "Tokens of answers a second",
          c->answer_s > 0 ? (double)c->answer_tokens / c->answer_s : 0 },
        { "llamacpp:requests_processing", "gauge", "Requests being answered", c->running },
        { "llamacpp:requests_deferred", "gauge", "Requests that wait", c->waiting },
        { "moe_requests_total", "counter", "Requests for answers", (double)c->requests },
        { "moe_requests_cancelled_total", "counter", "Requests whose client left",
          (double)c->cancelled },
        { "moe_requests_failed_total", "counter", "Requests that failed", (double)c->failed },
        { "moe_requests_refused_total", "counter", "Requests that found no room to wait",
          (double)c->refused },
    };
    for (size_t i = 0; i < ARRAY_LEN(list); i++)
        textbuf_printf(to, "# HELP %s %s\n# TYPE %s %s\n%s %.9g\n", list[i].name, list[i].help,
                       list[i].name, list[i].kind, list[i].name, list[i].value);
}
