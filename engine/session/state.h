/* state.h - all that a session remembers between tokens: snapshots, rewinding, copies, files.
 *
 * The position is the number of tokens taken in. A snapshot holds what cannot be recomputed from
 * the KV store: the recurrent block and the rings of windowed layers. Rows of full layers are not
 * copied: they stay valid up to the snapshot as long as the position never falls below it. All
 * memory, snapshots included, is allocated by state_create.
 *
 * KV store and recurrent state are in a space of the caller's choice, except for the last layers if
 * those are in RAM, and snapshots, which always are. Taking a snapshot and going back do not report
 * a failure in the space: call the space's check before using the state. Saving and loading ask it
 * themselves. */
#ifndef ENGINE_SESSION_STATE_H
#define ENGINE_SESSION_STATE_H

#include "engine/session/kv.h"
#include "engine/session/recurrent.h"
#include "tiers/pool.h"

typedef struct state state;

typedef struct state_options {
    int ctx;                             /* positions */
    int slack;                           /* longest run between two calls of state_advance */
    kv_type kv;
    int n_snapshot;                      /* how many can be held at a time; 0 is fine */
    mem_space *where;                    /* NULL: RAM */
    int n_ram;                           /* this many of the last layers are in RAM anyway */
} state_options;

/* Borrows m and the space until state_free. */
int state_create(state **out, const model *m, const state_options *o, err_ctx *err);
void state_free(state *s);
/* Bytes that state_create takes; those of one layer; those of all snapshots, which are in RAM.
 * UINT64_MAX if it is too much to count. */
uint64_t state_bytes(const model *m, const state_options *o);
uint64_t state_layer_bytes(const model *m, const state_options *o, int layer);
uint64_t state_snapshot_bytes(const model *m, const state_options *o);

mem_space *state_space(const state *s);  /* of all but the last n_ram layers; never NULL */
mem_space *state_layer_space(const state *s, int layer);
kv_store *state_kv(state *s);
recurrent *state_recurrent(state *s);
int state_pos(const state *s);
void state_advance(state *s, int n);     /* n tokens were taken in */

/* Remembers the present position. When there is no room for another, the snapshot that was taken or
 * used least recently gives way. At a position that has one already it is renewed. No-op if none
 * can be held, and at 0, which can always be reached. team: touches memory that is new, which one
 * thread would do slowly; or NULL. */
void state_snapshot(state *s, pool *team);

/* Goes back to the highest reachable position not above pos (and not above the present one) and
 * returns it: pos itself where nothing recurrent or overwritten stands in the way, else that of a
 * snapshot, else 0. Snapshots above it are dropped. At the present position nothing happens. */
int state_rewind(state *s, int pos);
/* What state_rewind would return. */
int state_rewind_target(const state *s, int pos);

/* ---- in parts, to memory and back ---- */

/* A state at a position is its rows, the keys and values of layers without a window, which only
 * grow, and a mark: what stands for this position alone, recurrent blocks and the keys and values
 * in the windows of the other layers. Many marks share one copy of the rows. Neither depends on
 * ctx, slack or the space: what one state gave, any other of the model and the KV type takes. */

/* Of n positions; of the mark at pos: 0 everywhere if rows are all there is. UINT64_MAX: too much
 * to count. */
uint64_t state_rows_bytes(const model *m, kv_type type, int n);
uint64_t state_mark_bytes(const model *m, kv_type type, int pos);

/* Copies the rows of from .. the present position and the mark. */
int state_export(const state *s, void *rows, int from, void *mark, err_ctx *err);

/* The same for the position of a snapshot, which the state has passed since. ERR_RANGE: there is no
 * snapshot of it; ERR_UNSUPPORTED: that does not hold all of the mark (a model with several
 * windows, some of them longer than the context). */
int state_export_snapshot(const state *s, int pos, void *rows, int from, void *mark, err_ctx *err);
int state_next_snapshot(const state *s, int pos);        /* the lowest above pos; 0: none */

/* Begin empties s; then come rows, exported as from .. to - 1, of which the first n are taken, in
 * any order and without holes; then the mark, with which s is at pos. No snapshots are left. After
 * a failure of the space s is empty. */
void state_import_begin(state *s);
void state_import_rows(state *s, const void *rows, int from, int to, int n);
int state_import_end(state *s, int pos, const void *mark, err_ctx *err);

/* ---- to a file and back ---- */

/* Messages do not name the file: the caller knows what the user typed and puts it in front. */
#define STATE_FILE_MAGIC "MOESTATE"      /* the first eight bytes of every session file */

/* What the file must have been made for; all of it is compared. */
typedef struct state_tag {
    uint64_t model;                      /* fingerprint of the model file */
    char arch[24];                       /* for the message, as is ... */
    char name[64];                       /* ... the model's name */
} state_tag;

/* Writes ids (one per position), the state up to the present position and extra, the caller's own
 * bytes, to path: to a temporary file beside it that is renamed at the end, so a failure, of the
 * space too, leaves an older file as it was. Only its owner can read the file. */
int state_save(const state *s, const char *path, const state_tag *tag, const int32_t *ids,
               str_view extra, err_ctx *err);

/* Reads it back: ids gets at most cap ids, *extra a copy to be freed with mem_free, *n_extra its
 * length. Everything (tag, layout, KV type, lengths, checksum) is verified before anything of s or
 * ids is touched; a file that does not fit says why. Snapshots are dropped. ctx, slack and the
 * number of snapshots need not be those it was saved with. Only a disk or a space that fails, or a
 * file that somebody changes, while the verified file is read a second time leaves an empty
 * state. */
int state_load(state *s, const char *path, const state_tag *tag, int32_t *ids, int cap,
               char **extra, size_t *n_extra, err_ctx *err);

#endif
