/* chat_slash.c - the commands of a chat, which begin with a slash.
 *
 * Invariant: a command that fails leaves the conversation unchanged. Commands print to stderr;
 * stdout carries answers only. */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/chat/chat_session.h"
#include "cli/console.h"
#include "cli/expert_cache_files.h"
#include "engine/session/runner.h"
#include "engine/session/state.h"

/* ---- files --------------------------------------------------------------------------------- */

/* Expands ~/ as a shell does. */
static bool expand_path(char *dst, size_t cap, str_view typed)
{
    const char *home = str_starts(typed, "~/") ? getenv("HOME") : NULL;
    const size_t skip = home ? 1 : 0;
    const int n = snprintf(dst, cap, "%s%.*s", home ? home : "", (int)(typed.len - skip),
                           typed.ptr + skip);
    return n > 0 && (size_t)n < cap;
}

/* Only a saved chat may be overwritten, so that a typing error destroys no other file. */
static int check_older(const char *path, err_ctx *err)
{
    static const char magic[8] = STATE_FILE_MAGIC;
    char first[sizeof magic];
    FILE *f = fopen(path, "rb");
    if (!f) return err_sys(err, "is there already and cannot be read: not overwritten");
    const size_t n = fread(first, 1, sizeof first, f);
    const bool bad = ferror(f) || (n > 0 && (n < sizeof magic || memcmp(first, magic, n) != 0));
    fclose(f);
    if (!bad) return 0;
    return err_set(err, ERR_IO, "is there already and is no saved chat: not overwritten");
}

/* The target of path: links stay, their targets are replaced. */
static int choose_target(char dst[PATH_MAX], const char *path, err_ctx *err)
{
    struct stat st;
    if (stat(path, &st) != 0) {
        if (errno != ENOENT) return err_sys(err, "cannot write");
        if (lstat(path, &st) == 0)
            return err_set(err, ERR_IO, "is a link to what is not there: not overwritten");
        snprintf(dst, PATH_MAX, "%s", path);     /* stat took it: it is not too long */
        return 0;
    }
    if (!S_ISREG(st.st_mode))
        return err_set(err, ERR_IO, "is there already and is no file: not overwritten");
    if (!realpath(path, dst)) return err_sys(err, "cannot resolve");
    return check_older(dst, err);
}

static int save(chat_session *t, const char *path, err_ctx *err)
{
    char *text, target[PATH_MAX];
    size_t len;
    int rc;

    if ((rc = choose_target(target, path, err)) < 0) return rc;
    t->set.sampling = t->draw.options;
    if ((rc = conversation_write(&text, &len, &t->conv, &t->set, err)) < 0) return rc;
    rc = session_save(t->s, target, (str_view){ text, len }, err);
    mem_free(text);
    return rc;
}

/* The file's settings, overridden by options. */
static sampling_args merged(const sampling_args *flags, const conversation_settings *s)
{
    const sampler_options *o = &s->sampling;
    sampling_args a = *flags;
    if (isnan(a.temp)) a.temp = o->temperature;
    if (isnan(a.top_p)) a.top_p = o->top_p;
    if (isnan(a.min_p)) a.min_p = o->min_p;
    if (isnan(a.repeat_penalty)) a.repeat_penalty = o->repeat_penalty;
    if (isnan(a.presence_penalty)) a.presence_penalty = o->presence_penalty;
    if (isnan(a.frequency_penalty)) a.frequency_penalty = o->frequency_penalty;
    if (a.top_k == INT64_MIN) a.top_k = o->top_k;
    if (a.penalty_window == INT64_MIN) a.penalty_window = o->penalty_window;
    if (a.seed < 0) a.seed = s->seed;
    return a;
}

int chat_load(chat_session *t, const char *path, err_ctx *err)
{
    conversation conv;
    conversation_settings set;
    sampling draw;
    char *text;
    size_t len;
    int rc = session_load(t->s, path, &text, &len, err);

    if (rc < 0) return rc;
    /* The session may now hold other tokens than the conversation. The next turn reuses what
     * fits. */
    rc = conversation_read(&conv, &set, (str_view){ text, len }, err);
    mem_free(text);
    if (rc < 0) return rc;
    const sampling_args a = merged(&t->flags, &set);
    rc = sampling_open(&draw, &a, t->l.m, t->l.tok, session_ctx(t->s), err);
    if (rc < 0) {
        conversation_release(&conv);
        return rc;
    }
    if (t->effort_given) set.effort = t->set.effort, set.thinking = t->set.thinking;
    if (t->date_given) memcpy(set.date, t->set.date, sizeof set.date);
    set.seed = a.seed;
    conversation_release(&t->conv);
    sampling_close(&t->draw);
    t->conv = conv;
    t->set = set;
    t->draw = draw;
    t->last = (answer_stats){ 0 };
    return 0;
}

/* ---- commands ------------------------------------------------------------------------------ */

static int failed(const char *what, const err_ctx *err)
{
    console_fail(what, err);
    return CHAT_SLASH_FAILED;
}

static const char *text_exchanges(char *dst, size_t cap, const chat_session *t)
{
    const int n = conversation_n_question(&t->conv);
    snprintf(dst, cap, "%d exchange%s", n, n == 1 ? "" : "s");
    return dst;
}

static int do_reset(chat_session *t, str_view arg)
{
    (void)arg;
    conversation_reset(&t->conv);
    console_note("the conversation is cleared%s",
                 t->conv.n_message ? ", except the system prompt" : "");
    return CHAT_SLASH_DONE;
}

static int do_undo(chat_session *t, str_view arg)
{
    char left[32];
    (void)arg;
    if (!conversation_undo(&t->conv)) {
        console_note("/undo: the conversation is empty");
        return CHAT_SLASH_FAILED;
    }
    console_note("the last exchange is removed, %s left", text_exchanges(left, sizeof left, t));
    return CHAT_SLASH_DONE;
}

static int do_retry(chat_session *t, str_view arg)
{
    err_ctx err;
    (void)arg;
    if (conversation_n_question(&t->conv) == 0) {
        console_note("/retry: the conversation is empty");
        return CHAT_SLASH_FAILED;
    }
    if (chat_turn_again(t, &err) == 0) return CHAT_SLASH_DONE;
    console_error("%s", err.msg);
    return CHAT_SLASH_FAILED;
}

static int do_system(chat_session *t, str_view arg)
{
    char esc[900];
    err_ctx err;

    if (arg.len == 0) {
        const bool any = t->conv.n_message > 0 && t->conv.messages[0].role == CHAT_SYSTEM;
        console_note("system prompt: %s", any ? ESC(esc, t->conv.messages[0].content) : "none");
        return CHAT_SLASH_DONE;
    }
    if (str_is(arg, "-")) arg.len = 0;
    if (conversation_set_system(&t->conv, arg, &err) < 0) return failed("/system", &err);
    conversation_reset(&t->conv);
    console_note("new conversation, %s system prompt", arg.len ? "with this" : "without");
    return CHAT_SLASH_DONE;
}

static void show_counts(const chat_session *t)
{
    const perf_counts c = runner_perf(session_runner(t->s));
    char line[PERF_LINE_CAP];
    if (t->perf == PERF_OFF) return;
    if (perf_view_vram_line(line, sizeof line, &c)[0]) fprintf(stderr, "experts   %s\n", line);
    if (perf_view_ram_line(line, sizeof line, &c)[0]) fprintf(stderr, "drive     %s\n", line);
}

static int do_stats(chat_session *t, str_view arg)
{
    const struct chat_totals *a = &t->total;
    const double prompt_s = (double)a->prompt_ns * 1e-9, answer_s = (double)a->answer_ns * 1e-9;
    char line[256], n1[32], n2[32], n3[32];
    model_handle_bytes bytes;
    err_ctx err;
    int n;

    (void)arg;
    if (chat_count_tokens(&n, t, &err) < 0 || model_handle_plan(&bytes, &t->l, &t->room, &err) < 0)
        return failed("/stats", &err);
    /* rendering adds an end that no longer fits after an answer that filled the context */
    const int ctx = session_ctx(t->s);
    fprintf(stderr, "context   %s of %s tokens%s, %s\n",
            text_count(n1, sizeof n1, (uint64_t)min_int(n, ctx)),
            text_count(n2, sizeof n2, (uint64_t)ctx), n >= ctx ? " (full)" : "",
            text_exchanges(line, sizeof line, t));
    if (t->last.n_prompt)
        fprintf(stderr, "last      %s\n", chat_turn_summary(line, sizeof line, t));
    fprintf(stderr, "total     %d turn%s: prompts %s tokens (%s reused) in %.1f s, ", a->n_turn,
            a->n_turn == 1 ? "" : "s", text_count(n1, sizeof n1, a->n_prompt),
            text_count(n2, sizeof n2, a->n_reused), prompt_s);
    fprintf(stderr, "answers %s tokens in %.1f s\n", text_count(n1, sizeof n1, a->n_answer),
            answer_s);
    fprintf(stderr, "memory    weights %s, session %s%s, peak %s\n",
            text_bytes(n1, sizeof n1, bytes.weights), text_bytes(n2, sizeof n2, bytes.session),
            model_handle_copy_text(line, sizeof line, &t->l),
            text_bytes(n3, sizeof n3, peak_memory_bytes()));
    show_counts(t);
    fprintf(stderr, "seed      %lld, %lld answer%s drawn\n", (long long)t->set.seed,
            (long long)t->set.n_answer, t->set.n_answer == 1 ? "" : "s");
    return CHAT_SLASH_DONE;
}

/* apply FILE: the experts used most in a profile. */
static int do_cache(chat_session *t, str_view arg)
{
    const str_view word = { "apply ", 6 };
    char path[PATH_MAX];
    err_ctx err;
    if (!str_starts(arg, word.ptr) ||
        !expand_path(path, sizeof path, (str_view){ arg.ptr + word.len, arg.len - word.len })) {
        console_error("/cache needs apply and a FILE of --learn");
        return CHAT_SLASH_FAILED;
    }
    const int n = expert_cache_files_apply(t->l.e, path, t->l.where, &t->l.asked, t->l.m, &err);
    if (n < 0) return failed("/cache apply", &err);
    console_note("%d expert%s moved to VRAM", n, n == 1 ? "" : "s");
    return CHAT_SLASH_DONE;
}

/* /load and /save. */
static int do_file(chat_session *t, str_view arg, bool loads)
{
    const char *what = loads ? "/load" : "/save";
    char path[PATH_MAX], exchanges[32];
    err_ctx err;
    int n = 0, rc;

    if (!expand_path(path, sizeof path, arg)) {
        console_error("%s needs a FILE", what);
        return CHAT_SLASH_FAILED;
    }
    rc = loads ? chat_load(t, path, &err) : save(t, path, &err);
    if (rc == 0) rc = chat_count_tokens(&n, t, &err);
    if (rc < 0) return failed(path, &err);
    console_note("%s %s: %s, %d tokens", loads ? "loaded" : "saved", path,
                 text_exchanges(exchanges, sizeof exchanges, t), n);
    return CHAT_SLASH_DONE;
}

static int do_save(chat_session *t, str_view arg)
{
    return do_file(t, arg, false);
}

static int do_load(chat_session *t, str_view arg)
{
    return do_file(t, arg, true);
}

static int do_quit(chat_session *t, str_view arg)
{
    (void)t;
    (void)arg;
    return CHAT_SLASH_QUIT;
}

static int do_help(chat_session *t, str_view arg);

/* In the order of /help and of chat_slash_words. */
static const struct slash {
    const char *name, *operand, *help;
    int (*run)(chat_session *t, str_view arg);
} commands[CHAT_SLASH_N] = {
    { "/help", "", "print this list", do_help },
    { "/reset", "", "clear the conversation, except the system prompt", do_reset },
    { "/undo", "", "remove the last exchange", do_undo },
    { "/retry", "", "answer the last message again", do_retry },
    { "/regen", "", "the same", do_retry },
    { "/system", "TEXT", "start again with this system prompt; -: none; alone: print it",
      do_system },
    { "/stats", "", "print context, speed, reuse, memory, experts", do_stats },
    { "/cache", "apply FILE", "move the experts used most in a file of --learn to VRAM", do_cache },
    { "/save", "FILE", "write the chat to a file", do_save },
    { "/load", "FILE", "continue a chat from a file", do_load },
    { "/quit", "", "leave, as Ctrl-D does", do_quit },
    { "/exit", "", "the same", do_quit },
};

const char *const chat_slash_words[CHAT_SLASH_N] = {
    "/help", "/reset", "/undo", "/retry", "/regen", "/system", "/stats", "/cache", "/save", "/load",
    "/quit", "/exit",
};

static int do_help(chat_session *t, str_view arg)
{
    (void)t;
    (void)arg;
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        fprintf(stderr, "  %-8s%-10s %s\n", commands[i].name, commands[i].operand,
                commands[i].help);
    fputs(
        "A \\ at the end of a line continues it; lines of \"\"\" begin and end a block of lines.\n"
        "Type // for a message that begins with a slash. Ctrl-C stops an answer.\n",
        stderr);
    return CHAT_SLASH_DONE;
}

static bool is_space(char c) { return c == ' ' || c == '\t'; }

int chat_slash(chat_session *t, str_view line)
{
    str_view name = line, arg;
    char esc[64];

    while (line.len && is_space(line.ptr[line.len - 1])) line.len--;
    for (name.len = 0; name.len < line.len && !is_space(line.ptr[name.len]);) name.len++;
    arg = (str_view){ line.ptr + name.len, line.len - name.len };
    while (arg.len && is_space(arg.ptr[0])) arg.ptr++, arg.len--;
    for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
        if (!str_is(name, commands[i].name)) continue;
        if (arg.len == 0 || *commands[i].operand) return commands[i].run(t, arg);
        console_error("%s takes no operand", commands[i].name);
        return CHAT_SLASH_FAILED;
    }
    console_error("unknown command %s: /help lists them; type // for a message that begins with a "
                  "slash", ESC(esc, name));
    return CHAT_SLASH_FAILED;
}
