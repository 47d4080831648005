/* models.c - moe-run models: prints models.txt, the list of public model files.
 *
 * Reading and checking it is cli/model_list.h's. */
#include "cli/commands.h"

#include <jansson.h>
#include <stdio.h>

#include "cli/args/args.h"
#include "cli/console.h"
#include "cli/model_list.h"

typedef struct settings {
    bool json;
} settings;

static const arg_option options[] = {
    { "json", 0, ARG_FLAG, offsetof(settings, json), NULL, NULL, 0, 0,
      "One JSON object per model on stdout" },
};

static const arg_spec spec = {
    .usage = "moe-run models [options]",
    .about = "Lists public model files that this engine reads: address, size and hash. The list\n"
             "is models.txt in the program's folder, or in ../share/moe, where make install puts\n"
             "it with the demo models.",
    .options = options, .n_option = ARRAY_LEN(options),
};

/* A path, or an address to download from. */
static const char *place_of(char dst[PLACE_CAP], const model_list *l, const list_entry *e)
{
    const str_view repo = e->field[LIST_REPO], file = e->field[LIST_FILE];
    if (!list_entry_is_here(e))
        snprintf(dst, PLACE_CAP, "%s/%.*s/resolve/main/%.*s", model_list_hub, (int)repo.len,
                 repo.ptr, (int)file.len, file.ptr);
    else if (!model_list_find_here(dst, l, e))
        snprintf(dst, PLACE_CAP, "%.*s (not installed)", (int)file.len, file.ptr);
    return dst;
}

/* ---- printing ---------------------------------------------------------------------------- */

static void print_table(const model_list *l)
{
    size_t width = 0;
    for (int i = 0; i < l->n_entry; i++)
        if (l->entries[i].field[LIST_NAME].len > width) width = l->entries[i].field[LIST_NAME].len;
    for (int i = 0; i < l->n_entry; i++) {
        const list_entry *e = &l->entries[i];
        char name[128], place[PLACE_CAP], shown[PLACE_CAP], sha[80], notes[256], size[32];
        printf("%-*s  %s%8s  %s\n", (int)width, ESC(name, e->field[LIST_NAME]),
               e->about ? "~" : " ", text_bytes(size, sizeof size, e->bytes),
               ESC(shown, str_from(place_of(place, l, e))));
        if (list_entry_is_hashed(e)) printf("    sha256 %s\n", ESC(sha, e->field[LIST_SHA256]));
        if (e->field[LIST_NOTES].len) printf("    %s\n", ESC(notes, e->field[LIST_NOTES]));
    }
}

static int print_json(const model_list *l)
{
    for (int i = 0; i < l->n_entry; i++) {
        const list_entry *e = &l->entries[i];
        char name[128], repo[128], file[256], notes[256], sha[80], place[PLACE_CAP];
        char shown[PLACE_CAP];
        const bool hashed = list_entry_is_hashed(e), here = list_entry_is_here(e);
        json_t *row = json_pack("{s:s, s:s, s:s, s:s, s:I, s:b, s:s*, s:s}",
                                "name", ESC(name, e->field[LIST_NAME]),
                                "repository", ESC(repo, e->field[LIST_REPO]),
                                "file", ESC(file, e->field[LIST_FILE]), here ? "path" : "url",
                                ESC(shown, str_from(place_of(place, l, e))),
                                "bytes", (json_int_t)e->bytes, "exact", !e->about,
                                "sha256", hashed ? ESC(sha, e->field[LIST_SHA256]) : NULL,
                                "notes", ESC(notes, e->field[LIST_NOTES]));
        if (!console_json(row, JSON_COMPACT)) {
            console_error("out of memory for model %d", i + 1);
            return 1;
        }
    }
    return 0;
}

int cmd_models(int argc, char **argv)
{
    settings s = { false };
    model_list l = { .text = NULL };
    err_ctx err;
    int rc = args_parse(&spec, &s, NULL, NULL, argc, argv);

    if (rc != ARGS_RUN) return rc == ARGS_HELP ? console_finish() : 2;
    rc = model_list_load(&l, &err) < 0 ? console_fail(l.path, &err) : 0;
    if (rc == 0 && s.json) rc = print_json(&l);
    else if (rc == 0) print_table(&l);
    model_list_release(&l);
    return console_finish() || rc ? 1 : 0;
}
