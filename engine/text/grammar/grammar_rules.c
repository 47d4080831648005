/* grammar_rules.c - compiles expressions to the nodes of an automaton.
 *
 * An expression is compiled after its continuation, so nodes point to smaller numbers except in
 * loops. Then the nodes are analysed: which can match nothing, which call themselves without
 * reading a byte (refused), and how many nested calls the shortest path to the end needs. */
#include "engine/text/grammar/grammar_rules.h"

#include <string.h>

enum { MAX_EXPR = 1 << 20, MAX_NODE = 1 << 20, MAX_RULE = 1 << 17, MAX_NEST = 1000 };

typedef enum expr_kind {
    EXPR_NOTHING, EXPR_EMPTY, EXPR_RANGE, EXPR_SEQ, EXPR_ALT, EXPR_REPEAT, EXPR_CALL
} expr_kind;

typedef struct expr {
    uint8_t kind, lo, hi;
    int32_t a, b;                        /* parts; CALL: a is the rule */
    int32_t min, max;
    int32_t nest;                        /* depth of recursion to compile it */
} expr;

typedef struct rule { char *name; rules_expr x; } rule;

struct rules {
    expr *exprs;
    int n_expr, cap_expr;
    rule *list;
    int n_rule, cap_rule;
    int failed;                          /* ERR_NOMEM, ERR_RANGE */
};

/* ---- building -------------------------------------------------------------------------------- */

static bool grow(rules *r, void **list, int n, int *cap, size_t size, int most)
{
    void *bigger = n < most ? mem_grow(*list, n, cap, size) : NULL;
    if (bigger) *list = bigger;
    else if (!r->failed) r->failed = n < most ? ERR_NOMEM : ERR_RANGE;
    return bigger;
}

static rules_expr add(rules *r, expr x)
{
    if (!grow(r, (void **)&r->exprs, r->n_expr, &r->cap_expr, sizeof x, MAX_EXPR))
        return RULES_NOTHING;
    if (x.nest > MAX_NEST && !r->failed) r->failed = ERR_RANGE;
    r->exprs[r->n_expr] = x;
    return r->n_expr++;
}

rules *rules_create(void)
{
    rules *r = mem_zalloc(sizeof *r);
    if (!r) return NULL;
    add(r, (expr){ .kind = EXPR_NOTHING });
    add(r, (expr){ .kind = EXPR_EMPTY });
    return r;
}

void rules_free(rules *r)
{
    if (!r) return;
    for (int i = 0; i < r->n_rule; i++) mem_free(r->list[i].name);
    mem_free(r->list);
    mem_free(r->exprs);
    mem_free(r);
}

rules_expr rules_range(rules *r, int lo, int hi)
{
    if (lo > hi) return RULES_NOTHING;
    return add(r, (expr){ .kind = EXPR_RANGE, .lo = (uint8_t)lo, .hi = (uint8_t)hi });
}

/* compile() iterates over the left part of a chain instead of recursing. */
rules_expr rules_seq(rules *r, rules_expr a, rules_expr b)
{
    if (r->failed || a == RULES_NOTHING || b == RULES_NOTHING) return RULES_NOTHING;
    if (a == RULES_EMPTY) return b;
    if (b == RULES_EMPTY) return a;
    return add(r, (expr){ .kind = EXPR_SEQ, .a = a, .b = b,
                          .nest = max_int(r->exprs[a].nest, r->exprs[b].nest + 1) });
}

rules_expr rules_seq3(rules *r, rules_expr a, rules_expr b, rules_expr c)
{
    return rules_seq(r, rules_seq(r, a, b), c);
}

rules_expr rules_alt(rules *r, rules_expr a, rules_expr b)
{
    if (r->failed) return RULES_NOTHING;
    if (a == RULES_NOTHING || a == b) return b;
    if (b == RULES_NOTHING) return a;
    return add(r, (expr){ .kind = EXPR_ALT, .a = a, .b = b,
                          .nest = max_int(r->exprs[a].nest, r->exprs[b].nest + 1) });
}

rules_expr rules_repeat(rules *r, rules_expr x, int min, int max)
{
    if (r->failed) return RULES_NOTHING;
    if (max == 0 || x == RULES_EMPTY) return RULES_EMPTY;
    if (x == RULES_NOTHING) return min == 0 ? RULES_EMPTY : RULES_NOTHING;
    if (max != RULES_NO_LIMIT && min > max) return RULES_NOTHING;
    if (min == 1 && max == 1) return x;
    return add(r, (expr){ .kind = EXPR_REPEAT, .a = x, .min = min, .max = max,
                          .nest = r->exprs[x].nest + 1 });
}

rules_expr rules_option(rules *r, rules_expr x) { return rules_repeat(r, x, 0, 1); }

rules_expr rules_bytes(rules *r, str_view s)
{
    rules_expr x = RULES_EMPTY;
    for (size_t i = 0; i < s.len; i++) {
        const uint8_t byte = (uint8_t)s.ptr[i];
        x = rules_seq(r, x, rules_range(r, byte, byte));
    }
    return x;
}

rules_expr rules_text(rules *r, const char *terminated)
{
    return rules_bytes(r, str_from(terminated));
}

int rules_new(rules *r, str_view name)
{
    if (!grow(r, (void **)&r->list, r->n_rule, &r->cap_rule, sizeof *r->list, MAX_RULE)) return 0;
    char *copy = mem_strdup_n(name.ptr, name.len);
    if (!copy && !r->failed) r->failed = ERR_NOMEM;
    r->list[r->n_rule] = (rule){ copy, RULES_NOTHING };
    return r->n_rule++;
}

rules_expr rules_call(rules *r, int called)
{
    return add(r, (expr){ .kind = EXPR_CALL, .a = called });
}

void rules_define(rules *r, int defined, rules_expr x)
{
    if (defined < r->n_rule) r->list[defined].x = x;
}

/* ---- text up to a tag ------------------------------------------------------------------------ */

/* Returns any character except '<' and `but`. */
static rules_expr others(rules *r, char but)
{
    const uint32_t lo = but < '<' ? (uint32_t)but : '<', hi = but < '<' ? '<' : (uint32_t)but;
    rules_expr x = rules_alt(r, rules_chars(r, 1, lo - 1), rules_chars(r, hi + 1, 0x10FFFF));
    if (hi > lo + 1) x = rules_alt(r, x, rules_chars(r, lo + 1, hi - 1));
    return x;
}

/* One state for each prefix of a tag. '<' begins a new tag; any other mismatch returns to text. */
int rules_text_until(rules *r, const rules_tag *tags, int n, bool may_end)
{
    const int outside = rules_new(r, str_from("text")), begun = rules_new(r, str_from("<"));
    const rules_expr end = may_end ? RULES_EMPTY : RULES_NOTHING;
    const rules_expr again = rules_seq(r, rules_text(r, "<"), rules_call(r, begun));
    rules_expr fork = RULES_NOTHING, stray = RULES_NOTHING;
    for (int k = 0; k < n; k++) {
        rules_expr x = tags[k].then;
        for (size_t i = strlen(tags[k].text) - 1; i >= 2; i--) {
            const char byte[2] = { tags[k].text[i], '\0' };
            const int state = rules_new(r, str_from(tags[k].text));
            const rules_expr back = rules_seq(r, others(r, byte[0]), rules_call(r, outside));
            rules_define(r, state, rules_alt(r, rules_alt(r, rules_seq(r, rules_text(r, byte), x),
                                                          rules_alt(r, again, back)), end));
            x = rules_call(r, state);
        }
        const char byte[2] = { tags[k].text[1], '\0' };
        fork = rules_alt(r, fork, rules_seq(r, rules_text(r, byte), x));
    }
    /* after '<': any byte except '<' and the tags' second bytes */
    uint8_t next[3] = { '<' };
    for (int k = 0; k < n; k++) next[k + 1] = (uint8_t)tags[k].text[1];
    uint32_t from = 1;
    for (;;) {
        uint32_t least = 0x110000;
        for (int k = 0; k <= n; k++)
            if (next[k] >= from && next[k] < least) least = next[k];
        if (least > from) stray = rules_alt(r, stray, rules_chars(r, from, least - 1));
        if (least == 0x110000) break;
        from = least + 1;
    }
    stray = rules_seq(r, stray, rules_call(r, outside));
    rules_define(r, begun, rules_alt(r, rules_alt(r, fork, rules_alt(r, again, stray)), end));
    rules_define(r, outside, rules_alt(r, rules_alt(r, rules_seq(r, others(r, '<'),
                                                                 rules_call(r, outside)), again),
                                       end));
    return outside;
}

/* ---- characters ------------------------------------------------------------------------------ */

static int utf8_encode(uint8_t out[4], uint32_t cp)
{
    if (cp < 0x80) return out[0] = (uint8_t)cp, 1;
    if (cp < 0x800) {
        out[0] = (uint8_t)(0xC0 | cp >> 6);
    } else if (cp < 0x10000) {
        out[0] = (uint8_t)(0xE0 | cp >> 12);
    } else {
        out[0] = (uint8_t)(0xF0 | cp >> 18);
    }
    const int n = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (int i = 1; i < n; i++) out[i] = (uint8_t)(0x80 | (cp >> 6 * (n - 1 - i) & 0x3F));
    return n;
}

static bool all_are(const uint8_t *bytes, int n, uint8_t value)
{
    for (int i = 0; i < n; i++)
        if (bytes[i] != value) return false;
    return true;
}

/* Returns the UTF-8 sequences of n bytes from lo to hi, in byte order. NULL: all 0x80 or all
 * 0xBF. */
static rules_expr between(rules *r, const uint8_t *lo, const uint8_t *hi, int n)
{
    if (n == 0) return RULES_EMPTY;
    if (lo && lo[0] < 0xC0 && all_are(lo, n, 0x80)) lo = NULL;
    if (hi && hi[0] < 0xC0 && all_are(hi, n, 0xBF)) hi = NULL;
    int first = lo ? lo[0] : 0x80, last = hi ? hi[0] : 0xBF;
    rules_expr x = RULES_NOTHING;
    if (lo && hi && first == last)
        return rules_seq(r, rules_range(r, first, first), between(r, lo + 1, hi + 1, n - 1));
    if (lo && !all_are(lo + 1, n - 1, 0x80)) {
        x = rules_seq(r, rules_range(r, first, first), between(r, lo + 1, NULL, n - 1));
        first++;
    }
    if (hi && !all_are(hi + 1, n - 1, 0xBF)) {
        x = rules_alt(r, x, rules_seq(r, rules_range(r, last, last),
                                      between(r, NULL, hi + 1, n - 1)));
        last--;
    }
    return rules_alt(r, x, rules_seq(r, rules_range(r, first, last),
                                     between(r, NULL, NULL, n - 1)));
}

rules_expr rules_chars(rules *r, uint32_t lo, uint32_t hi)
{
    static const uint32_t parts[][2] = {
        { 0, 0x7F }, { 0x80, 0x7FF }, { 0x800, 0xD7FF }, { 0xE000, 0xFFFF }, { 0x10000, 0x10FFFF }
    };
    rules_expr x = RULES_NOTHING;
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        const uint32_t from = lo > parts[i][0] ? lo : parts[i][0];
        const uint32_t last = hi < parts[i][1] ? hi : parts[i][1];
        uint8_t a[4], b[4];
        if (from > last) continue;
        const int n = utf8_encode(a, from);
        utf8_encode(b, last);
        x = rules_alt(r, x, n == 1 ? rules_range(r, a[0], b[0]) : between(r, a, b, n));
    }
    return x;
}

/* ---- expressions to nodes -------------------------------------------------------------------- */

typedef struct maker {
    const rules *r;
    grammar *g;
    int cap;
    int32_t *start;                      /* [n_rule] first nodes */
    uint8_t *empty;                      /* [n_node] RETURN can be reached without a byte */
    int failed;
} maker;

static int32_t put(maker *m, grammar_node x)
{
    grammar *g = m->g;
    const bool fits = g->n_node < MAX_NODE;
    grammar_node *nodes = fits ? mem_grow(g->nodes, g->n_node, &m->cap, sizeof *nodes) : NULL;
    if (!nodes) {
        m->failed = fits ? ERR_NOMEM : ERR_RANGE;
        return 0;
    }
    g->nodes = nodes;
    g->nodes[g->n_node] = x;
    return g->n_node++;
}

static int32_t compile(maker *m, rules_expr pos, int32_t next);

/* * and + are loops without a call; counted repetitions need one. */
static int32_t compile_repeat(maker *m, const expr *x, int32_t next)
{
    if (x->max == 1) {
        const int32_t once = compile(m, x->a, next);
        return put(m, (grammar_node){ .kind = NODE_SPLIT, .next = once, .alternative = next });
    }
    if (x->max == RULES_NO_LIMIT && x->min <= 1) {
        const int32_t around = put(m, (grammar_node){ .kind = NODE_SPLIT, .alternative = next });
        const int32_t body = compile(m, x->a, around);
        if (m->failed) return 0;
        m->g->nodes[around].next = body;
        return x->min ? body : around;
    }
    const int32_t body = compile(m, x->a, 0);
    return put(m, (grammar_node){ .kind = NODE_REPEAT, .next = next, .alternative = body,
                                  .min = x->min, .max = x->max });
}

/* Returns the first node of the expression, which continues with next. Until the rules have nodes,
 * `alternative` of a CALL is the rule's number. */
static int32_t compile(maker *m, rules_expr pos, int32_t next)
{
    const expr *const xs = m->r->exprs;
    int32_t split = -1;
    while (!m->failed) {
        const expr *x = &xs[pos];
        int32_t node = next;
        switch ((expr_kind)x->kind) {
        case EXPR_SEQ:
            if (split >= 0) {            /* the last alternative */
                node = compile(m, pos, next);
                break;
            }
            next = compile(m, x->b, next);
            pos = x->a;
            continue;
        case EXPR_ALT:
            node = compile(m, x->b, next);
            split = split < 0 ? node : put(m, (grammar_node){ .kind = NODE_SPLIT, .next = node,
                                                              .alternative = split });
            pos = x->a;
            continue;
        case EXPR_RANGE:
            node = put(m, (grammar_node){ .kind = NODE_RANGE, .lo = x->lo, .hi = x->hi,
                                          .next = next });
            break;
        case EXPR_REPEAT:
            node = compile_repeat(m, x, next);
            break;
        case EXPR_CALL:
            node = put(m, (grammar_node){ .kind = NODE_CALL, .next = next, .alternative = x->a });
            break;
        case EXPR_EMPTY:
            break;
        case EXPR_NOTHING:               /* an endless loop: find_need makes it unreachable */
            node = put(m, (grammar_node){ .kind = NODE_SPLIT });
            m->g->nodes[m->failed ? 0 : node].next = node;
            m->g->nodes[m->failed ? 0 : node].alternative = node;
            break;
        }
        if (split < 0 || m->failed) return node;
        return put(m, (grammar_node){ .kind = NODE_SPLIT, .next = node, .alternative = split });
    }
    return 0;
}

/* ---- analysis of nodes ----------------------------------------------------------------------- */

static bool is_empty(const maker *m, const grammar_node *x)
{
    const uint8_t *e = m->empty;
    switch ((node_kind)x->kind) {
    case NODE_RANGE: return false;
    case NODE_RETURN: return true;
    case NODE_SPLIT: return e[x->next] || e[x->alternative];
    case NODE_CALL: return e[x->alternative] && e[x->next];
    case NODE_REPEAT: return (x->min == 0 || e[x->alternative]) && e[x->next];
    }
    return false;
}

static void find_empty(maker *m)
{
    grammar *g = m->g;
    for (bool changed = true; changed;) {
        changed = false;
        for (int i = 0; i < g->n_node; i++) {
            if (m->empty[i] || !is_empty(m, &g->nodes[i])) continue;
            m->empty[i] = true;
            changed = true;
        }
    }
    /* if the repeated part can be empty, min may be 0; then each iteration reads a byte */
    for (int i = 0; i < g->n_node; i++)
        if (g->nodes[i].kind == NODE_REPEAT && m->empty[g->nodes[i].alternative])
            g->nodes[i].min = 0;
}

static int32_t need_of(const grammar *g, const grammar_node *x)
{
    const int32_t next = g->nodes[x->next].need, alternative = g->nodes[x->alternative].need;
    switch ((node_kind)x->kind) {
    case NODE_RANGE: return next;
    case NODE_RETURN: return 0;
    case NODE_SPLIT: return min_int(next, alternative);
    case NODE_CALL: return x->next == 0 ? alternative : max_int(alternative + 1, next);
    case NODE_REPEAT: return x->min == 0 ? next : max_int(alternative + 1, next);
    }
    return 0;
}

static void find_need(grammar *g)
{
    for (int i = 0; i < g->n_node; i++) g->nodes[i].need = GRAMMAR_DEPTH + 1;
    for (bool changed = true; changed;) {
        changed = false;
        for (int i = 0; i < g->n_node; i++) {
            const int32_t need = min_int(need_of(g, &g->nodes[i]), GRAMMAR_DEPTH + 1);
            if (need >= g->nodes[i].need) continue;
            g->nodes[i].need = need;
            changed = true;
        }
    }
}

/* Writes the at most two nodes that follow node i without a byte. Returns their number. A call in a
 * cycle of these edges is left recursion. */
static int silent_steps(const maker *m, int32_t targets[2], int i)
{
    const grammar_node *x = &m->g->nodes[i];
    int n = 0;
    if (x->kind == NODE_RANGE || x->kind == NODE_RETURN) return 0;
    targets[n++] = x->alternative;
    if (x->kind == NODE_SPLIT || m->empty[x->alternative] || (x->kind == NODE_REPEAT &&
                                                              x->min == 0))
        targets[n++] = x->next;
    return n;
}

/* Finds strongly connected components with Tarjan's algorithm, without recursion; group[i] is the
 * component of node i. A CALL or REPEAT whose target is in its own component calls itself. */
static int find_circles(int32_t *group, const maker *m)
{
    const int n = m->g->n_node;
    int32_t *memory = mem_array((size_t)n, 5 * sizeof *memory);
    int32_t *index = memory, *low = memory + n, *path = memory + 2 * (size_t)n;
    int32_t *open = memory + 3 * (size_t)n, *done = memory + 4 * (size_t)n;
    int count = 0, n_path = 0, n_open = 0;
    if (!memory) return ERR_NOMEM;
    for (int i = 0; i < n; i++) index[i] = group[i] = -1, done[i] = 0;
    for (int first = 0; first < n; first++) {
        if (index[first] >= 0) continue;
        path[n_path++] = first;
        while (n_path > 0) {
            const int32_t pos = path[n_path - 1];
            int32_t targets[2];
            const int n_to = silent_steps(m, targets, pos);
            if (index[pos] < 0) {
                index[pos] = low[pos] = count++;
                open[n_open++] = pos;
            }
            if (done[pos] > 0 && low[targets[done[pos] - 1]] < low[pos] &&
                group[targets[done[pos] - 1]] < 0)
                low[pos] = low[targets[done[pos] - 1]];
            if (done[pos] < n_to) {
                const int32_t go = targets[done[pos]++];
                if (index[go] < 0) path[n_path++] = go;
                continue;
            }
            if (low[pos] == index[pos]) {
                while (open[n_open - 1] != pos) group[open[--n_open]] = pos;
                group[open[--n_open]] = pos;
            }
            n_path--;
        }
    }
    mem_free(memory);
    return 0;
}

static int refuse_left_recursion(const maker *m, err_ctx *err)
{
    const int n = m->g->n_node;
    int32_t *group = mem_array((size_t)n, sizeof *group);
    int rc = group ? find_circles(group, m) : ERR_NOMEM;
    if (rc < 0) rc = err_set(err, ERR_NOMEM, "out of memory for a grammar of %d nodes", n);
    for (int i = 0; i < n && rc == 0; i++) {
        const grammar_node *x = &m->g->nodes[i];
        char name[128] = "?";
        if (x->kind != NODE_CALL || group[i] != group[x->alternative]) continue;
        for (int k = 0; k < m->r->n_rule; k++)
            if (m->start[k] == x->alternative) str_escape(name, sizeof name,
                                                    str_from(m->r->list[k].name));
        rc = err_set(err, ERR_UNSUPPORTED, "the rule %s calls itself before it reads a byte: write "
                     "such left recursion as a repetition", name);
    }
    mem_free(group);
    return rc;
}

/* ---- the whole grammar ----------------------------------------------------------------------- */

static int make(maker *m, int root, err_ctx *err)
{
    const rules *r = m->r;
    put(m, (grammar_node){ .kind = NODE_RETURN });
    for (int i = 0; i < r->n_rule && !m->failed; i++) m->start[i] = compile(m, r->list[i].x, 0);
    if (m->failed == ERR_RANGE)
        return err_set(err, ERR_RANGE, "the grammar is too large: more than %d nodes", MAX_NODE);
    m->empty = m->failed ? NULL : mem_zalloc((size_t)m->g->n_node);
    if (!m->empty) return err_set(err, ERR_NOMEM, "out of memory for a grammar");
    for (int i = 0; i < m->g->n_node; i++)
        if (m->g->nodes[i].kind == NODE_CALL)
            m->g->nodes[i].alternative = m->start[m->g->nodes[i].alternative];
    m->g->start = m->start[root];
    find_empty(m);
    const int rc = refuse_left_recursion(m, err);
    if (rc < 0) return rc;
    find_need(m->g);
    if (m->g->nodes[m->g->start].need > GRAMMAR_DEPTH)
        return err_set(err, ERR_FORMAT, "no finite text has this form");
    return 0;
}

int rules_finish(grammar **out, const rules *r, int root, err_ctx *err)
{
    maker m = { .r = r };
    int rc;

    *out = NULL;
    if (r->failed == ERR_RANGE)
        return err_set(err, ERR_RANGE, "the grammar is too large: it has more than %d parts, or "
                       "parts within parts more than %d deep", MAX_EXPR, MAX_NEST);
    m.g = r->failed ? NULL : mem_zalloc(sizeof *m.g);
    m.start = m.g ? mem_array((size_t)r->n_rule + 1, sizeof *m.start) : NULL;
    rc = m.start ? make(&m, root, err) : err_set(err, ERR_NOMEM, "out of memory for a grammar");
    mem_free(m.start);
    mem_free(m.empty);
    if (rc < 0) grammar_free(m.g);
    else *out = m.g;
    return rc;
}

void grammar_free(grammar *g)
{
    if (!g) return;
    mem_free(g->nodes);
    mem_free(g);
}

bool grammar_has_markup(const grammar *g) { return g->markup; }
