/* prompt_cache.c - cuts a prompt, plans the memory of its states, and has them written. */
#include "cli/prompt_cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cache_directory.h"
#include "cli/console.h"
#include "engine/session/state.h"

enum {
    CUT_TOKENS = 1024,                   /* least distance of cuts: shorter ones would split the
                                          * chunks of a long prompt */
    LEAST_GAP = 4096                     /* tokens of one file, for which there is always room */
};

void prompt_cache_folder(char *path, size_t cap)
{
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    path[0] = '\0';
    if (xdg && xdg[0] == '/') snprintf(path, cap, "%s/moe/prompts/x", xdg);
    else if (home && home[0] == '/') snprintf(path, cap, "%s/.cache/moe/prompts/x", home);
    if (!path[0] || !cache_directory_allows(path)) {
        path[0] = '\0';
        return;
    }
    cache_directory_make(path);
    *strrchr(path, '/') = '\0';
}

/* ---- room ------------------------------------------------------------------------------------ */

/* Cuts are at multiples of this number, itself a multiple of the chunk: they split no chunk. */
static int cut_every(const session_options *so)
{
    const int chunk = so->chunk > 0 ? so->chunk : SESSION_CHUNK;
    return (CUT_TOKENS + chunk - 1) / chunk * chunk;
}

/* Between two snapshots of a prompt of n tokens: one is for the system message, one for the end. */
static int gap_of(int n, int n_snapshot, int every)
{
    return (n / (n_snapshot - 2) + every) / every * every;
}

int prompt_cache_place(prompt_cache *p, model_handle *l, session_options *so, int n_prompt,
                       int n_snapshot, err_ctx *err)
{
    placement_options *asked = &l->asked;
    const int before = so->n_snapshot, most = min_int(n_prompt, so->ctx);
    const int gap = gap_of(most, n_snapshot, LEAST_GAP);
    p->n_snapshot = n_snapshot;
    if (n_prompt < PROMPT_CACHE_LEAST || p->drive_bytes == 0) return model_handle_place(l, so, err);
    const uint64_t rows = state_rows_bytes(l->m, so->kv, min_int(gap, most));
    const uint64_t checkpoint = state_checkpoint_bytes(l->m, so->kv, most);
    if (!size_add(&p->most_bytes, rows, checkpoint)) p->most_bytes = 0;
    const placement_options as_given = *asked;
    asked->ram_aside += p->most_bytes;   /* a bound of RAM counts it, too */
    so->n_snapshot = before > n_snapshot ? before : n_snapshot;
    int rc = p->most_bytes > 0 ? model_handle_place(l, so, err) : ERR_NOMEM;
    *asked = as_given;
    if (rc == ERR_NOMEM) {
        p->most_bytes = 0;
        so->n_snapshot = before;
        rc = model_handle_place(l, so, err);
    }
    return rc;
}

/* ---- a prompt -------------------------------------------------------------------------------- */

static void open_once(prompt_cache *p, session *s)
{
    char folder[1024];
    err_ctx err = { 0 };
    if (p->tried) return;
    p->tried = true;
    prompt_cache_folder(folder, sizeof folder);
    const prefix_cache_options o = { .folder = folder, .drive_bytes = p->drive_bytes,
                                     .most_bytes = p->most_bytes, .note = console_note_line };
    if (folder[0] && prefix_cache_create(&p->kept, s, &o, &err) < 0)
        console_note("prompts are not kept: %s", err.msg);
}

void prompt_cache_begin(prompt_cache *p, answer_options *o, session *s, const session_options *so,
                        const prompt_parts *parts)
{
    const int every = cut_every(so), n = parts->n_prompt;
    int at[PREFIX_DEFERRED], n_at = 0;
    if (n < PROMPT_CACHE_LEAST) return;
    o->n_stable = parts->n_stable;
    o->cut_every = every;
    if (parts->n_system >= PROMPT_CACHE_LEAST) {
        p->cuts[0] = at[n_at++] = parts->n_system;
        o->cuts = p->cuts;
        o->n_cut = 1;
    }
    if (p->most_bytes == 0) return;
    open_once(p, s);
    if (!p->kept) return;
    const int gap = gap_of(n, p->n_snapshot, every);
    for (int pos = gap; pos < n && n_at < PREFIX_DEFERRED - 1; pos += gap) at[n_at++] = pos;
    at[n_at++] = o->n_stable;
    prefix_cache_defer(p->kept, at, n_at);
    o->cache = p->kept;
}

void prompt_cache_end(prompt_cache *p, session *s, int least)
{
    if (p->kept) (void)prefix_cache_settle(p->kept, s, PROMPT_CACHE_LEAST, least, NULL);
}

void prompt_cache_close(prompt_cache *p)
{
    prefix_cache_free(p->kept);
    p->kept = NULL;
}

int prompt_cache_tokens(const id_list *prompt, const chat *format, encoder *enc,
                        const chat_request *all, int n)
{
    chat_request req = *all;
    id_list ids = { 0 };
    err_ctx unused;
    req.n_message = n;
    req.no_cue = true;
    const size_t cue = chat_format_of(format) == CHAT_RAW;       /* other formats may have none */
    const bool ok = chat_render(&ids, format, enc, &req, &unused) == 0 && ids.n > 0 &&
                    ids.n + cue <= prompt->n &&
                    memcmp(ids.ids, prompt->ids, ids.n * sizeof *ids.ids) == 0;
    const int n_token = ok ? (int)ids.n : 0;
    ids_free(&ids);
    return n_token;
}

/* How many tokens of the cue any answer has in its place later, when it is no longer the latest:
 * that keeps the <think> of some cues. The last that this one has is not counted: it may become one
 * with what another begins with. */
static int lasting_cue(const chat *format, encoder *enc, chat_thinking thinking)
{
    const chat_message said[] = { { .role = CHAT_USER, .content = str_from("Well?") },
                                  { .role = CHAT_ASSISTANT, .content = str_from("Well.") },
                                  { .role = CHAT_USER, .content = str_from("Well!") } };
    const chat_request asked = { .messages = said, .n_message = 1, .thinking = thinking };
    const chat_request answered = { .messages = said, .n_message = 3, .no_cue = true,
                                    .thinking = thinking };
    id_list cue = { 0 }, answer = { 0 };
    err_ctx unused;
    int n = 0;
    if (chat_render(&cue, format, enc, &asked, &unused) == 0 &&
        chat_render(&answer, format, enc, &answered, &unused) == 0) {
        const int before = prompt_cache_tokens(&cue, format, enc, &asked, 1);
        size_t same = 0;
        while (same < cue.n && same < answer.n && cue.ids[same] == answer.ids[same]) same++;
        if (before > 0) n = max_int((int)same - before - 1, 0);
    }
    ids_free(&cue);
    ids_free(&answer);
    return n;
}

/* How many tokens stay once there is an answer and another question: with that, what the latest
 * messages show of their reasoning may go. */
static int lasting_tokens(const id_list *prompt, const chat *format, encoder *enc,
                          const chat_request *all)
{
    const size_t n = (size_t)all->n_message;
    chat_message *said = mem_array(n + 2, sizeof *said);
    chat_request later = *all;
    id_list ids = { 0 };
    err_ctx unused;
    size_t same = 0;
    if (!said) return 0;
    memcpy(said, all->messages, n * sizeof *said);
    said[n] = (chat_message){ .role = CHAT_ASSISTANT, .content = str_from("Well.") };
    said[n + 1] = (chat_message){ .role = CHAT_USER, .content = str_from("Well!") };
    later.messages = said;
    later.n_message = (int)n + 2;
    later.no_cue = true;
    if (chat_render(&ids, format, enc, &later, &unused) == 0)
        while (same < prompt->n && same < ids.n && prompt->ids[same] == ids.ids[same]) same++;
    ids_free(&ids);
    mem_free(said);
    return (int)same;
}

int prompt_cache_stable(const id_list *prompt, const chat *format, encoder *enc,
                        const chat_request *all)
{
    const int n = prompt_cache_tokens(prompt, format, enc, all, all->n_message);
    const int cue = n == 0 ? 0 : lasting_cue(format, enc, all->thinking);
    if (n == 0) return 0;
    return min_int(min_int(n + cue, (int)prompt->n - 1), lasting_tokens(prompt, format, enc, all));
}
