/* bpe.c - token and pair tables, and the two merge loops.
 *
 * Both tables are open-addressing hashes, at most half full. Building refuses a vocabulary with a
 * longer probe sequence than MAX_PROBE, so hostile files cannot slow down look-ups. Merging takes
 * the leftmost pair of lowest rank until no pair is left. The rank is the merged id if ids never
 * decrease along the file's list, else the index in that list. */
#include "engine/text/tokenizer/bpe.h"

#include <assert.h>

/* The longest probe sequence in published vocabularies is 30. */
#define MAX_PROBE 1024
#define ID_BITS 21
#define ID_MASK ((1u << ID_BITS) - 1)
#define NO_RANK UINT32_MAX

enum { AHEAD = 16 };                     /* entries between a prefetch and its use */

/* ---- building ---------------------------------------------------------------------------- */

/* Returns the smallest power of two >= max(64, 2 n). n must be below 2^30. */
static uint32_t table_size(uint32_t n)
{
    uint32_t size = 64;
    while (size < 2 * n) size *= 2;
    return size;
}

int bpe_init(bpe *b, bool by_char, int n_token, uint32_t n_merge, size_t bytes, err_ctx *err)
{
    const uint32_t n_slot = table_size((uint32_t)n_token), n_pair = table_size(n_merge);
    *b = (bpe){ 0 };
    assert(n_token <= BPE_MAX_TOKEN && n_merge <= 1u << 30);
    if (bytes > UINT32_MAX - BPE_KEY_BYTES)
        return err_set(err, ERR_UNSUPPORTED, "tokens hold %zu bytes, at most %u are supported",
                       bytes, UINT32_MAX - BPE_KEY_BYTES);
    b->by_char = by_char;
    b->n_token = n_token;
    b->n_merge = n_merge;
    b->bytes_cap = bytes;
    b->bytes = mem_zalloc(bytes + BPE_KEY_BYTES);
    b->start = mem_array((size_t)n_token + 1, sizeof *b->start);
    b->slots = mem_array(n_slot, sizeof *b->slots);
    b->is_found = mem_zalloc((size_t)n_token);
    b->pairs = mem_array(n_pair, sizeof *b->pairs);
    b->maybe = mem_zalloc(n_pair * 2 / 8);
    b->list = mem_array(n_merge, sizeof *b->list);
    if (!by_char) b->byte_pair = mem_array(256 * 256, sizeof *b->byte_pair);
    memset(b->byte_id, 0xFF, sizeof b->byte_id);                 /* -1 */
    if (!b->bytes || !b->start || !b->slots || !b->is_found || !b->pairs || !b->maybe ||
        !b->list || (!by_char && !b->byte_pair))
        return err_set(err, ERR_NOMEM, "vocabulary of %d tokens and %u merges", n_token, n_merge);
    memset(b->slots, 0xFF, n_slot * sizeof *b->slots);           /* id -1 */
    memset(b->pairs, 0xFF, n_pair * sizeof *b->pairs);           /* BPE_NO_PAIR */
    b->start[0] = 0;
    b->slot_mask = n_slot - 1;
    b->pair_mask = n_pair - 1;
    b->maybe_mask = n_pair * 2 - 1;
    b->pair_shift = __builtin_clz(n_pair) + 33;                  /* 64 - log2(n_pair) */
    return 0;
}

void bpe_free(bpe *b)
{
    mem_free(b->bytes);
    mem_free(b->start);
    mem_free(b->slots);
    mem_free(b->is_found);
    mem_free(b->pairs);
    mem_free(b->pair_rank);
    mem_free(b->maybe);
    mem_free(b->list);
    mem_free(b->byte_pair);
    mem_free(b->unmade);
    *b = (bpe){ 0 };
}

uint64_t bpe_hash(const uint8_t *p, size_t len)
{
    uint64_t h = len;
    for (; len > 16; p += 16, len -= 16) h = bpe_mix(h, load_u64(p), load_u64(p + 8));
    uint64_t w[2] = { 0, 0 };
    memcpy(w, p, len);
    return bpe_mix(h, w[0], w[1]);
}

static inline uint64_t slot_key(uint64_t first_word, size_t len, uint64_t hash)
{
    return len <= 7 ? first_word | (uint64_t)len << 56 : hash | (uint64_t)1 << 63;
}

static int32_t find(const bpe *b, const uint8_t *p, size_t len, uint64_t first_word, uint64_t hash)
{
    const uint64_t key = slot_key(first_word, len, hash);
    for (uint32_t i = (uint32_t)hash & b->slot_mask;; i = (i + 1) & b->slot_mask) {
        const bpe_slot *s = &b->slots[i];
        if (s->id < 0) return -1;
        if (s->key != key) continue;
        if (len <= 7) return s->id;
        if (s->len == len && memcmp(b->bytes + b->start[s->id], p, len) == 0) return s->id;
    }
}

int32_t bpe_find(const bpe *b, const uint8_t *p, size_t len, uint64_t hash)
{
    uint64_t word = 0;
    if (len <= 7) memcpy(&word, p, len);
    return find(b, p, len, word, hash);
}

static int32_t find_bytes(const bpe *b, const uint8_t *p, size_t len)
{
    return len == 0 || len > b->longest ? -1 : bpe_find(b, p, len, bpe_hash(p, len));
}

void bpe_add_token(bpe *b, str_view bytes, bool findable)
{
    const int id = b->n_added++;
    const uint32_t pos = b->start[id];
    assert(id < b->n_token && bytes.len <= b->bytes_cap - pos);
    if (bytes.len) memcpy(b->bytes + pos, bytes.ptr, bytes.len);
    b->start[id + 1] = pos + (uint32_t)bytes.len;
    b->is_found[id] = findable && bytes.len;
    if (b->is_found[id] && bytes.len > b->longest) b->longest = bytes.len;
}

void bpe_set_byte(bpe *b, uint8_t byte, int id)
{
    if (b->byte_id[byte] < 0) b->byte_id[byte] = id;
}

static int enter_token(bpe *b, int id, uint64_t hash, err_ctx *err)
{
    const str_view bytes = bpe_bytes(b, id);
    const uint64_t word = bpe_word((const uint8_t *)bytes.ptr, (long)bytes.len);
    const uint64_t key = slot_key(word, bytes.len, hash);
    uint32_t i = (uint32_t)hash & b->slot_mask;
    for (int probe = 0; b->slots[i].id >= 0; probe++, i = (i + 1) & b->slot_mask) {
        if (b->slots[i].key == key && str_eq(bpe_bytes(b, b->slots[i].id), bytes)) {
            b->is_found[id] = 0;
            return 0;
        }
        if (probe == MAX_PROBE)
            return err_set(err, ERR_FORMAT, "token %d: more than %d tokens with one hash", id,
                           MAX_PROBE);
    }
    b->slots[i] = (bpe_slot){ key, id, (uint32_t)bytes.len };
    return 0;
}

/* Computes hashes AHEAD entries early and prefetches their cache lines. */
int bpe_seal(bpe *b, err_ctx *err)
{
    uint64_t hash[AHEAD];
    assert(b->n_added == b->n_token);
    for (int i = 0; i < b->n_token + AHEAD; i++) {
        const int id = i - AHEAD;
        const int rc = id >= 0 && b->is_found[id] ? enter_token(b, id, hash[i % AHEAD], err) : 0;
        if (rc < 0) return rc;
        if (i >= b->n_token || !b->is_found[i]) continue;
        hash[i % AHEAD] = bpe_hash(b->bytes + b->start[i], b->start[i + 1] - b->start[i]);
        __builtin_prefetch(&b->slots[(uint32_t)hash[i % AHEAD] & b->slot_mask]);
    }
    for (int i = 0; i < 256; i++) {
        const uint8_t byte = (uint8_t)i;
        const int32_t found = b->by_char && i >= 128 ? -1 : find_bytes(b, &byte, 1);
        if (!b->by_char) b->byte_id[i] = found;
        if (b->byte_id[i] < 0)
            return err_set(err, ERR_FORMAT, "no token for the single byte 0x%02X", (unsigned)i);
        if (b->by_char && i < 128) b->ascii_id[i] = found >= 0 ? found : b->byte_id[i];
    }
    return 0;
}

void bpe_prefetch(const bpe *b, const uint8_t *p, size_t len)
{
    __builtin_prefetch(&b->slots[(uint32_t)bpe_hash(p, len) & b->slot_mask]);
}

/* Returns the token that a merge makes. Most lists are sorted by it, so the last result and its
 * successor are tried before the table. */
static int32_t find_merged(const bpe *b, const uint8_t *p, size_t len)
{
    const int last = b->n_merge_added ? b->list[b->n_merge_added - 1].merged : 255;
    for (int id = last; id <= last + 1 && id < b->n_token; id++)
        if (b->is_found[id] && b->start[id + 1] - b->start[id] == len &&
            memcmp(b->bytes + b->start[id], p, len) == 0)
            return id;
    return find_bytes(b, p, len);
}

int bpe_add_merge(bpe *b, const uint8_t *p, size_t left_len, size_t right_len, err_ctx *err)
{
    const int32_t left = find_bytes(b, p, left_len);
    const int32_t right = find_bytes(b, p + left_len, right_len);
    const int32_t merged = find_merged(b, p, left_len + right_len);
    char text[100];
    assert(b->n_merge_added < b->n_merge);
    if (left < 0 || right < 0 || merged < 0) {
        const size_t from = left >= 0 && right < 0 ? left_len : 0;
        const size_t len = left < 0 ? left_len : right < 0 ? right_len : left_len + right_len;
        const str_view unknown = { (const char *)p + from, len };
        return err_set(err, ERR_FORMAT, "merge %u: %s '%s' is not a token", b->n_merge_added,
                       left < 0 ? "left side" : right < 0 ? "right side" : "result",
                       ESC(text, unknown));
    }
    b->list[b->n_merge_added++] = (bpe_triple){ left, right, merged };
    return 0;
}

/* Returns the bytes of the character at p, at most `left`. */
static size_t char_len(const uint8_t *p, size_t left)
{
    const size_t len = *p < 0x80 ? 1 : *p < 0xE0 ? 2 : *p < 0xF0 ? 3 : 4;
    return len < left ? len : left;
}

int bpe_add_splits(bpe *b, int id, err_ctx *err)
{
    const uint8_t *const p = b->bytes + b->start[id];
    const size_t len = b->start[id + 1] - b->start[id];
    char text[100], shown[20];
    if (!b->is_found[id] || char_len(p, len) == len) return 0;
    for (size_t pos = 0, n; pos < len; pos += n) {
        n = char_len(p + pos, len - pos);
        if (find_bytes(b, p + pos, n) < 0)
            return err_set(err, ERR_FORMAT, "token %d '%s' has the character '%s', which is no "
                           "token", id, ESC(text, bpe_bytes(b, id)),
                           ESC(shown, ((str_view){ (const char *)p + pos, n })));
        const int32_t left = find_bytes(b, p, pos), right = find_bytes(b, p + pos, len - pos);
        if (left < 0 || right < 0) continue;
        assert(b->n_merge_added < b->n_merge);
        b->list[b->n_merge_added++] = (bpe_triple){ left, right, id };
    }
    return 0;
}

static uint64_t pair_key(uint32_t left, uint32_t right)
{
    return (uint64_t)left << ID_BITS | right;
}

static uint64_t pair_hash(uint64_t key) { return key * 0x9e3779b97f4a7c15u; }

static uint32_t pair_home(const bpe *b, uint64_t hash)
{
    return (uint32_t)(hash >> b->pair_shift);
}

/* Index in the bit filter `maybe`. Uses other bits of the hash than the table's index, unless the
 * table is huge. */
static uint32_t maybe_bit(const bpe *b, uint64_t hash)
{
    return (uint32_t)(hash >> 20) & b->maybe_mask;
}

static int add_pair(bpe *b, uint32_t index, const uint32_t *rank, err_ctx *err)
{
    const bpe_triple m = b->list[index];
    const uint64_t key = pair_key((uint32_t)m.left, (uint32_t)m.right);
    const uint64_t hash = pair_hash(key);
    const uint32_t bit = maybe_bit(b, hash);
    uint32_t i = pair_home(b, hash);
    b->maybe[bit / 64] |= (uint64_t)1 << bit % 64;
    for (int probe = 0; b->pairs[i] != BPE_NO_PAIR; probe++, i = (i + 1) & b->pair_mask) {
        if (b->pairs[i] >> ID_BITS == key) return 0;     /* duplicate: the earlier rank counts */
        if (probe == MAX_PROBE)
            return err_set(err, ERR_FORMAT, "merge %u: more than %d merges with one hash", index,
                           MAX_PROBE);
    }
    b->pairs[i] = key << ID_BITS | (uint32_t)m.merged;
    if (b->pair_rank) b->pair_rank[i] = rank ? rank[m.merged] : index;
    return 0;
}

/* Finds the tokens that no merge makes: encoding must merge their text like any other. */
static int find_unmade(bpe *b, err_ctx *err)
{
    bool any = false;
    b->unmade = mem_alloc((size_t)b->n_token);
    if (!b->unmade) return err_set(err, ERR_NOMEM, "marks for %d tokens", b->n_token);
    for (int id = 0; id < b->n_token; id++)
        b->unmade[id] = b->is_found[id] && b->start[id + 1] - b->start[id] > 1;
    for (uint32_t i = 0; i < b->n_merge; i++) b->unmade[b->list[i].merged] = 0;
    for (int id = 0; id < b->n_token; id++) any = any || b->unmade[id];
    if (any) return 0;
    mem_free(b->unmade);
    b->unmade = NULL;
    return 0;
}

int bpe_seal_merges(bpe *b, bool always_whole, const uint32_t *rank, err_ctx *err)
{
    const uint32_t n = b->n_merge_added;
    bool ascend = !rank;
    int rc = 0;
    assert(n <= b->n_merge);
    b->n_merge = n;
    for (uint32_t i = 1; i < n; i++) ascend = ascend && b->list[i].merged >= b->list[i - 1].merged;
    if (!ascend) {
        b->pair_rank = mem_array((size_t)b->pair_mask + 1, sizeof *b->pair_rank);
        if (!b->pair_rank) return err_set(err, ERR_NOMEM, "ranks of %u merges", n);
    }
    for (uint32_t i = 0; i < n && rc == 0; i++) {
        if (i + AHEAD < n) {
            const bpe_triple m = b->list[i + AHEAD];
            const uint64_t hash = pair_hash(pair_key((uint32_t)m.left, (uint32_t)m.right));
            __builtin_prefetch(&b->pairs[pair_home(b, hash)]);
        }
        rc = add_pair(b, i, rank, err);
    }
    if (rc == 0 && !always_whole) rc = find_unmade(b, err);
    if (rc < 0) return rc;
    for (int l = 0; l < 256 && !b->by_char; l++)
        for (int r = 0; r < 256; r++)
            b->byte_pair[l << 8 | r] =
                bpe_pair(b, (uint32_t)b->byte_id[l], (uint32_t)b->byte_id[r]);
    mem_free(b->list);
    mem_free(b->is_found);
    b->list = NULL;
    b->is_found = NULL;
    return 0;
}

/* ---- merging ----------------------------------------------------------------------------- */

uint64_t bpe_pair(const bpe *b, uint32_t left, uint32_t right)
{
    const uint64_t key = pair_key(left, right);
    const uint64_t hash = pair_hash(key);
    const uint32_t bit = maybe_bit(b, hash);
    if (!(b->maybe[bit / 64] >> bit % 64 & 1)) return BPE_NO_PAIR;
    for (uint32_t i = pair_home(b, hash);; i = (i + 1) & b->pair_mask) {
        const uint64_t entry = b->pairs[i];
        if (entry >> ID_BITS == key) {
            const uint32_t merged = (uint32_t)entry & ID_MASK;
            return (uint64_t)(b->pair_rank ? b->pair_rank[i] : merged) << 32 | merged;
        }
        if (entry == BPE_NO_PAIR) return BPE_NO_PAIR;
    }
}

static uint32_t rank_of(uint64_t pair)
{
    return (uint32_t)(pair >> 32);       /* of BPE_NO_PAIR it is NO_RANK */
}

/* by_char: writes the initial ids of the len bytes at p to out and returns their number. Bytes of a
 * character without a token are final, because no merge uses them. */
static size_t first_symbols(const bpe *b, int32_t *out, const uint8_t *p, size_t len)
{
    const uint8_t *const end = p + len;
    size_t n = 0;
    while (p < end) {
        if (*p < 0x80) {
            out[n++] = b->ascii_id[*p++];
            continue;
        }
        const uint8_t *const next = p + char_len(p, (size_t)(end - p));
        const int32_t id = find_bytes(b, p, (size_t)(next - p));
        if (id >= 0) {
            out[n++] = id;
            p = next;
        }
        while (p < next) out[n++] = b->byte_id[*p++];
    }
    return n;
}

size_t bpe_merge_short(const bpe *b, int32_t *out, const uint8_t *p, size_t len)
{
    uint64_t pair[BPE_SHORT_PIECE];      /* pair[i]: of symbols i and i + 1 */
    size_t n = len;
    assert(len >= 1 && len <= BPE_SHORT_PIECE);
    if (b->by_char) {
        n = first_symbols(b, out, p, len);
        for (size_t i = 1; i < n; i++)
            pair[i - 1] = bpe_pair(b, (uint32_t)out[i - 1], (uint32_t)out[i]);
    } else {
        out[0] = b->byte_id[p[0]];
        for (size_t i = 1; i < n; i++) {
            out[i] = b->byte_id[p[i]];
            pair[i - 1] = b->byte_pair[p[i - 1] << 8 | p[i]];
        }
    }
    while (n > 1) {
        uint32_t best = rank_of(pair[0]);
        size_t pos = 0;
        for (size_t i = 1; i < n - 1; i++) {
            pos = rank_of(pair[i]) < best ? i : pos;       /* leftmost of equal ranks */
            best = rank_of(pair[i]) < best ? rank_of(pair[i]) : best;
        }
        if (best == NO_RANK) break;
        out[pos] = (int32_t)(uint32_t)pair[pos];
        n--;
        memmove(out + pos + 1, out + pos + 2, (n - pos - 1) * sizeof *out);
        if (pos + 1 < n) {
            memmove(pair + pos + 1, pair + pos + 2, (n - pos - 2) * sizeof *pair);
            pair[pos] = bpe_pair(b, (uint32_t)out[pos], (uint32_t)out[pos + 1]);
        }
        if (pos > 0) pair[pos - 1] = bpe_pair(b, (uint32_t)out[pos - 1], (uint32_t)out[pos]);
    }
    return n;
}

/* Merging a long piece uses three arrays, indexed by initial symbol (byte or character). out[i] is
 * the id of the symbol that starts at i, rank[i] the rank of its pair with the next symbol, and bit
 * i of `alive` is set while a symbol starts at i. The neighbours of a symbol are the next set bits.
 * A tree of minima over rank has one node for 16 ranks, then one for 8 nodes, and so on. Its root
 * is the pair to merge. A merge updates one path of the tree for each leaf that it touches. */

enum { LEAF = 16, FAN = 8 };

typedef struct min_tree { uint64_t *level[BPE_TREE_LEVELS]; int n_level; } min_tree;

/* Assigns the levels for cap bytes to nodes, each padded to a multiple of FAN. Returns the number
 * of nodes. If nodes is NULL it only counts. */
static size_t tree_layout(min_tree *t, uint64_t *nodes, size_t cap)
{
    size_t used = 0, n = (cap + LEAF - 1) / LEAF;
    for (t->n_level = 0;; n = (n + FAN - 1) / FAN) {
        t->level[t->n_level++] = nodes ? nodes + used : NULL;
        used += (n + FAN - 1) / FAN * FAN;
        if (n == 1) return used;
    }
}

/* Capacity for len symbols: whole words of `alive`, with a sentinel bit after the last symbol. */
static size_t padded(size_t len)
{
    return (len / 64 + 1) * 64;
}

static int work_reserve(bpe_work *w, size_t len, err_ctx *err)
{
    const size_t cap = padded(len);
    min_tree shape;
    if (cap >= NO_RANK) return err_set(err, ERR_NOMEM, "one piece of %zu bytes", len);
    if (cap <= w->cap) return 0;
    bpe_work_free(w);
    w->rank = mem_array(cap, sizeof *w->rank);
    w->alive = mem_array(cap / 64, sizeof *w->alive);
    w->tree = mem_array(tree_layout(&shape, NULL, cap), sizeof *w->tree);
    if (!w->rank || !w->alive || !w->tree) {
        bpe_work_free(w);
        return err_set(err, ERR_NOMEM, "merging a piece of %zu bytes", len);
    }
    w->cap = cap;
    return 0;
}

void bpe_work_free(bpe_work *w)
{
    mem_free(w->rank);
    mem_free(w->alive);
    mem_free(w->tree);
    *w = (bpe_work){ .steps = w->steps };
}

static uint64_t leaf_min(const uint32_t *rank, size_t leaf)
{
    const uint32_t *const r = rank + leaf * LEAF;
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < LEAF; i++) {
        const uint64_t key = (uint64_t)r[i] << 32 | (uint32_t)(leaf * LEAF + i);
        least = key < least ? key : least;
    }
    return least;
}

static uint64_t node_min(const uint64_t *children)
{
    uint64_t least = children[0];
    for (int i = 1; i < FAN; i++) least = children[i] < least ? children[i] : least;
    return least;
}

/* Updates the tree after a change of rank[] in this leaf, up to the first unchanged minimum. */
static void tree_renew(bpe_work *w, const min_tree *t, size_t leaf)
{
    uint64_t least = leaf_min(w->rank, leaf);
    size_t i = leaf;
    for (int l = 0; t->level[l][i] != least; l++) {
        w->steps++;
        t->level[l][i] = least;
        if (l + 1 == t->n_level) return;
        i /= FAN;
        least = node_min(t->level[l] + i * FAN);
    }
}

/* Fills the tree from rank[0 .. cap). */
static void tree_build(const bpe_work *w, const min_tree *t, size_t cap)
{
    size_t n = cap / LEAF;
    for (size_t i = 0; i < n; i++) t->level[0][i] = leaf_min(w->rank, i);
    for (int l = 0; l < t->n_level; l++) {
        const size_t up = (n + FAN - 1) / FAN;
        for (size_t i = n; i < up * FAN; i++) t->level[l][i] = UINT64_MAX;
        if (l + 1 == t->n_level) break;
        for (size_t i = 0; i < up; i++) t->level[l + 1][i] = node_min(t->level[l] + i * FAN);
        n = up;
    }
}

/* Returns the next alive symbol after i < len, or len, whose sentinel bit is always set. */
static size_t next_alive(const uint64_t *alive, size_t i)
{
    size_t w = ++i / 64;
    uint64_t bits = alive[w] >> i % 64 << i % 64;
    while (!bits) bits = alive[++w];
    return w * 64 + (size_t)__builtin_ctzll(bits);
}

/* Returns the alive symbol before i > 0; symbol 0 is always alive. */
static size_t prev_alive(const uint64_t *alive, size_t i)
{
    size_t w = --i / 64;
    uint64_t bits = alive[w] << (63 - i % 64) >> (63 - i % 64);
    while (!bits) bits = alive[--w];
    return w * 64 + 63 - (size_t)__builtin_clzll(bits);
}

int64_t bpe_merge_long(const bpe *b, bpe_work *w, int32_t *out, const uint8_t *p, size_t len,
                       err_ctx *err)
{
    const int rc = work_reserve(w, len, err);
    min_tree t;
    int64_t n = 0;
    if (rc < 0) return rc;

    if (b->by_char) {
        len = first_symbols(b, out, p, len);     /* from here on len counts symbols */
        for (size_t i = 0; i + 1 < len; i++)
            w->rank[i] = rank_of(bpe_pair(b, (uint32_t)out[i], (uint32_t)out[i + 1]));
    } else {
        for (size_t i = 0; i < len; i++) out[i] = b->byte_id[p[i]];
        for (size_t i = 0; i + 1 < len; i++)
            w->rank[i] = rank_of(b->byte_pair[p[i] << 8 | p[i + 1]]);
    }
    const size_t cap = padded(len);
    for (size_t i = len - 1; i < cap; i++) w->rank[i] = NO_RANK;
    memset(w->alive, 0xFF, cap / 64 * sizeof *w->alive);
    tree_layout(&t, w->tree, cap);
    tree_build(w, &t, cap);

    for (const uint64_t *const top = t.level[t.n_level - 1]; rank_of(*top) != NO_RANK;) {
        const size_t i = (uint32_t)*top;
        const size_t gone = next_alive(w->alive, i), next = next_alive(w->alive, gone);
        /* without pair_rank the rank is the merged id */
        const uint32_t merged = b->pair_rank
                                    ? (uint32_t)bpe_pair(b, (uint32_t)out[i], (uint32_t)out[gone])
                                    : rank_of(*top);
        w->steps++;
        out[i] = (int32_t)merged;
        w->alive[gone / 64] &= ~((uint64_t)1 << gone % 64);
        w->rank[gone] = NO_RANK;
        w->rank[i] = next < len ? rank_of(bpe_pair(b, merged, (uint32_t)out[next])) : NO_RANK;
        if (i > 0) {
            const size_t prev = prev_alive(w->alive, i);
            w->rank[prev] = rank_of(bpe_pair(b, (uint32_t)out[prev], merged));
            if (prev / LEAF != i / LEAF) tree_renew(w, &t, prev / LEAF);
        }
        if (gone / LEAF != i / LEAF) tree_renew(w, &t, gone / LEAF);
        tree_renew(w, &t, i / LEAF);
    }
    for (size_t i = 0; i < len; i = next_alive(w->alive, i)) out[n++] = out[i];
    return n;
}

int64_t bpe_merge(const bpe *b, bpe_work *w, int32_t *out, const uint8_t *p, size_t len,
                  err_ctx *err)
{
    if (len <= BPE_SHORT_PIECE) return (int64_t)bpe_merge_short(b, out, p, len);
    return bpe_merge_long(b, w, out, p, len, err);
}
