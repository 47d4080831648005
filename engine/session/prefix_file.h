/* prefix_file.h - one kept state of the prefix cache on the drive.
 *
 * A file holds the ids of all tokens up to its position, the rows of the last of them, the mark,
 * and the stamp of the file that has the rows before. The stamp is the checksum of a file's head,
 * which covers the ids and the checksum of the rest: a file goes on from exactly the bits that it
 * was made after. Names say for whom it is, and which: <key>-<stamp>.prefix.
 *
 * Messages name the file, not the folder. Nothing here knows what rows and marks are. */
#ifndef ENGINE_SESSION_PREFIX_FILE_H
#define ENGINE_SESSION_PREFIX_FILE_H

#include "tiers/pool.h"

enum { PREFIX_NAME = 64 };               /* room for a name */

typedef struct prefix_file {
    uint64_t key;                        /* of the sessions that can use it */
    uint64_t parent;                     /* stamp of the file that it goes on from; 0: none */
    int from, to;                        /* positions of its rows */
    uint64_t rows_bytes, mark_bytes;
    uint64_t body_sum, stamp;
} prefix_file;

/* UINT64_MAX: too much to count. */
uint64_t prefix_file_bytes(const prefix_file *f);
const char *prefix_file_name(char dst[PREFIX_NAME], const prefix_file *f);

/* What a name in the folder is to whoever has this key. */
typedef enum prefix_kind { PREFIX_OTHER, PREFIX_OWN, PREFIX_TEMPORARY } prefix_kind;
prefix_kind prefix_file_kind(const char *name, uint64_t key);

/* Writes ids [to] and body, rows and mark, to a temporary file that is renamed at the end, and sets
 * both sums of f. Only the owner can read it. On failure nothing is left behind. */
int prefix_file_write(prefix_file *f, const char *folder, const int32_t *ids, const uint8_t *body,
                      err_ctx *err);

/* Reads the head of a file with a name of kind PREFIX_OWN, and checks all of it; the rest is only
 * known to have the right length. *ids [to] is to be freed with mem_free; NULL on failure. */
int prefix_file_read_head(prefix_file *f, int32_t **ids, const char *folder, const char *name,
                          uint64_t key, err_ctx *err);

/* Reads rows and mark of a file whose head was read or written before, and checks them: by all
 * threads of a team, each some pieces. NULL: by the caller alone. */
int prefix_file_read_body(uint8_t *body, const prefix_file *f, const char *folder, pool *team,
                          err_ctx *err);

#endif
