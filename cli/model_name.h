/* model_name.h - models by the names of models.txt: "gpt-oss-20b", and where downloads of them lie.
 *
 * A name fits an entry of the list if it is the entry's whole name, the name without the kind of
 * quantization, or the file's without its ending; letter case does not count, and a blank, ':', '_'
 * and '-' are the same. "unsloth/NAME" takes that owner's alone. Of several that fit the first in
 * the list is meant. */
#ifndef CLI_MODEL_NAME_H
#define CLI_MODEL_NAME_H

#include "cli/model_list.h"
#include "loader/gguf.h"

/* For --help, after "Default: ". */
#define MODEL_FOLDER_TEXT "$XDG_DATA_HOME/moe/models or ~/.local/share/moe/models"

/* Entry number `from` or a later one that fits, or -1. */
int model_name_next(const model_list *l, const char *name, int from);

/* The folder of downloads: given if that is not NULL or empty, else as MODEL_FOLDER_TEXT says. */
int model_name_folder(char dst[PATH_MAX], const char *given, err_ctx *err);

/* Where part p of an entry lies in a folder of downloads: FOLDER/OWNER/REPOSITORY/FILE. */
int model_name_path(char dst[PATH_MAX], const char *folder, const list_entry *e, int p,
                    err_ctx *err);

/* The path of the first entry that fits and is complete, here or in the folder of downloads
 * ($MOE_MODELS); NULL if there is none, or if `name` is a file itself or ends in .gguf. Good until
 * the next call. */
const char *model_name_find(const char *name);

/* What to do about a model that is not there: "moe-run pull NAME downloads it (12.1 GB)". */
const char *model_name_advice(char *dst, size_t cap, const char *name);

/* gguf_open, whose error has that advice if there is no such file: a newcomer types a model's
 * name. */
int model_name_open(gguf **out, const char *path, err_ctx *err);

#endif
