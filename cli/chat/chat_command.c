/* chat_command.c - moe-run chat: a conversation at a terminal or through a pipe.
 *
 * After the start, an error is printed and the next message is read; in a pipe the exit code is
 * 1 at the end. Ctrl-C stops the answer at a terminal and the program in a pipe. */
#include "cli/commands.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/args/answer_args.h"
#include "cli/chat/chat_session.h"
#include "cli/chat/line_history.h"
#include "cli/chat/line_input.h"
#include "cli/console.h"
#include "cli/cost/cache_cost.h"
#include "cli/cost/experts_cost.h"
#include "cli/demo_model.h"
#include "cli/expert_cache_files.h"
#include "cli/interrupt.h"
#include "engine/session/runner.h"

typedef struct chat_options {
    const char *load;
    bool verbose;
    answer_args a;
} chat_options;

#define FIELD(f) offsetof(chat_options, f)
static const arg_option prompt_options[] = {
    { "load", 0, ARG_TEXT, FIELD(load), "FILE", NULL, 0, 0,
      "Continue a chat that /save wrote; options given here override its settings" },
};

static const arg_option output_options[] = {
    { "verbose", 'v', ARG_FLAG, FIELD(verbose), NULL, NULL, 0, 0,
      "Print token counts and speed after each answer" },
};

static const arg_group groups[] = {
#define PROMPT { "Prompt:", prompt_options, ARRAY_LEN(prompt_options), 0 }
#define OUTPUT { "Output:", output_options, ARRAY_LEN(output_options), 0 }
    ANSWER_GROUPS(FIELD(a), PROMPT, OUTPUT),
};

static const arg_spec spec = {
    .usage = "moe-run chat [[-m] FILE] [options]",
    .about = "Holds a conversation. /help lists the commands, Ctrl-C stops an answer, Ctrl-D\n"
             "leaves. If standard input is not a terminal, each line is a message, and an empty\n"
             "line separates the answers:\n"
             "  printf 'Who was Ada Lovelace?\\nAnd her father?\\n' | moe-run chat -m model.gguf",
    .groups = groups, .n_group = ARRAY_LEN(groups),
    .epilogue =
        "A backslash at the end of a line continues it in the next; a line of \"\"\" begins "
        "and ends a\nblock of lines. Typed lines are kept in "
        "~/.local/state/moe-run/history.\n"
        "Exit code: 0; 1 if the start failed, or a message or command from a pipe;\n"
        "2 bad usage; 130 Ctrl-C in a pipe.",
};

enum {
    DEFAULT_CTX = 8192,
    N_SNAPSHOT = 4,                      /* for /undo and /retry, at the beginning of turns */
    INTERRUPTS = 4                     /* Ctrl-Cs in a row without effect before the program ends */
};

/* ---- opening ------------------------------------------------------------------------------- */

static void fill(chat_session *t, const chat_options *o)
{
    if (o->a.date) snprintf(t->set.date, sizeof t->set.date, "%s", o->a.date);
    else text_today(t->set.date, sizeof t->set.date);
    t->flags = o->a.sampling;
    t->set.effort = o->a.effort;
    t->set.thinking = o->a.thinking;
    t->perf = o->a.level;
    t->effort_given = o->a.reasoning != NULL;
    t->date_given = o->a.date != NULL;
    t->max_tokens = (int)o->a.most_tokens;
    t->show_reasoning = o->a.show_reasoning;
    t->verbose = o->verbose;
}

/* Session, sampler and saved conversation. 0, or the exit code. */
static int open_session(chat_session *t, const chat_options *o)
{
    const int most = t->l.m->hp.ctx_train;
    err_ctx err;

    if (t->room.ctx == 0) t->room.ctx = most < DEFAULT_CTX ? most : DEFAULT_CTX;
    t->room.n_snapshot = N_SNAPSHOT;
    if (o->a.engine.experts_used) {
        experts_cost cost;
        if (experts_cost_measure(&cost, &t->l, (int)o->a.engine.experts_used, &t->room, &err) < 0)
            return model_handle_fail(t->l.path, &err);
        experts_cost_say(&cost);
    }
    if (t->room.skip_missing) {
        cache_cost cost;
        if (cache_cost_measure(&cost, &t->l, &t->room, &err) < 0)
            return model_handle_fail(t->l.path, &err);
        cache_cost_say(&cost);
    }
    t->kept.drive_bytes = o->a.cache_bytes;
    if (prompt_cache_place(&t->kept, &t->l, &t->room, t->room.ctx, N_SNAPSHOT, &err) < 0)
        return model_handle_fail(t->l.path, &err);
    model_handle_say_notes(&t->l, true, t->effort_given);
    if (model_handle_session(&t->s, &t->l, &t->room, &err) < 0)
        return model_handle_fail(t->l.path, &err);
    runner_count(session_runner(t->s), t->perf);
    if (sampling_open(&t->draw, &o->a.sampling, t->l.m, t->l.tok, t->room.ctx, &err) < 0 ||
        (o->a.system && conversation_set_system(&t->conv, str_from(o->a.system), &err) < 0)) {
        console_error("%s", err.msg);
        return 1;
    }
    t->set.seed = (int64_t)t->draw.options.seed;
    if (o->load && chat_load(t, o->load, &err) < 0) return model_handle_fail(o->load, &err);
    return 0;
}

static void greet(const chat_session *t)
{
    const char *slash = strrchr(t->l.path, '/');
    char ctx[32], line[PLAN_LINE_CAP];
    if (plan_vs_measured_has_tiers(&t->l.where->p)) {
        const plan_view view = placement_view(t->l.where);
        console_note("%s%s%s", engine_gpu_name(t->l.e), engine_on_gpu(t->l.e) ? ", " : "",
                     plan_view_line(line, sizeof line, &view));
    }
    console_note("%s (%s), context %s tokens. Ctrl-C stops an answer, Ctrl-D leaves, /help",
                 slash ? slash + 1 : t->l.path, model_arch_name(t->l.m->hp.arch),
                 text_count(ctx, sizeof ctx, (uint64_t)t->room.ctx));
}

/* ---- talking ------------------------------------------------------------------------------- */

static bool is_blank(str_view s)
{
    while (s.len && memchr(" \t\n", s.ptr[s.len - 1], 3)) s.len--;
    return s.len == 0;
}

static int say(chat_session *t, str_view text)
{
    err_ctx err;
    if (conversation_ask(&t->conv, text, &err) == 0 && chat_turn(t, &err) == 0)
        return CHAT_SLASH_DONE;
    console_error("%s", err.msg);
    return CHAT_SLASH_FAILED;
}

static int take(chat_session *t, str_view text, bool block)
{
    if (is_blank(text)) return CHAT_SLASH_DONE;
    if (block || !str_starts(text, "/")) return say(t, text);
    if (!str_starts(text, "//")) return chat_slash(t, text);
    return say(t, (str_view){ text.ptr + 1, text.len - 1 });
}

/* Until the input ends or /quit. Returns the exit code. */
static int converse(chat_session *t, line_input *in)
{
    bool any_failed = false;
    str_view text;
    err_ctx err;
    int rc;

    while ((rc = line_input_read(&text, in, &err)) != 0) {
        if (rc == ERR_STOPPED && t->interactive && interrupt_exit_code() == 130) {
            interrupt_clear();
            console_note("Ctrl-D or /quit leaves");
            continue;
        }
        if (rc == ERR_STOPPED) return interrupt_exit_code();
        if (rc < 0) {
            console_error("%s", err.msg);
            return 1;
        }
        if (!str_is(text, "/quit")) line_input_check_keys(in);
        rc = take(t, text, rc == 2);
        if (rc == CHAT_SLASH_QUIT) break;
        any_failed |= rc == CHAT_SLASH_FAILED;
        if (interrupted() && !(t->interactive && interrupt_exit_code() == 130))
            return interrupt_exit_code();
        if (t->lost) return console_lost_output(t->lost);
    }
    return any_failed && !t->interactive;
}

static int run_chat(chat_session *t, line_input *in)
{
    int code;
    if (t->interactive) {
        interrupt_set_limit(INTERRUPTS);
        greet(t);
    }
    interrupt_hold_stop(true);
    code = converse(t, in);
    interrupt_hold_stop(false);
    return code;
}

static int open_input(line_input **out, err_ctx *err)
{
    char path[PATH_MAX];
    const bool keep = line_history_path(path, sizeof path);
    return line_input_open(out, chat_slash_words, CHAT_SLASH_N, keep ? path : NULL, err);
}

int cmd_chat(int argc, char **argv)
{
    chat_options o = { 0 };
    chat_session t = { 0 };
    load_options load;
    line_input *in;
    err_ctx err;
    int rc, code;

    answer_args_init(&o.a);
    rc = args_parse(&spec, &o, NULL, NULL, argc, argv);
    if (rc != ARGS_RUN) return rc == ARGS_HELP ? console_finish() : 2;
    if (o.a.system && o.load) {
        console_error("--system and --load exclude each other: a saved chat has a system message");
        return 2;
    }
    if ((code = answer_args_read(&o.a, &load, &t.room)) != 0) return code;
    interrupt_install();
    fill(&t, &o);
    if (!load.path) console_note("%s", DEMO_MODEL_REMARK);
    if (open_input(&in, &err) < 0) return model_handle_fail(NULL, &err);
    t.interactive = line_input_is_terminal(in);
    if (model_handle_open(&t.l, &load, &err) < 0) {
        line_input_close(in);
        return model_handle_fail(load.path ? load.path : DEMO_MODEL_NAME, &err);
    }
    code = open_session(&t, &o);
    if (code == 0) {
        code = run_chat(&t, in);
        if (o.a.perf.out && *o.a.perf.out && perf_view_save(o.a.perf.out, t.s, t.perf) != 0 &&
            code == 0)
            code = 1;
    }
    sampling_close(&t.draw);
    prompt_cache_close(&t.kept);
    session_free(t.s);
    conversation_release(&t.conv);
    expert_cache_files_keep(t.l.e, &t.l.asked, t.l.m);
    model_handle_close(&t.l);
    line_input_close(in);
    return code;
}
