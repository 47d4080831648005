/* grammar.c - runs a grammar as a pushdown automaton with lazily built states.
 *
 * A position is a node that reads a byte, plus its call stack: a frame, linked to the caller's
 * frame. A state is the set of all positions that the bytes so far can lead to. Frames and states
 * are interned by content and identified by number. A row of the transition table is filled byte by
 * byte on demand.
 *
 * Invariants: a frame's parent has a smaller number. The positions of a state are sorted and
 * unique, and each can reach the end within GRAMMAR_DEPTH. A frame with a count belongs to a
 * REPEAT, one without to a CALL. Each iteration of a REPEAT reads a byte; an iteration that would
 * not is dropped. */
#include "engine/text/grammar/grammar_rules.h"

#include <assert.h>
#include <string.h>

enum {
    MAX_FRAMES = 1 << 16, FRAME_SLOTS = 1 << 17,
    STATE_SLOTS = 1 << 15,
    MAX_PLACES = 1 << 18,                /* of all states */
    MAX_WORK = 1 << 13, SEEN_SLOTS = 1 << 14,    /* of one step */
    STEP_UNKNOWN = 0xFFFF, STEP_DEAD = 0xFFFE
};

typedef struct frame {
    int32_t node;                        /* CALL: node after the return; REPEAT: its own node */
    int32_t count;                       /* CALL: 0; REPEAT: iterations begun */
    int32_t parent, depth;
} frame;

typedef struct position { int32_t node, frame; } position;

typedef struct state {
    int32_t first, n;                    /* its positions, in places */
    int32_t near_bytes, near;            /* cached result of grammar_run_near; bytes 0: none */
    bool may_end;
} state;

typedef struct work { int32_t node, frame, fresh; } work;        /* fresh: frames pushed in this
                                                                  * step */

struct grammar_run {
    const grammar *g;
    frame *frames;
    int n_frame;
    int32_t *frame_slots;                /* hash table of frame numbers + 1; 0: empty */
    state *states;
    int n_state;
    int32_t *state_slots;
    uint16_t (*steps)[256];
    position *places;
    int n_place;
    grammar_state start;                 /* GRAMMAR_DEAD: not computed yet */

    /* the current step; its positions are appended after those of the states */
    work *todo;
    int n_todo;
    struct visited { work item; uint32_t stamp; } *visited;
    uint32_t stamp;
    int n_seen, n_found;
    bool may_end, full, many;
    bool crowded;                        /* some step had too many positions */
};

/* ---- life ------------------------------------------------------------------------------------ */

static void forget(grammar_run *r)
{
    memset(r->frame_slots, 0, FRAME_SLOTS * sizeof *r->frame_slots);
    memset(r->state_slots, 0, STATE_SLOTS * sizeof *r->state_slots);
    r->frames[0] = (frame){ .node = -1 };
    r->n_frame = 1;
    r->n_state = r->n_place = 0;
    r->start = GRAMMAR_DEAD;
}

int grammar_run_create(grammar_run **out, const grammar *g, err_ctx *err)
{
    grammar_run *r = mem_zalloc(sizeof *r);
    *out = NULL;
    if (r) {
        r->g = g;
        r->frames = mem_array(MAX_FRAMES, sizeof *r->frames);
        r->frame_slots = mem_array(FRAME_SLOTS, sizeof *r->frame_slots);
        r->states = mem_array(GRAMMAR_MAX_STATES, sizeof *r->states);
        r->state_slots = mem_array(STATE_SLOTS, sizeof *r->state_slots);
        r->steps = mem_array(GRAMMAR_MAX_STATES, sizeof *r->steps);
        r->places = mem_array(MAX_PLACES, sizeof *r->places);
        r->todo = mem_array(MAX_WORK, sizeof *r->todo);
        r->visited = mem_zalloc(SEEN_SLOTS * sizeof *r->visited);
    }
    if (!r || !r->frames || !r->frame_slots || !r->states || !r->state_slots || !r->steps ||
        !r->places || !r->todo || !r->visited) {
        grammar_run_free(r);
        return err_set(err, ERR_NOMEM, "out of memory for a grammar's tables");
    }
    forget(r);
    *out = r;
    return 0;
}

void grammar_run_free(grammar_run *r)
{
    if (!r) return;
    mem_free(r->frames);
    mem_free(r->frame_slots);
    mem_free(r->states);
    mem_free(r->state_slots);
    mem_free(r->steps);
    mem_free(r->places);
    mem_free(r->todo);
    mem_free(r->visited);
    mem_free(r);
}

int grammar_run_n_state(const grammar_run *r) { return r->n_state; }

/* ---- frames ---------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t h, int32_t x)
{
    return random_word(h, (uint32_t)x);
}

/* Returns the number of the frame, which may be new, or -1 if the table is full. */
static int32_t frame_of(grammar_run *r, int32_t node, int32_t count, int32_t parent)
{
    uint64_t pos = mix(mix((uint64_t)node, count), parent) % FRAME_SLOTS;
    for (; r->frame_slots[pos]; pos = (pos + 1) % FRAME_SLOTS) {
        const frame *f = &r->frames[r->frame_slots[pos] - 1];
        if (f->node == node && f->count == count && f->parent == parent)
            return r->frame_slots[pos] - 1;
    }
    if (r->n_frame == MAX_FRAMES) {
        r->full = true;
        return -1;
    }
    r->frames[r->n_frame] = (frame){ node, count, parent, r->frames[parent].depth + 1 };
    r->frame_slots[pos] = r->n_frame + 1;
    return r->n_frame++;
}

/* ---- all positions that can be reached without a byte ---------------------------------------- */

/* Queues a node of this step, if the end can be reached from it within GRAMMAR_DEPTH. */
static void visit(grammar_run *r, int32_t node, int32_t at_frame, int32_t fresh)
{
    const work w = { node, at_frame, fresh };
    if (at_frame < 0 || r->frames[at_frame].depth + r->g->nodes[node].need > GRAMMAR_DEPTH) return;
    uint64_t pos = mix(mix((uint64_t)node, at_frame), fresh) % SEEN_SLOTS;
    for (; r->visited[pos].stamp == r->stamp; pos = (pos + 1) % SEEN_SLOTS)
        if (memcmp(&r->visited[pos].item, &w, sizeof w) == 0) return;
    if (r->n_seen == MAX_WORK) {
        r->many = true;
        return;
    }
    r->n_seen++;
    r->visited[pos].item = w;
    r->visited[pos].stamp = r->stamp;
    r->todo[r->n_todo++] = w;
}

/* Calls the node `called`, which returns to `node`. */
static void call(grammar_run *r, int32_t called, int32_t node, int32_t count, int32_t parent,
                 int32_t fresh)
{
    if (r->frames[parent].depth + 1 + r->g->nodes[called].need > GRAMMAR_DEPTH) return;
    visit(r, called, frame_of(r, node, count, parent), fresh + 1);
}

/* Continues a repetition after `count` iterations. Without an upper limit, counts above min are
 * equivalent and become one. */
static void repeat(grammar_run *r, int32_t node, int32_t count, int32_t parent, int32_t fresh)
{
    const grammar_node *x = &r->g->nodes[node];
    if (count >= x->min) visit(r, x->next, parent, fresh);
    if (x->max != RULES_NO_LIMIT && count >= x->max) return;
    int32_t turns = count + 1;
    if (x->max == RULES_NO_LIMIT && turns > x->min) turns = max_int(x->min, 1);
    call(r, x->alternative, node, turns, parent, fresh);
}

static void go_back(grammar_run *r, const work *w)
{
    if (w->frame == 0) {
        r->may_end = true;
        return;
    }
    const frame f = r->frames[w->frame];
    const int32_t fresh = w->fresh > 0 ? w->fresh - 1 : 0;
    if (f.count == 0) visit(r, f.node, f.parent, fresh);
    else if (w->fresh == 0) repeat(r, f.node, f.count, f.parent, fresh);
}

static void begin_step(grammar_run *r)
{
    if (++r->stamp == 0) {
        memset(r->visited, 0, SEEN_SLOTS * sizeof *r->visited);
        r->stamp = 1;
    }
    r->n_todo = r->n_seen = r->n_found = 0;
    r->may_end = r->full = r->many = false;
}

static void found(grammar_run *r, int32_t node, int32_t at_frame)
{
    if (r->n_place + r->n_found == MAX_PLACES) r->full = true;
    else r->places[r->n_place + r->n_found++] = (position){ node, at_frame };
}

static void close_step(grammar_run *r)
{
    while (r->n_todo > 0 && !r->full && !r->many) {
        const work w = r->todo[--r->n_todo];
        const grammar_node *x = &r->g->nodes[w.node];
        switch ((node_kind)x->kind) {
        case NODE_RANGE:
            found(r, w.node, w.frame);
            break;
        case NODE_SPLIT:
            visit(r, x->next, w.frame, w.fresh);
            visit(r, x->alternative, w.frame, w.fresh);
            break;
        case NODE_CALL:                  /* a tail call, whose next is RETURN, needs no frame */
            if (x->next == 0) visit(r, x->alternative, w.frame, w.fresh);
            else call(r, x->alternative, x->next, 0, w.frame, w.fresh);
            break;
        case NODE_REPEAT:
            repeat(r, w.node, 0, w.frame, w.fresh);
            break;
        case NODE_RETURN:
            go_back(r, &w);
            break;
        }
    }
}

/* ---- states ---------------------------------------------------------------------------------- */

static int by_place(const position *x, const position *y)
{
    if (x->node != y->node) return x->node < y->node ? -1 : 1;
    return (x->frame > y->frame) - (x->frame < y->frame);
}

/* Shellsort: allocates nothing, and most states are small. */
static void sort_places(position *p, int n)
{
    int gap = 1;
    while (gap < n / 3) gap = 3 * gap + 1;
    for (; gap > 0; gap /= 3) {
        for (int i = gap; i < n; i++) {
            const position x = p[i];
            int k = i;
            for (; k >= gap && by_place(&p[k - gap], &x) > 0; k -= gap) p[k] = p[k - gap];
            p[k] = x;
        }
    }
}

static bool same_state(const grammar_run *r, const state *s, const position *p, int n, bool may_end)
{
    return s->n == n && s->may_end == may_end &&
           memcmp(r->places + s->first, p, (size_t)n * sizeof *p) == 0;
}

/* Returns the slot of the state with these positions, or the empty slot for it. */
static uint64_t slot_of(const grammar_run *r, const position *p, int n, bool may_end)
{
    uint64_t h = may_end;
    for (int i = 0; i < n; i++) h = mix(mix(h, p[i].node), p[i].frame);
    uint64_t pos = h % STATE_SLOTS;
    while (r->state_slots[pos] &&
           !same_state(r, &r->states[r->state_slots[pos] - 1], p, n, may_end))
        pos = (pos + 1) % STATE_SLOTS;
    return pos;
}

/* Returns the state with the positions of this step. */
static grammar_state end_step(grammar_run *r)
{
    position *p = r->places + r->n_place;
    int n = 0;
    if (r->full) return GRAMMAR_FULL;
    r->crowded |= r->many;
    if (r->many || (r->n_found == 0 && !r->may_end)) return GRAMMAR_DEAD;
    sort_places(p, r->n_found);
    for (int i = 0; i < r->n_found; i++)
        if (n == 0 || by_place(&p[n - 1], &p[i]) != 0) p[n++] = p[i];
    const uint64_t pos = slot_of(r, p, n, r->may_end);
    if (r->state_slots[pos]) return r->state_slots[pos] - 1;
    if (r->n_state == GRAMMAR_MAX_STATES) return GRAMMAR_FULL;
    r->states[r->n_state] = (state){ .first = r->n_place, .n = n, .may_end = r->may_end };
    memset(r->steps[r->n_state], 0xFF, sizeof r->steps[0]);
    r->n_place += n;
    r->state_slots[pos] = r->n_state + 1;
    return r->n_state++;
}

grammar_state grammar_run_start(grammar_run *r)
{
    if (r->start >= 0) return r->start;
    begin_step(r);
    visit(r, r->g->start, 0, 0);
    close_step(r);
    const grammar_state s = end_step(r);
    if (s >= 0) r->start = s;
    return s;
}

grammar_state grammar_run_step(grammar_run *r, grammar_state s, uint8_t byte)
{
    if (s < 0) return s;
    const uint16_t cached = r->steps[s][byte];
    if (cached < STEP_DEAD) return cached;
    if (cached == STEP_DEAD) return GRAMMAR_DEAD;
    begin_step(r);
    for (int i = 0; i < r->states[s].n; i++) {
        const position p = r->places[r->states[s].first + i];
        const grammar_node *x = &r->g->nodes[p.node];
        if (byte >= x->lo && byte <= x->hi) visit(r, x->next, p.frame, 0);
    }
    close_step(r);
    const grammar_state next_state = end_step(r);
    if (next_state != GRAMMAR_FULL) r->steps[s][byte] = next_state < 0 ? STEP_DEAD
        : (uint16_t)next_state;
    return next_state;
}

bool grammar_run_crowded(const grammar_run *r) { return r->crowded; }

bool grammar_run_may_end(const grammar_run *r, grammar_state s) { return r->states[s].may_end; }

int grammar_run_only_byte(const grammar_run *r, grammar_state s)
{
    const position *p = r->places + r->states[s].first;
    if (r->states[s].may_end) return -1;
    const int only = r->g->nodes[p[0].node].lo;
    for (int i = 0; i < r->states[s].n; i++) {
        const grammar_node *x = &r->g->nodes[p[i].node];
        if (x->lo != only || x->hi != only) return -1;
    }
    return only;
}

/* ---- equivalent states ----------------------------------------------------------------------- */

/* Returns a representative of all counts that n_bytes cannot distinguish. An iteration reads at
 * least one byte. */
static int32_t near_count(const grammar_node *x, int32_t count, int n_bytes)
{
    if (count < x->min - n_bytes) return x->min - n_bytes - 1 > 0 ? x->min - n_bytes - 1 : count;
    if (x->max != RULES_NO_LIMIT && count >= x->min && count < x->max - n_bytes)
        return max_int(x->min, 1);
    return count;
}

static int32_t near_frame(grammar_run *r, int32_t pos, int n_bytes)
{
    int32_t path[GRAMMAR_DEPTH + 1], n = 0;
    for (; pos > 0; pos = r->frames[pos].parent) path[n++] = pos;
    while (n > 0 && pos >= 0) {
        const frame f = r->frames[path[--n]];
        pos = frame_of(r, f.node, f.count ? near_count(&r->g->nodes[f.node], f.count, n_bytes) : 0,
                      pos);
    }
    return pos;
}

grammar_state grammar_run_near(grammar_run *r, grammar_state s, int n_bytes)
{
    if (s < 0) return s;
    if (r->states[s].near_bytes == n_bytes) return r->states[s].near;
    begin_step(r);
    r->may_end = r->states[s].may_end;
    for (int i = 0; i < r->states[s].n && !r->full; i++) {
        const position p = r->places[r->states[s].first + i];
        found(r, p.node, near_frame(r, p.frame, n_bytes));
    }
    const grammar_state next_state = end_step(r);
    if (next_state < 0) return GRAMMAR_FULL;
    r->states[s].near_bytes = r->states[next_state].near_bytes = n_bytes;
    r->states[s].near = r->states[next_state].near = next_state;
    return next_state;
}

/* ---- clearing -------------------------------------------------------------------------------- */

/* Copies the states in the list, each once, in the order of their numbers, and moves their places
 * to the front in that order. renamed [n]: the list in their new numbers. Returns the number of
 * states; *n_place: of places. */
static int gather_kept(state *kept, int *n_place, grammar_state *renamed, grammar_run *r,
                       const grammar_state *list, int n)
{
    int n_kept = 0;
    *n_place = 0;
    for (grammar_state last = -1;; n_kept++) {
        grammar_state least = r->n_state;
        for (int i = 0; i < n; i++)
            if (list[i] > last && list[i] < least) least = list[i];
        if (least == r->n_state) return n_kept;
        for (int i = 0; i < n; i++)
            if (list[i] == least) renamed[i] = n_kept;
        kept[n_kept] = r->states[least];
        memmove(r->places + *n_place, r->places + kept[n_kept].first,
                (size_t)kept[n_kept].n * sizeof *r->places);
        *n_place += kept[n_kept].n;
        last = least;
    }
}

/* Moves the frames that the states need to the front, in the same order, so parents precede
 * children. */
void grammar_run_keep(grammar_run *r, grammar_state *list, int n_list)
{
    const int n_frame = r->n_frame;
    int32_t *new_number = r->frame_slots;        /* large enough; rebuilt below */
    grammar_state renamed[GRAMMAR_MAX_KEPT];
    state kept[GRAMMAR_MAX_KEPT];
    int n_place;

    assert(n_list <= GRAMMAR_MAX_KEPT);
    const int n_kept = gather_kept(kept, &n_place, renamed, r, list, n_list);
    memset(new_number, 0, (size_t)n_frame * sizeof *new_number);
    for (int i = 0; i < n_place; i++)
        for (int32_t f = r->places[i].frame; f > 0; f = r->frames[f].parent) new_number[f] = 1;
    int n = 1;
    for (int i = 1; i < n_frame; i++) {
        if (!new_number[i]) continue;
        frame f = r->frames[i];
        f.parent = new_number[f.parent];
        r->frames[n] = f;
        new_number[i] = n++;
    }
    for (int i = 0; i < n_place; i++) r->places[i].frame = new_number[r->places[i].frame];
    forget(r);
    for (int i = 1; i < n; i++) {
        const frame f = r->frames[i];
        frame_of(r, f.node, f.count, f.parent);
    }
    for (int i = 0; i < n_kept; i++) {           /* its places follow those of the states before */
        begin_step(r);
        r->may_end = kept[i].may_end;
        r->n_found = kept[i].n;
        (void)end_step(r);
    }
    memcpy(list, renamed, (size_t)n_list * sizeof *list);
}
