/* prefix_file.h - one kept state of the prefix cache on the drive.
 *
 * A file holds the ids of all tokens up to its position, the rows after its parent's position, the
 * checkpoint, and the parent's stamp. The stamp is the checksum of a file's head, which covers the
 * ids and the checksum of the rest, so a file belongs to exactly one content of its parent. File
 * names are <key>-<stamp>.prefix; the key is that of the sessions that can use the file.
 *
 * Messages name the file, not the folder. Rows and checkpoints are plain bytes here. Any thread,
 * but one at a time for each file. */
#ifndef ENGINE_SESSION_PREFIX_FILE_H
#define ENGINE_SESSION_PREFIX_FILE_H

#include "tiers/pool.h"

enum { PREFIX_NAME = 64 };               /* bytes of a name's buffer */

typedef struct prefix_file {
    uint64_t key;                        /* of the sessions that can use it */
    uint64_t parent;                     /* the parent's stamp; 0: none */
    int from, to;                        /* positions of its rows */
    uint64_t rows_bytes, checkpoint_bytes;
    uint64_t body_sum, stamp;
} prefix_file;

/* UINT64_MAX: too much to count. */
uint64_t prefix_file_bytes(const prefix_file *f);
const char *prefix_file_name(char dst[PREFIX_NAME], const prefix_file *f);

/* The kind of a file in the folder, for sessions with this key. */
typedef enum prefix_kind { PREFIX_OTHER, PREFIX_OWN, PREFIX_TEMPORARY } prefix_kind;
prefix_kind prefix_file_kind(const char *name, uint64_t key);

/* Writes ids [to] and body, rows and checkpoint, to a temporary file that is renamed at the end,
 * and sets both sums of f. Only the owner can read it. A failure leaves no file. */
int prefix_file_write(prefix_file *f, const char *folder, const int32_t *ids, const uint8_t *body,
                      err_ctx *err);

/* Reads and checks the head of a file of kind PREFIX_OWN, and the length of the whole file. Free
 * *ids [to] with mem_free; NULL on failure. */
int prefix_file_read_head(prefix_file *f, int32_t **ids, const char *folder, const char *name,
                          uint64_t key, err_ctx *err);

/* Reads and checks rows and checkpoint of a file whose head was read or written before, with all
 * threads of a team. team NULL: with the caller's thread alone. */
int prefix_file_read_body(uint8_t *body, const prefix_file *f, const char *folder, pool *team,
                          err_ctx *err);

#endif
