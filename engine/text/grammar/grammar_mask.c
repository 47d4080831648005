/* grammar_mask.c - walks the tree of tokens along the grammar and caches the masks.
 *
 * The walk makes one step for each node whose parent is alive and skips the subtrees of dead nodes.
 * Masks are cached by grammar_run_near for the bytes of the longest token, so all positions in the
 * middle of a long string share one. The cache is cleared together with the run. */
#include "engine/text/grammar/grammar_mask.h"

#include <assert.h>
#include <string.h>

enum { N_KEPT = 192, MAX_STOPS = 16 };

struct grammar_mask {
    const token_trie *v;
    grammar_run *run;
    grammar_state pos;
    grammar_state past[GRAMMAR_MASK_BACK];       /* before the last n_past tokens, oldest first */
    int n_past;
    int n_vocab;
    size_t n_word;
    int stops[MAX_STOPS], n_stop;

    uint64_t *bits;                      /* [N_KEPT, n_word] */
    grammar_state of[N_KEPT];            /* the state of each mask; -1: none */
    uint64_t used[N_KEPT];               /* clock of the last use */
    int16_t *kept;                       /* [GRAMMAR_MAX_STATES] mask of the state, or -1 */
    uint64_t clock;
    grammar_state *path;                 /* [longest + 1] states at each depth of the walk */
};

static void forget(grammar_mask *m)
{
    for (int i = 0; i < N_KEPT; i++) m->of[i] = -1, m->used[i] = 0;
    for (int i = 0; i < GRAMMAR_MAX_STATES; i++) m->kept[i] = -1;
}

int grammar_mask_create(grammar_mask **out, const grammar *g, const token_trie *v, int n_vocab,
                        err_ctx *err)
{
    grammar_mask *m = mem_zalloc(sizeof *m);
    int rc;
    *out = NULL;
    if (!m) return err_set(err, ERR_NOMEM, "out of memory for masks");
    m->v = v;
    m->n_vocab = n_vocab;
    m->n_word = ((size_t)n_vocab + 63) / 64;
    m->n_stop = min_int(tokenizer_stops(v->tok, m->stops, MAX_STOPS), MAX_STOPS);
    m->bits = mem_array(N_KEPT * m->n_word, sizeof *m->bits);
    m->kept = mem_array(GRAMMAR_MAX_STATES, sizeof *m->kept);
    m->path = mem_array((size_t)v->longest + 1, sizeof *m->path);
    rc = m->bits && m->kept && m->path ? grammar_run_create(&m->run, g, err)
                                       : err_set(err, ERR_NOMEM, "out of memory for masks of %d "
                                                 "tokens", n_vocab);
    if (rc == 0) {
        forget(m);
        m->pos = grammar_run_start(m->run);
        if (m->pos < 0)
            rc = err_set(err, ERR_RANGE, "the grammar is too ambiguous at its beginning");
    }
    if (rc < 0) grammar_mask_free(m);
    else *out = m;
    return rc;
}

void grammar_mask_free(grammar_mask *m)
{
    if (!m) return;
    grammar_run_free(m->run);
    mem_free(m->bits);
    mem_free(m->kept);
    mem_free(m->path);
    mem_free(m);
}

static void start_over(grammar_mask *m)
{
    grammar_state kept[GRAMMAR_MASK_BACK + 1] = { m->pos };
    static_assert(ARRAY_LEN(kept) <= GRAMMAR_MAX_KEPT, "states that are kept");
    memcpy(kept + 1, m->past, (size_t)m->n_past * sizeof *kept);
    grammar_run_keep(m->run, kept, 1 + m->n_past);
    m->pos = kept[0];
    memcpy(m->past, kept + 1, (size_t)m->n_past * sizeof *kept);
    forget(m);
}

void grammar_mask_reset(grammar_mask *m)
{
    m->n_past = 0;
    grammar_state start = grammar_run_start(m->run);
    if (start == GRAMMAR_FULL) {
        start_over(m);
        start = grammar_run_start(m->run);
    }
    m->pos = start;
}

bool grammar_mask_may_end(const grammar_mask *m) { return grammar_run_may_end(m->run, m->pos); }

/* ---- the walk -------------------------------------------------------------------------------- */

static void set_bit(grammar_mask *m, uint64_t *bits, int32_t id)
{
    if (id < m->n_vocab) bits[id / 64] |= (uint64_t)1 << id % 64;
}

/* Sets the bits of all tokens that the grammar accepts from `from`. Returns false if the run's
 * tables are full. */
static bool walk(grammar_mask *m, uint64_t *bits, grammar_state from)
{
    const trie_node *nodes = m->v->nodes;
    const int n = m->v->n_node;
    grammar_state *path = m->path;
    memset(bits, 0, m->n_word * sizeof *bits);
    path[0] = from;
    for (int i = 0; i < n;) {
        const trie_node *x = &nodes[i];
        const grammar_state next_state = grammar_run_step(m->run, path[x->depth], x->byte);
        if (next_state < 0) {
            if (next_state == GRAMMAR_FULL) return false;
            i = x->skip;
            continue;
        }
        path[x->depth + 1] = next_state;
        for (int32_t id = x->id; id >= 0; id = m->v->same[id]) set_bit(m, bits, id);
        i++;
    }
    if (grammar_run_may_end(m->run, from))
        for (int i = 0; i < m->n_stop; i++) set_bit(m, bits, m->stops[i]);
    return true;
}

static int oldest(const grammar_mask *m)
{
    int pos = 0;
    for (int i = 1; i < N_KEPT; i++)
        if (m->used[i] < m->used[pos]) pos = i;
    return pos;
}

/* Returns the slot with the mask of the current state, or -1 if the tables are full. */
static int find(grammar_mask *m)
{
    const grammar_state s = grammar_run_near(m->run, m->pos, m->v->longest);
    if (s < 0) return -1;
    if (m->kept[s] >= 0) return m->kept[s];
    const int slot = oldest(m);
    if (m->of[slot] >= 0) m->kept[m->of[slot]] = -1;
    m->of[slot] = -1;
    if (!walk(m, m->bits + (size_t)slot * m->n_word, s)) return -1;
    m->of[slot] = s;
    m->kept[s] = (int16_t)slot;
    return slot;
}

const uint64_t *grammar_mask_bits(grammar_mask *m, err_ctx *err)
{
    int slot = find(m);
    if (slot < 0) {
        start_over(m);
        slot = find(m);
    }
    if (slot < 0) {
        err_set(err, ERR_RANGE, "the grammar has too many possible positions here");
        return NULL;
    }
    m->used[slot] = ++m->clock;
    const uint64_t *bits = m->bits + (size_t)slot * m->n_word;
    for (size_t i = 0; i < m->n_word; i++)
        if (bits[i]) return bits;
    err_set(err, ERR_RANGE, grammar_run_crowded(m->run)
            ? "the grammar is too ambiguous: it has too many possible positions here"
            : "no token of the vocabulary continues the grammar here");
    return NULL;
}

/* ---- text without a choice ------------------------------------------------------------------- */

/* The longest token of the bytes that the grammar forces from *s on; advances *s by it. -1:
 * none. */
static int32_t longest_forced(grammar_mask *m, grammar_state *s)
{
    const trie_node *nodes = m->v->nodes;
    grammar_state after = *s;
    int32_t id = -1;
    for (int i = 0, end = m->v->n_node, only; after >= 0; end = nodes[i++].skip) {
        if ((only = grammar_run_only_byte(m->run, after)) < 0) break;
        while (i < end && nodes[i].byte != only) i = nodes[i].skip;
        if (i == end) break;
        after = grammar_run_step(m->run, after, (uint8_t)only);
        if (after < 0 || nodes[i].id < 0 || nodes[i].id >= m->n_vocab) continue;
        id = nodes[i].id;
        *s = after;
    }
    return id;
}

int grammar_mask_forced(grammar_mask *m, int32_t *out, int most)
{
    grammar_state s = m->pos;
    int n = 0;
    while (n < most && (out[n] = longest_forced(m, &s)) >= 0) n++;
    return n;
}

/* ---- following the text ---------------------------------------------------------------------- */

/* Advances by bytes and returns the state before, or -1 if they do not fit. If the tables become
 * full it clears them and retries once. */
static grammar_state take(grammar_mask *m, str_view bytes)
{
    for (int attempt = 0; attempt < 2 && bytes.len > 0; attempt++) {
        grammar_state next_state = m->pos;
        for (size_t i = 0; i < bytes.len; i++)
            next_state = grammar_run_step(m->run, next_state, (uint8_t)bytes.ptr[i]);
        if (next_state >= 0) {
            const grammar_state before = m->pos;
            m->pos = next_state;
            return before;
        }
        if (next_state == GRAMMAR_DEAD) break;
        start_over(m);
    }
    return -1;
}

int grammar_mask_begin(grammar_mask *m, str_view key, err_ctx *err)
{
    grammar_mask_reset(m);
    if (key.len == 0 || take(m, key) >= 0) return 0;
    return err_set(err, ERR_RANGE, "the grammar has no part for this message");
}

int grammar_mask_accept(grammar_mask *m, int32_t id, err_ctx *err)
{
    const bool ends = tokenizer_is_stop(m->v->tok, id) && grammar_mask_may_end(m);
    const str_view bytes = token_trie_has(m->v, id) ? tokenizer_bytes(m->v->tok, id, false)
                                                    : (str_view){ "", 0 };
    const grammar_state before = ends ? m->pos : take(m, bytes);
    if (before >= 0) {
        if (m->n_past == GRAMMAR_MASK_BACK)
            memmove(m->past, m->past + 1, (size_t)--m->n_past * sizeof *m->past);
        m->past[m->n_past++] = before;
        return 0;
    }
    return err_set(err, ERR_RANGE, "token %d does not fit the grammar here", id);
}

void grammar_mask_back(grammar_mask *m, int n)
{
    assert(n >= 0 && n <= m->n_past);
    if (n == 0) return;
    m->n_past -= n;
    m->pos = m->past[m->n_past];
}
