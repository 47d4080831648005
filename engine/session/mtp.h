/* mtp.h - the next-token block of a session (mtp.c), for session.c and runner.c. Everything is a
 * no-op where the model uses no block. What the block computes makes drafts better or worse and
 * cannot change an answer. */
#ifndef ENGINE_SESSION_MTP_H
#define ENGINE_SESSION_MTP_H

#include "engine/engine.h"

enum { MTP_KEPT = 32 };                  /* tokens: a catch-up costs little more than a pass */

/* Memory for the vectors that are kept, where the head is. */
uint64_t mtp_vector_bytes(const model *m);
int mtp_create(session *s, err_ctx *err);
void mtp_free(session *s);

/* Keeps the vectors of n tokens of the last batch, from its token `first` on, which are at pos. */
void mtp_keep(session *s, int first, int pos, int n);
void mtp_trim(session *s, int pos);      /* forgets those of positions from pos on */

/* Around a batch of the trunk that is not a pass. Before it: the rows of kept vectors; its first id
 * is next. After its logits have been read: its own rows, of n tokens that were taken in at pos. */
int mtp_before(session *s, int32_t next, err_ctx *err);
int mtp_after(session *s, const int32_t *ids, int pos, int n, err_ctx *err);

#endif
