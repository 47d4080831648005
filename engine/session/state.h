/* state.h - a session's memory between tokens: KV store, recurrent state, snapshots, copies, files.
 *
 * The position is the number of tokens taken in. A snapshot is a copy of the recurrent blocks and
 * of the rings of windowed layers. Rows of full layers are not copied: they stay valid up to the
 * snapshot as long as the position never falls below it. state_create allocates all memory.
 *
 * KV store and recurrent state are in spaces of the caller's choice, snapshots in RAM. Snapshots
 * and rewinds do not report a failure of a space: call its check before using the state. Saving and
 * loading check it. One thread at a time. */
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
    int n_snapshot;                      /* most snapshots at a time; 0 is fine */
    layer_segments in;                   /* all layers of the model; none: all of them in RAM */
} state_options;

/* Borrows m and the spaces until state_free. */
int state_create(state **out, const model *m, const state_options *o, err_ctx *err);
void state_free(state *s);
/* Bytes that state_create takes; of these, of one layer; of all snapshots, which are in RAM.
 * UINT64_MAX: too much to count. */
uint64_t state_bytes(const model *m, const state_options *o);
uint64_t state_layer_bytes(const model *m, const state_options *o, int layer);
uint64_t state_snapshot_bytes(const model *m, const state_options *o);

mem_space *state_layer_space(const state *s, int layer);
kv_store *state_kv(state *s);
recurrent *state_recurrent(state *s);
/* Takes another version, in the same spaces, and gives the one that it had. */
recurrent *state_exchange_recurrent(state *s, recurrent *next);
int state_pos(const state *s);
/* Takes the pages for positions below n_pos: before tokens are taken in and before rows are
 * imported. ERR_NOMEM: the memory that sessions share is full; nothing has changed. */
int state_reserve(state *s, int n_pos, err_ctx *err);
void state_trim(state *s);               /* gives back the pages beyond the position */
void state_advance(state *s, int n);     /* n tokens were taken in */
/* The recurrent state is that of pos already; keys and values go back to it. Drops the snapshots
 * above it. */
void state_go_back(state *s, int pos);

/* Takes a snapshot of the present position, or renews it. If there are n_snapshot others, it
 * replaces the one taken or used least recently. No-op if n_snapshot is 0, and at position 0, which
 * can always be reached. team: touches new memory in parallel; or NULL. */
void state_snapshot(state *s, pool *team);

/* Rewinds to the highest reachable position not above pos (and not above the present one) and
 * returns it: pos itself if no recurrent layer and no overwritten ring prevents it, else that of a
 * snapshot, else 0. Drops the snapshots above it. No-op at the present position. */
int state_rewind(state *s, int pos);
/* What state_rewind would return. */
int state_rewind_target(const state *s, int pos);

/* ---- export and import ---- */

/* A state at a position consists of rows and a checkpoint. Rows are the keys and values of layers
 * without a window: one row for each position. A checkpoint belongs to one position: recurrent
 * blocks, and keys and values in the windows of the other layers. Many checkpoints share one copy
 * of the rows. Neither depends on ctx, slack or the space: any state of the same model and KV type
 * can import them. */

/* Bytes of n rows, and of the checkpoint at pos, which is 0 at every position of a model with full
 * attention alone. UINT64_MAX: too much to count. */
uint64_t state_rows_bytes(const model *m, kv_type type, int n);
uint64_t state_checkpoint_bytes(const model *m, kv_type type, int pos);

/* Copies the rows from `from` to the present position, and the checkpoint. */
int state_export(const state *s, void *rows, int from, void *checkpoint, err_ctx *err);

/* The same for the position of a snapshot, below the present one. ERR_RANGE: there is no such
 * snapshot; ERR_UNSUPPORTED: it lacks a part of the checkpoint (a model with several windows, some
 * of them longer than the context). */
int state_export_snapshot(const state *s, int pos, void *rows, int from, void *checkpoint,
                          err_ctx *err);
int state_next_snapshot(const state *s, int pos);        /* the lowest above pos; 0: none */

/* Begin empties s. Then come rows, exported as from .. to - 1, of which the first n are used, in
 * any order and without gaps; then the checkpoint, after which s is at pos. Snapshots are dropped.
 * After a failure of the space s is empty. */
void state_import_begin(state *s);
void state_import_rows(state *s, const void *rows, int from, int to, int n);
int state_import_end(state *s, int pos, const void *checkpoint, err_ctx *err);

/* ---- files ---- */

/* Messages do not name the file: the caller prefixes the name that the user typed. */
#define STATE_FILE_MAGIC "MOESTATE"      /* the first eight bytes of every session file */

/* The model of a file; a file with another tag is refused. */
typedef struct state_tag {
    uint64_t model;                      /* fingerprint of the model file */
    char arch[24];                       /* for the message, as is ... */
    char name[64];                       /* ... the model's name */
} state_tag;

/* Writes ids (one per position), the state up to the present position and extra, bytes of the
 * caller. It writes a temporary file in the same folder and renames it to path at the end, so a
 * failure leaves an older file unchanged. Only the file's owner can read it. */
int state_save(const state *s, const char *path, const state_tag *tag, const int32_t *ids,
               str_view extra, err_ctx *err);

/* Reads it back: ids gets at most cap ids, *extra a copy to be freed with mem_free, *n_extra its
 * length. Everything (tag, layout, KV type, lengths, checksum) is verified before anything of s or
 * ids is changed; the message says why a file is refused. Snapshots are dropped. ctx, slack and
 * n_snapshot may differ from those of the saving session. The verified file is read a second time:
 * if that fails, or another program has changed the file, the state is empty. */
int state_load(state *s, const char *path, const state_tag *tag, int32_t *ids, int cap,
               char **extra, size_t *n_extra, err_ctx *err);

#endif
