/* test_grammar.c - grammars over bytes: against a plain matcher that tries everything, on random
 * grammars and texts; what the notation means, what is refused and how; tables that run full. */
#include <stdio.h>
#include <string.h>

#include "engine/text/grammar/grammar.h"
#include "tests/case_file.h"

/* ---- helpers --------------------------------------------------------------------------------- */

static grammar *parse(const char *text)
{
    err_ctx err = { 0 };
    grammar *g;
    const int rc = grammar_from_gbnf(&g, str_from(text), &err);
    CHECK_MSG(rc == 0, "%s: %s", text, err.msg);
    return g;
}

static grammar_run *run_of(const grammar *g)
{
    err_ctx err = { 0 };
    grammar_run *r = NULL;
    if (g) CHECK_MSG(grammar_run_create(&r, g, &err) == 0, "%s", err.msg);
    return r;
}

static grammar_state walk(grammar_run *r, str_view s)
{
    grammar_state at = grammar_run_start(r);
    for (size_t i = 0; i < s.len; i++) at = grammar_run_step(r, at, (uint8_t)s.ptr[i]);
    return at;
}

static bool accepts(grammar_run *r, const char *s)
{
    const grammar_state at = walk(r, str_from(s));
    return at >= 0 && grammar_run_may_end(r, at);
}

/* ---- what the notation means ----------------------------------------------------------------- */

/* The texts are divided by commas; where a comma is part of one, the row has only that one. */
static void check_list(grammar_run *r, const char *list, bool want, const char *why, bool whole)
{
    char one[128];
    for (const char *p = list;; p++) {
        const size_t n = whole ? strlen(p) : strcspn(p, ",");
        memcpy(one, p, n);
        one[n] = '\0';
        CHECK_MSG(accepts(r, one) == want, "%s: '%s' should be %s", why, one,
                  want ? "accepted" : "refused");
        p += n;
        if (!*p) break;
    }
}

static void test_notation(void)
{
    static case_rows rows;
    if (!case_rows_read(&rows, "grammars.txt")) return;
    for (int i = 0; i < rows.n; i++) {
        char *const *cells = rows.cells[i];
        const bool whole = strstr(cells[0], "\",\"") != NULL;
        grammar *g = parse(cells[0]);
        grammar_run *r = run_of(g);
        if (r) {
            check_list(r, cells[1], true, cells[3], whole);
            check_list(r, cells[2], false, cells[3], whole);
        }
        grammar_run_free(r);
        grammar_free(g);
    }
    case_rows_free(&rows);
}

static void test_refused(void)
{
    static case_rows rows;
    if (!case_rows_read(&rows, "grammars_refused.txt")) return;
    for (int i = 0; i < rows.n; i++) {
        const char *text = rows.cells[i][0], *says = rows.cells[i][1];
        err_ctx err = { 0 };
        grammar *g;
        const int rc = grammar_from_gbnf(&g, str_from(text), &err);
        CHECK_MSG(rc < 0 && !g && strstr(err.msg, says), "'%s': rc %d, '%s', not '%s'", text, rc,
                  err.msg, says);
        grammar_free(g);
    }
    case_rows_free(&rows);
    char deep[2048] = "root ::= ";
    for (int i = 0; i < 200; i++) strcat(deep, "(");
    err_ctx err = { 0 };
    grammar *g;
    CHECK(grammar_from_gbnf(&g, str_from(deep), &err) < 0 && strstr(err.msg, "64 groups"));
    CHECK(grammar_from_gbnf(&g, (str_view){ "root\0 ::= \"\0\"", 13 }, &err) < 0);
}

/* Every allocation fails once. */
static void test_memory(void)
{
    const str_view text = str_from("root ::= \"a\"{2,5} (b | \"c\")*\nb ::= [^x]");
    for (long n = 1; n < 100; n++) {
        err_ctx err = { 0 };
        grammar *g;
        grammar_run *r = NULL;
        mem_fail_after(n);
        int rc = grammar_from_gbnf(&g, text, &err);
        if (rc == 0) rc = grammar_run_create(&r, g, &err);
        mem_fail_after(0);
        CHECK_MSG(rc == 0 || rc == ERR_NOMEM, "allocation %ld: %d %s", n, rc, err.msg);
        grammar_run_free(r);
        grammar_free(g);
        if (rc == 0) break;
    }
}

/* ---- random grammars ------------------------------------------------------------------------- */

/* An expression, written as GBNF and matched by trying everything. */
typedef enum plain_kind { P_LITERAL, P_CLASS, P_SEQ, P_ALT, P_REPEAT, P_CALL } plain_kind;
typedef struct plain {
    plain_kind kind;
    const char *literal;
    struct plain *a, *b;
    int min, max, rule;
    bool others;
} plain;

enum { N_RULE = 3, MAX_PLAIN = 256, MAX_LEN = 14 };
static plain pool[MAX_PLAIN];
static int n_pool;
static plain *plain_rules[N_RULE];

static const char *const letters[] = { "a", "b", "c", "\xC3\xA9", "\xE2\x82\xAC" };

static plain *make(test_rng *r, int depth)
{
    plain *p = &pool[n_pool++];
    const uint32_t pick = depth <= 0 || n_pool > MAX_PLAIN - 32 ? test_below(r, 2) : test_below(r,
        8);
    *p = (plain){ .kind = P_LITERAL, .literal = letters[test_below(r, ARRAY_LEN(letters))] };
    switch (pick) {
    case 0: break;
    case 1: p->kind = P_CLASS; p->others = test_below(r, 3) == 0; break;
    case 2: case 3: p->kind = P_SEQ; break;
    case 4: p->kind = P_ALT; break;
    case 5: case 6:
        p->kind = P_REPEAT;
        p->min = (int)test_below(r, 4) - 1;
        if (p->min < 0) p->min = 0;
        p->max = test_below(r, 2) ? -1 : p->min + (int)test_below(r, 3);
        break;
    default: p->kind = P_CALL; p->rule = (int)test_below(r, N_RULE);
    }
    if (p->kind == P_SEQ || p->kind == P_ALT || p->kind == P_REPEAT) p->a = make(r, depth - 1);
    if (p->kind == P_SEQ || p->kind == P_ALT) p->b = make(r, depth - 1);
    return p;
}

static void write_plain(textbuf *out, const plain *p)
{
    switch (p->kind) {
    case P_LITERAL: textbuf_printf(out, "\"%s\"", p->literal); break;
    case P_CLASS: textbuf_printf(out, p->others ? "[^a%s]" : "[a%s]", p->literal); break;
    case P_CALL: textbuf_printf(out, p->rule ? "rule%d" : "root", p->rule); break;
    case P_REPEAT:
        textbuf_str(out, "(");
        write_plain(out, p->a);
        if (p->max < 0) textbuf_printf(out, "){%d,}", p->min);
        else textbuf_printf(out, "){%d,%d}", p->min, p->max);
        break;
    default:
        textbuf_str(out, "(");
        write_plain(out, p->a);
        textbuf_str(out, p->kind == P_ALT ? " | " : " ");
        write_plain(out, p->b);
        textbuf_str(out, ")");
    }
}

/* The positions where a match from any of the positions `from` can end: bit i for position i. */
static uint32_t ends(const plain *p, const char *s, int n, uint32_t from, int depth)
{
    uint32_t to = 0;
    if (from == 0 || depth > 60) return 0;
    switch (p->kind) {
    case P_LITERAL:
        for (int i = 0; i < n; i++) {
            const int len = (int)strlen(p->literal);
            if (from >> i & 1 && i + len <= n && memcmp(s + i, p->literal, (size_t)len) == 0)
                to |= 1u << (i + len);
        }
        return to;
    case P_CLASS:
        for (int i = 0; i < n; i++) {
            uint32_t cp;
            const int len = utf8_decode(&cp, (const uint8_t *)s + i, (size_t)(n - i));
            const bool in = cp == 'a' || (len == (int)strlen(p->literal) &&
                                          memcmp(s + i, p->literal, (size_t)len) == 0);
            if (from >> i & 1 && len > 0 && in != p->others) to |= 1u << (i + len);
        }
        return to;
    case P_SEQ: return ends(p->b, s, n, ends(p->a, s, n, from, depth + 1), depth + 1);
    case P_ALT: return ends(p->a, s, n, from, depth + 1) | ends(p->b, s, n, from, depth + 1);
    case P_CALL: return ends(plain_rules[p->rule], s, n, from, depth + 1);
    case P_REPEAT:
        for (int turn = 0; turn < 40 && from; turn++) {
            if (turn >= p->min) to |= from;
            if (turn == p->max) break;
            from = ends(p->a, s, n, from, depth + 1);
        }
        return to;
    }
    return 0;
}

static bool plain_accepts(const char *s, int n)
{
    return ends(plain_rules[0], s, n, 1, 0) >> n & 1;
}

/* Some text: often one that the automaton led to, sometimes anything. */
static int random_text(char *s, test_rng *rng, grammar_run *r)
{
    static const char bytes[] = "abc\xC3\xA9\xE2\x82\xAC";
    grammar_state at = grammar_run_start(r);
    const int want = (int)test_below(rng, MAX_LEN + 1);
    int n = 0;
    for (int tries = 0; n < want && tries < 200; tries++) {
        const char c = bytes[test_below(rng, sizeof bytes - 1)];
        const grammar_state to = grammar_run_step(r, at, (uint8_t)c);
        if (to < 0 && test_below(rng, 40)) continue;
        at = to;
        s[n++] = c;
    }
    return n;
}

/* From a live state some bytes lead to the end: breadth first, and the plain matcher agrees. */
static bool can_end(grammar_run *r, const char *s, int n)
{
    enum { MOST = 4000 };
    static grammar_state queue[MOST];
    static int from[MOST];
    static uint8_t by[MOST], known[GRAMMAR_MAX_STATES];
    int n_queue = 1, at = 0;
    char text[32];
    memset(known, 0, sizeof known);
    queue[0] = walk(r, (str_view){ s, (size_t)n });
    for (; at < n_queue && !grammar_run_may_end(r, queue[at]); at++) {
        for (int b = 0; b < 256 && n_queue < MOST; b++) {
            const grammar_state to = grammar_run_step(r, queue[at], (uint8_t)b);
            if (to < 0 || known[to]) continue;
            known[to] = 1;
            queue[n_queue] = to;
            from[n_queue] = at;
            by[n_queue++] = (uint8_t)b;
        }
    }
    if (at >= n_queue) return n_queue == MOST;           /* too far to look: no verdict */
    int extra = 0;
    for (int i = at; i > 0; i = from[i]) extra++;
    if (n + extra > 24) return true;
    memcpy(text, s, (size_t)n);
    for (int i = at, k = n + extra; i > 0; i = from[i]) text[--k] = (char)by[i];
    return plain_accepts(text, n + extra);
}

static void test_random(void)
{
    test_rng rng = { 1 };
    int used = 0, n_yes = 0, n_no = 0, n_refused = 0;
    for (int round = 0; round < 600; round++) {
        textbuf text = { 0 };
        grammar *g;
        err_ctx err = { 0 };
        n_pool = 0;
        for (int i = 0; i < N_RULE; i++) {
            plain_rules[i] = make(&rng, 3);
            textbuf_printf(&text, i ? "rule%d ::= " : "root ::= ", i);
            write_plain(&text, plain_rules[i]);
            textbuf_str(&text, "\n");
        }
        if (grammar_from_gbnf(&g, textbuf_view(&text), &err) < 0) {
            CHECK_MSG(strstr(err.msg, "left recursion") || strstr(err.msg, "no finite text"),
                      "%s\n%s", err.msg, text.ptr);
            n_refused++;
            textbuf_free(&text);
            continue;
        }
        grammar_run *r = run_of(g);
        used++;
        for (int k = 0; k < 40 && r; k++) {
            char s[MAX_LEN + 1];
            const int n = random_text(s, &rng, r);
            bool same = true, alive = true;
            for (int len = 0; len <= n && same; len++) {
                const grammar_state at = walk(r, (str_view){ s, (size_t)len });
                const bool yes = at >= 0 && grammar_run_may_end(r, at), want = plain_accepts(s,
                    len);
                same = yes == want;
                alive = at >= 0;
                n_yes += want;
                n_no += !want;
            }
            CHECK_MSG(same, "'%.*s' is judged wrong by\n%s", n, s, text.ptr);
            if (alive && same && k < 4)
                CHECK_MSG(can_end(r, s, n), "'%.*s' cannot be ended\n%s", n, s, text.ptr);
        }
        grammar_run_free(r);
        grammar_free(g);
        textbuf_free(&text);
    }
    CHECK_MSG(used > 200 && n_yes > 1000 && n_no > 1000 && n_refused > 10,
              "%d grammars, %d yes, %d no, %d refused: too few", used, n_yes, n_no, n_refused);
}

/* ---- tables ---------------------------------------------------------------------------------- */

/* A text with more states than fit: a caller that keeps the last ones continues as before. */
static void test_keep(void)
{
    grammar *g = parse("root ::= \"[\" ([a-z]{1,30000} \",\"){2} \"]\"");
    grammar_run *r = run_of(g);
    grammar_state at = r ? grammar_run_step(r, grammar_run_start(r), '[') : -1;
    grammar_state before = at;
    int n_keep = 0;
    for (int part = 0; part < 2; part++) {
        for (int i = 0; i < 30001; i++) {
            const uint8_t byte = i < 30000 ? 'q' : ',';
            grammar_state to = grammar_run_step(r, at, byte);
            if (to == GRAMMAR_FULL) {
                grammar_state kept[] = { before, at, before, at };
                const bool is_letter = i > 0;    /* from before to at */
                grammar_run_keep(r, kept, 4);
                CHECK(kept[0] == kept[2] && kept[1] == kept[3] && grammar_run_n_state(r) == 2 &&
                      (!is_letter || grammar_run_step(r, kept[0], 'q') == kept[1]));
                at = kept[1];
                n_keep++;
                to = grammar_run_step(r, at, byte);
            }
            if (i == 29999)
                CHECK_MSG(to >= 0 && grammar_run_step(r, to, 'q') == GRAMMAR_DEAD, "one too many");
            before = at;
            at = to;
        }
    }
    CHECK(at >= 0 && n_keep > 2 && !grammar_run_may_end(r, at));
    at = grammar_run_step(r, at, ']');
    CHECK(at >= 0 && grammar_run_may_end(r, at));
    grammar_run_free(r);
    grammar_free(g);
}

/* Nesting ends where it could not be closed any more. */
static void test_depth(void)
{
    grammar *g = parse("root ::= \"[\" (root | \"x\" root \"y\" | \"z\") \"]\"");
    grammar_run *r = run_of(g);
    grammar_state at = r ? grammar_run_start(r) : -1;
    int depth = 0;
    for (grammar_state to; (to = grammar_run_step(r, at, '[')) >= 0; at = to) depth++;
    CHECK_MSG(depth > GRAMMAR_DEPTH / 2 && depth <= GRAMMAR_DEPTH + 1, "depth %d", depth);
    at = grammar_run_step(r, at, 'z');
    for (int i = 0; i < depth; i++) at = grammar_run_step(r, at, ']');
    CHECK(at >= 0 && grammar_run_may_end(r, at));
    grammar_run_free(r);
    grammar_free(g);
}

/* Far from their bounds counts are one; near them each is itself, and all say the truth. */
static void test_near(void)
{
    enum { BYTES = 5, MOST = 40 };
    grammar *g = parse("root ::= \"a\"{20,40} \"b\"");
    grammar_run *r = run_of(g);
    grammar_state at[MOST + 1] = { r ? grammar_run_start(r) : -1 };
    for (int i = 1; i <= MOST; i++) at[i] = grammar_run_step(r, at[i - 1], 'a');
    for (int i = 1; i <= MOST; i++) {
        const grammar_state like = grammar_run_near(r, at[i], BYTES);
        for (int n = 0; n <= BYTES; n++) {
            grammar_state x = at[i], y = like;
            for (int k = 0; k < n; k++) {
                x = grammar_run_step(r, x, 'a');
                y = grammar_run_step(r, y, 'a');
            }
            CHECK_MSG((x < 0) == (y < 0), "%d + %d: life differs", i, n);
            x = grammar_run_step(r, x, 'b');
            y = grammar_run_step(r, y, 'b');
            CHECK_MSG(n == BYTES || (x < 0) == (y < 0), "%d + %d: end differs", i, n);
        }
    }
    CHECK(grammar_run_near(r, at[3], BYTES) == grammar_run_near(r, at[9], BYTES));
    CHECK(grammar_run_near(r, at[21], BYTES) == grammar_run_near(r, at[30], BYTES));
    CHECK(grammar_run_near(r, at[38], BYTES) == at[38]);
    CHECK(grammar_run_near(r, at[9], BYTES) != grammar_run_near(r, at[21], BYTES));
    grammar_run_free(r);
    grammar_free(g);
}

int main(int argc, char **argv)
{
    test_begin("grammar", argc, argv);
    test_notation();
    test_refused();
    test_memory();
    test_random();
    test_keep();
    test_depth();
    test_near();
    return test_end();
}
