/* api_answer.c - parts of a response that several APIs write alike: text, finish reason, usage,
 * timings.
 *
 * api_writer.c calls a style, and styles call this file; it calls neither. */
#include "cli/serve/api_internal.h"

void api_put_joined(textbuf *b, const api_answer *c, part_kind kind)
{
    for (int i = 0; i < c->n_part; i++)
        if (c->parts[i].kind == kind) textbuf_put(b, textbuf_view(&c->parts[i].text));
}

const char *api_finish_reason(const api_writer *w, const api_answer *c)
{
    const bool only_call = !w->r->parallel_calls && c->n_call;
    if (!only_call && (c->end == ANSWER_LENGTH || c->end == ANSWER_CONTEXT ||
                       c->end == ANSWER_INTERRUPTED)) return "length";
    return c->n_call ? "tool_calls" : "stop";
}

void api_close_event(api_writer *w) { textbuf_str(&w->out, "}\n\n"); }

void api_put_failure(api_writer *w, const api_error *error)
{
    textbuf_str(&w->out, w->r->kind == API_MESSAGES ? "event: error\ndata: " : "data: ");
    api_put_error(&w->out, error, w->r->kind, w->id);
    textbuf_str(&w->out, "\n\n");
}

void api_put_usage(textbuf *b, const api_usage *u)
{
    textbuf_printf(b, "{\"prompt_tokens\":%d,\"completion_tokens\":%d,\"total_tokens\":%d,"
                   "\"prompt_tokens_details\":{\"cached_tokens\":%d},"
                   "\"completion_tokens_details\":{\"reasoning_tokens\":%d}}",
                   u->n_prompt, u->n_answer, u->n_prompt + u->n_answer, u->n_cached,
                   u->n_reasoning);
}

static double per_second(int n, uint64_t ns)
{
    return ns ? n * 1e9 / (double)ns : 0;
}

void api_put_timings(textbuf *b, const api_usage *u)
{
    const int n_read = u->n_prompt - u->n_cached;
    textbuf_printf(b, "{\"cache_n\":%d,\"prompt_n\":%d,\"prompt_ms\":%.3f,"
                   "\"prompt_per_second\":%.3f,\"predicted_n\":%d,\"predicted_ms\":%.3f,"
                   "\"predicted_per_second\":%.3f}", u->n_cached, n_read,
                   (double)u->prompt_ns * 1e-6, per_second(n_read, u->prompt_ns), u->n_answer,
                   (double)u->answer_ns * 1e-6, per_second(u->n_answer, u->answer_ns));
}
