/* test_conversation.c - the message list of a chat: turns, texts, and the JSON it is saved as. */
#include "cli/chat/conversation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/case_file.h"

static str_view sv(const char *s) { return str_from(s); }

/* "S[be kind] U[hi] A[hello|greets]" */
static const char *show(char *dst, size_t cap, const conversation *c)
{
    size_t n = 0;
    dst[0] = '\0';
    for (int i = 0; i < c->n_message && n < cap; i++) {
        const chat_message *m = &c->messages[i];
        n += (size_t)snprintf(dst + n, cap - n, "%s%c[%.*s%s%.*s]", i ? " " : "",
                              m->role == CHAT_SYSTEM ? 'S' : m->role == CHAT_USER ? 'U' : 'A',
                              (int)m->content.len, m->content.ptr, m->reasoning.len ? "|" : "",
                              (int)m->reasoning.len, m->reasoning.ptr);
    }
    return dst;
}

static void test_turns(void)
{
    static case_rows rows;
    if (!case_rows_read(&rows, "conversation_turns.txt")) return;
    for (int i = 0; i < rows.n; i++) {
        char *const *cells = rows.cells[i], *next = rows.cells[i][0];
        conversation c = { 0 };
        chat_message kept = { 0 };
        char got[256];
        for (const char *step; (step = strsep(&next, " "));) {
            switch (step[0]) {
            case 's': conversation_set_system(&c, sv(step + 1), NULL); break;
            case '?': conversation_ask(&c, sv(step + 1), NULL); break;
            case '!': conversation_answer(&c, sv(step + 1), sv(""), NULL); break;
            case 'r':
                conversation_put_back(&c, &kept);        /* what an earlier 'r' took */
                conversation_reopen(&c, &kept);
                break;
            case 'b': conversation_put_back(&c, &kept); break;
            case 'u': conversation_undo(&c); break;
            default: conversation_reset(&c); break;
            }
        }
        show(got, sizeof got, &c);
        CHECK_MSG(!strcmp(got, cells[1]) && conversation_n_question(&c) == atoi(cells[2]),
                  "%s: %s, %d questions", cells[3], got, conversation_n_question(&c));
        conversation_put_back(&c, &kept);
        conversation_release(&c);
        CHECK(c.n_message == 0 && c.messages == NULL);
    }
    case_rows_free(&rows);
}

/* ---- text ---------------------------------------------------------------------------------- */

static const conversation_settings settings = {
    .effort = CHAT_EFFORT_HIGH, .date = "2026-01-31", .seed = INT64_MAX, .n_answer = 3,
    .sampling = { .temperature = 0.1, .top_k = 20, .top_p = 1.0 / 3, .min_p = 0.05,
                  .repeat_penalty = 1.1, .presence_penalty = -1.5, .frequency_penalty = 0.2,
                  .penalty_window = -1 },
};

/* The file that rows change. */
static const char good_file[] =
    "{\"kind\":\"moe-run chat\",\"version\":1,\"reasoning\":\"low\",\"date\":\"\",\"seed\":1,"
    "\"answers\":0,\"sampling\":{\"temperature\":0.5,\"top_k\":20,\"top_p\":1,\"min_p\":0,"
    "\"repeat_penalty\":1,\"presence_penalty\":0,\"frequency_penalty\":0,\"penalty_window\":64},"
    "\"messages\":[]}";

static void test_files(void)
{
    static case_rows rows;
    if (!case_rows_read(&rows, "conversation.txt")) return;
    for (int i = 0; i < rows.n; i++) {
        const char *want = rows.cells[i][2], *why = rows.cells[i][3];
        conversation c;
        conversation_settings s;
        err_ctx err = { 0 };
        char got[256], text[1024];
        case_replace(text, sizeof text, good_file, rows.cells[i][0], rows.cells[i][1]);
        const int rc = conversation_read(&c, &s, sv(text), &err);
        show(got, sizeof got, &c);
        if (strcmp(want, "-") != 0)
            CHECK_MSG(rc == 0 && strncmp(got, want, strlen(want)) == 0, "%s: %d %s %s", why, rc,
                      err.msg, got);
        else
            CHECK_MSG(rc < 0 && err.msg[0] && !strchr(err.msg, '\n') && c.n_message == 0,
                      "%s: taken, or no single line: %d '%s' %s", why, rc, err.msg, got);
        conversation_release(&c);
    }
    case_rows_free(&rows);
}

static bool same_text(str_view a, str_view b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.ptr, b.ptr, a.len) == 0);
}

static bool same(const conversation *a, const conversation *b)
{
    bool ok = a->n_message == b->n_message;
    for (int i = 0; ok && i < a->n_message; i++)
        ok = a->messages[i].role == b->messages[i].role &&
             same_text(a->messages[i].content, b->messages[i].content) &&
             same_text(a->messages[i].reasoning, b->messages[i].reasoning);
    return ok;
}

static void fill(conversation *c)
{
    static const char bytes[] = "quotes \" \\ newline \n tab \t NUL \0 end \x01 \xF0\x9F\x98\x80";
    CHECK(conversation_set_system(c, sv("Sei freundlich. \xC3\xBC"), NULL) == 0);
    for (int i = 0; i < 40; i++) {       /* more than the first allocation of the list */
        CHECK(conversation_ask(c, (str_view){ bytes, sizeof bytes - 1 }, NULL) == 0);
        CHECK(conversation_answer(c, sv(i % 2 ? "yes" : ""), sv(i % 3 ? "" : "hm"), NULL) == 0);
    }
    CHECK(conversation_ask(c, sv(""), NULL) == 0);
}

static void test_there_and_back(void)
{
    conversation a = { 0 }, b;
    conversation_settings s;
    err_ctx err = { 0 };
    char *text;
    size_t len = 0;

    fill(&a);
    CHECK(conversation_write(&text, &len, &a, &settings, &err) == 0);
    CHECK(len == strlen(text));
    CHECK_MSG(conversation_read(&b, &s, (str_view){ text, len }, &err) == 0, "%s", err.msg);
    CHECK(same(&a, &b));
    CHECK(s.effort == settings.effort && !strcmp(s.date, settings.date));
    CHECK(s.seed == settings.seed && s.n_answer == settings.n_answer);
    const sampler_options *x = &s.sampling, *y = &settings.sampling;
    CHECK(x->temperature == y->temperature && x->top_p == y->top_p && x->min_p == y->min_p);
    CHECK(x->repeat_penalty == y->repeat_penalty && x->presence_penalty == y->presence_penalty &&
          x->frequency_penalty == y->frequency_penalty);
    CHECK(x->top_k == y->top_k && x->penalty_window == y->penalty_window);
    CHECK(s.thinking == CHAT_THINK_DEFAULT);
    conversation_release(&b);
    for (int t = CHAT_THINK_ON; t <= CHAT_THINK_OFF; t++) {
        conversation_settings switched = settings;
        char *other;
        size_t n = 0;
        switched.thinking = (chat_thinking)t;
        CHECK(conversation_write(&other, &n, &a, &switched, &err) == 0 &&
              conversation_read(&b, &s, (str_view){ other, n }, &err) == 0 && (int)s.thinking == t);
        conversation_release(&b);
        mem_free(other);
    }
    for (size_t n = 0; n < len; n += n < 600 ? 1 : 97) {         /* cut anywhere: refused */
        if (conversation_read(&b, &s, (str_view){ text, n }, &err) == 0)
            CHECK_MSG(false, "taken, cut after %zu of %zu bytes", n, len);
        conversation_release(&b);
    }
    mem_free(text);
    conversation_release(&a);
}

static void test_not_utf8(void)
{
    static const struct { const char *text; size_t at; const char *why; } rows[] = {
        { "\xFF", 0, "never a byte of UTF-8" }, { "ab\xC3", 2, "cut" },
        { "a\xED\xA0\x80", 1, "a surrogate" }, { "\xC0\x80", 0, "overlong" },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        conversation c = { 0 };
        err_ctx err;
        size_t at = 99;
        CHECK_MSG(!text_is_utf8(sv(rows[i].text), &at) && at == rows[i].at, "%s: at %zu",
                  rows[i].why, at);
        CHECK(conversation_ask(&c, sv("old"), NULL) == 0);
        CHECK_MSG(conversation_ask(&c, sv(rows[i].text), &err) == ERR_FORMAT && c.n_message == 1 &&
                  str_is(c.messages[0].content, "old"), "%s: replaced", rows[i].why);
        CHECK(conversation_answer(&c, sv("x"), sv(rows[i].text), &err) == ERR_FORMAT);
        CHECK(conversation_is_open(&c));
        conversation_release(&c);
    }
}

static void test_dates(void)
{
    static const struct { const char *text; bool want; const char *why; } rows[] = {
        { "", true, "none" }, { "2026-01-31", true, "usual" }, { "0001-12-01", true, "long ago" },
        { "2026-1-31", false, "one digit" }, { "2026-01-3", false, "cut" },
        { "2026-01-311", false, "too long" }, { "2026-13-01", false, "a thirteenth month" },
        { "2026-00-01", false, "month 0" }, { "2026-01-32", false, "day 32" },
        { "2026-01-00", false, "day 0" }, { " 026-01-31", false, "a blank for a digit" },
        { "+026-01-31", false, "a sign" }, { "2026-01--1", false, "a negative day" },
        { "2026/01/31", false, "slashes" }, { "yesterday!", false, "words" },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        CHECK_MSG(text_is_date(rows[i].text) == rows[i].want, "%s: '%s'", rows[i].why,
                  rows[i].text);
}

/* Every allocation fails once; the messages before it must stay. */
static void test_no_memory(void)
{
    conversation a = { 0 }, b;
    conversation_settings s;
    err_ctx err;
    char *text, got[2048];
    size_t len;
    long n;

    for (int i = 0; i < 8; i++) {                        /* the list is full: 16 messages */
        conversation_ask(&a, sv("q"), NULL);
        conversation_answer(&a, sv("a"), sv("r"), NULL);
    }
    char before[2048];
    show(before, sizeof before, &a);
    for (n = 1; ; n++) {
        mem_fail_after(n);
        const int rc = conversation_set_system(&a, sv("system"), &err);
        mem_fail_after(0);
        if (rc == 0) break;
        CHECK(rc == ERR_NOMEM && !strcmp(show(got, sizeof got, &a), before));
    }
    CHECK_MSG(n > 3, "only %ld allocations failed", n - 1);
    show(before, sizeof before, &a);
    for (n = 1; ; n++) {
        mem_fail_after(n);
        const int rc = conversation_write(&text, &len, &a, &settings, &err);
        mem_fail_after(0);
        if (rc == 0) break;
        CHECK(rc == ERR_NOMEM && text == NULL);
    }
    for (n = 1; ; n++) {
        mem_fail_after(n);
        const int rc = conversation_read(&b, &s, (str_view){ text, len }, &err);
        mem_fail_after(0);
        if (rc == 0) break;
        CHECK(rc == ERR_NOMEM && b.n_message == 0 && b.messages == NULL);
    }
    CHECK_MSG(n > 30, "only %ld allocations failed", n - 1);
    CHECK(same(&a, &b));
    mem_free(text);
    conversation_release(&a);
    conversation_release(&b);
}

int main(int argc, char **argv)
{
    test_begin("conversation", argc, argv);
    test_turns();
    test_files();
    test_there_and_back();
    test_not_utf8();
    test_dates();
    test_no_memory();
    return test_end();
}
