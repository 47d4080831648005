/* pull_command.c - moe-run pull: arguments, the files of a model one after the other, the report.
 *
 * cli/model_name.h chooses the paths, so that -m finds the files. */
#include "cli/commands.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/args/args.h"
#include "cli/interrupt.h"
#include "cli/model_name.h"
#include "cli/pull/pull_file.h"

typedef struct settings {
    const char *dir, *base_url;
    int64_t retries, timeout_s;
    bool accept_changed, json;
} settings;

#define FIELD(f) offsetof(settings, f)
static const arg_option options[] = {
    { "dir", 'd', ARG_TEXT, FIELD(dir), "DIR", "MOE_MODELS", 0, 0,
      "Folder for models. Default: $XDG_DATA_HOME/moe/models or ~/.local/share/moe/models" },
    { "base-url", 0, ARG_TEXT, FIELD(base_url), "URL", "HF_ENDPOINT", 0, 0,
      "Server with the repositories. Default: https://huggingface.co" },
    { "retries", 0, ARG_INT, FIELD(retries), "N", NULL, 0, 1000,
      "Give up after N tries in a row without new bytes. Default: 8, about a minute" },
    { "timeout", 0, ARG_INT, FIELD(timeout_s), "SECONDS", NULL, 1, 3600,
      "Try again after this long without a byte. Default: 60" },
    { "accept-changed", 0, ARG_FLAG, FIELD(accept_changed), NULL, NULL, 0, 0,
      "Accept a file whose size or hash differs from the list" },
    { "json", 0, ARG_FLAG, FIELD(json), NULL, NULL, 0, 0,
      "Report as a JSON object on stdout" },
};

static const arg_spec spec = {
    .usage = "moe-run pull NAME [options]",
    .about = "Downloads a model of the list (moe-run models). Then -m NAME finds it in moe-run,\n"
             "moe-serve and moe-bench. NAME is a name of the list, with or without the kind of\n"
             "quantization: gpt-oss-20b, gpt-oss-20b:Q4_K_M, unsloth/gpt-oss-20b. If several\n"
             "match, the first is downloaded. An unfinished download is resumed. Existing files\n"
             "are not overwritten. Size and, if known, SHA-256 are checked. Prints the path.",
    .options = options, .n_option = ARRAY_LEN(options),
    .min_operands = 1, .max_operands = 1, .operands = "NAME",
    .epilogue =
        "The file is DIR/OWNER/REPOSITORY/FILE, and ends in .part until it is complete. -m NAME\n"
        "searches MOE_MODELS, not --dir. If HF_TOKEN is set, it is sent to the server of\n"
        "--base-url (over https, or on this machine), but not to servers that this one\n"
        "redirects to.\n"
        "\n"
        "Examples:\n"
        "  moe-run pull gpt-oss-20b\n"
        "  moe-run pull gpt-oss-120b --dir /mnt/models\n"
        "  moe-run -m gpt-oss-20b -p \"Why is the sky blue?\"",
};

typedef struct job {
    const settings *s;
    const char *name, *base, *token;
    const list_entry *e;
    char folder[PATH_MAX];
    progress bar;
    uint64_t before;                     /* bytes of the parts that are complete */
    uint64_t downloaded;
    json_t *parts;
} job;

/* ---- before the first byte ----------------------------------------------------------------- */

/* Sets j->token to HF_TOKEN if that is set. It becomes a header line, so it may have only printable
 * ASCII characters. */
static int read_token(job *j)
{
    const char *token = getenv("HF_TOKEN");
    if (!token || !*token) return 0;
    for (const char *p = token; *p; p++)
        if (*p < 33 || *p > 126) {
            console_error("HF_TOKEN has a space, or a character that is not printable ASCII: set "
                          "it again, or unset it");
            return 2;
        }
    if (strlen(token) > 500) {
        console_error("HF_TOKEN has over 500 characters: set it again, or unset it");
        return 2;
    }
    if (fetch_may_send_token(j->base)) j->token = token;
    else console_note("HF_TOKEN is not sent: %s is not https", j->base);
    return 0;
}

static int find_entry(job *j, const model_list *l)
{
    const int i = model_name_next(l, j->name, 0);
    char shown[128];
    if (i < 0) {
        console_error("%s: no such model in %s (moe-run models lists them)",
                      ESC(shown, str_from(j->name)), l->path);
        return 1;
    }
    j->e = &l->entries[i];
    return 0;
}

/* Prints the chosen model if the name matches several. */
static void note_choice(const job *j, const model_list *l)
{
    const str_view name = j->e->field[LIST_NAME], repo = j->e->field[LIST_REPO];
    char shown[128];
    if (model_name_next(l, j->name, (int)(j->e - l->entries) + 1) >= 0)
        console_note("several models match; taking %s of %.*s", ESC(shown, name), (int)repo.len,
                     repo.ptr);
}

/* Compares the disk's free bytes with the list's size less the bytes of earlier runs. */
static int check_disk(const job *j, err_ctx *err)
{
    char need[32], free_text[32], path[PATH_MAX];
    uint64_t have = 0, left;
    bool done;
    int rc;
    for (int p = 0; p < j->e->n_part; p++) {
        if ((rc = model_name_path(path, j->folder, j->e, p, err)) < 0) return rc;
        have += part_file_size(path, &done);
    }
    if ((rc = part_file_disk_free(&left, j->folder, err)) < 0) return rc;
    if (have >= j->e->bytes || j->e->bytes - have <= left) return 0;
    return err_set(err, ERR_IO, "%s are to be downloaded, and the disk of %s has %s left: delete "
                   "files, or choose another --dir",
                   text_bytes(need, sizeof need, j->e->bytes - have), j->folder,
                   text_bytes(free_text, sizeof free_text, left));
}

/* ---- the files ----------------------------------------------------------------------------- */

static int note_part(job *j, const char *path, const pull_result *r, const char *checked)
{
    char shown[PATH_MAX];
    json_t *row = json_pack("{s:s, s:I, s:s*, s:s}", "path", ESC(shown, str_from(path)), "bytes",
                            (json_int_t)r->bytes, "sha256", r->sha256[0] ? r->sha256 : NULL,
                            "checked", checked);
    j->before += r->bytes;
    j->downloaded += r->downloaded;
    if (row && json_array_append_new(j->parts, row) == 0) return 0;
    console_error("out of memory");
    return 1;
}

static int part_failed(const job *j, const char *path, const pull_result *r, const err_ctx *err)
{
    char have[32], all[32], kept[PATH_MAX + 128] = "";
    const char *slash = strrchr(path, '/');
    if (r->kept > 0)
        snprintf(kept, sizeof kept, "; %s of %s are kept in %.300s.part, and the same command "
                 "resumes from there", text_bytes(have, sizeof have, j->before + r->kept),
                 text_bytes(all, sizeof all, j->e->bytes), path);
    console_error("%s: %s%s", slash ? slash + 1 : path, err->msg, kept);
    return err->code == ERR_STOPPED && interrupted() ? interrupt_exit_code() : 1;
}

/* An existing file: only its size is checked. */
static int take_present(job *j, const char *path, uint64_t bytes)
{
    const pull_result r = { .bytes = bytes };
    const bool exact = j->e->n_part == 1 && !j->e->about;
    if (exact && bytes != j->e->bytes && !j->s->accept_changed) {
        console_error("%s: exists, but has %llu bytes instead of %llu: remove it to download it "
                      "again, or use --accept-changed", path, (unsigned long long)bytes,
                      (unsigned long long)j->e->bytes);
        return 1;
    }
    return note_part(j, path, &r, "present");
}

static int pull_part(job *j, int p)
{
    static const char *const checks[] = { [PULL_UNCHECKED] = "no", [PULL_BY_SERVER] = "server",
                                          [PULL_BY_LIST] = "list" };
    const str_view repo = j->e->field[LIST_REPO];
    const bool one = j->e->n_part == 1;
    char path[PATH_MAX], file[PATH_MAX], url[PATH_MAX * 2];
    pull_result r = { .bytes = 0 };
    bool done;
    err_ctx err;

    if (model_name_path(path, j->folder, j->e, p, &err) < 0) return console_fail(j->name, &err);
    const uint64_t have = part_file_size(path, &done);
    if (done) return take_present(j, path, have);
    (void)list_entry_file(file, sizeof file, j->e, p);   /* fits: it is part of path */
    if ((size_t)snprintf(url, sizeof url, "%s/%.*s/resolve/main/%s", j->base, (int)repo.len,
                         repo.ptr, file) >= sizeof url) {
        console_error("--base-url: too long");
        return 2;
    }
    const pull_request w = {
        .url = url, .path = path, .token = j->token,
        .sha256 = p == 0 && list_entry_is_hashed(j->e) ? j->e->field[LIST_SHA256] : (str_view){ 0 },
        .bytes = one && !j->e->about ? j->e->bytes : 0,
        /* the list's size may be rounded down */
        .most_bytes = j->e->bytes + j->e->bytes / 20 + (1 << 20),
        .accept_changed = j->s->accept_changed, .retries = (int)j->s->retries,
        .timeout_s = (int)j->s->timeout_s, .bar = &j->bar, .before = j->before,
    };
    if (pull_file(&r, &w, &err) < 0) {
        progress_end(&j->bar);
        return part_failed(j, path, &r, &err);
    }
    return note_part(j, path, &r, checks[r.check]);
}

static int pull_all(job *j)
{
    char path[PATH_MAX];
    uint64_t have = 0;
    int rc = 0;
    bool done;
    for (int p = 0; p < j->e->n_part; p++)
        if (model_name_path(path, j->folder, j->e, p, NULL) == 0)
            have += part_file_size(path, &done);
    progress_begin_at(&j->bar, "downloading", j->e->bytes, have);
    for (int p = 0; p < j->e->n_part && rc == 0; p++) rc = pull_part(j, p);
    progress_end(&j->bar);
    return rc;
}

/* ---- the report ---------------------------------------------------------------------------- */

static int report(job *j, const char *path, uint64_t start_ns)
{
    char name[128], repo[256], shown[PLACE_CAP], size[32];
    ESC(shown, str_from(path));
    if (j->s->json) {
        json_t *root = json_pack("{s:s, s:s, s:s, s:I, s:I, s:f, s:O}",
                                 "name", ESC(name, j->e->field[LIST_NAME]),
                                 "repository", ESC(repo, j->e->field[LIST_REPO]), "path", shown,
                                 "bytes", (json_int_t)j->before,
                                 "downloaded", (json_int_t)j->downloaded,
                                 "seconds", clock_since(start_ns), "parts", j->parts);
        return console_report(root, REPORT_FLAGS, "") != 0 ? 1 : console_finish();
    }
    printf("%s\n", shown);
    if (console_finish() != 0) return 1;
    if (j->downloaded == 0) console_note("exists already: nothing was downloaded");
    else console_note("%s in %.0f s; moe-run -m '%s' runs it",
                      text_bytes(size, sizeof size, j->downloaded), clock_since(start_ns), j->name);
    return 0;
}

/* A model that comes with the program. */
static int report_here(job *j, const model_list *l, uint64_t start_ns)
{
    char place[PLACE_CAP], shown[128];
    if (model_list_find_here(place, l, j->e)) {
        j->before = j->e->bytes;
        return report(j, place, start_ns);
    }
    console_error("%s comes with the program, but is not in the folder of %s: run make install",
                  ESC(shown, j->e->field[LIST_NAME]), l->path);
    return 1;
}

static int run(job *j, const model_list *l)
{
    const uint64_t start_ns = clock_ns();
    char path[PATH_MAX];
    err_ctx err;
    int rc;
    if ((rc = find_entry(j, l)) != 0) return rc;
    if (list_entry_is_here(j->e)) return report_here(j, l, start_ns);
    if (fetch_missing()) {
        console_error("pull: %s", fetch_missing());
        return 1;
    }
    if (!fetch_is_base(j->base)) {
        console_error("--base-url: '%.200s' is not an address such as https://huggingface.co",
                      j->base);
        return 2;
    }
    if ((rc = read_token(j)) != 0) return rc;
    if (model_name_folder(j->folder, j->s->dir, &err) < 0 || check_disk(j, &err) < 0)
        return console_fail(j->name, &err);
    note_choice(j, l);
    if ((rc = pull_all(j)) != 0) return rc;
    (void)model_name_path(path, j->folder, j->e, 0, NULL);
    return report(j, path, start_ns);
}

int cmd_pull(int argc, char **argv)
{
    settings s = { .base_url = model_list_hub, .retries = 8, .timeout_s = 60 };
    job j = { .s = &s };
    model_list l = { .text = NULL };
    char *base;
    err_ctx err;
    int rc = args_parse(&spec, &s, &j.name, NULL, argc, argv);

    if (rc != ARGS_RUN) return rc == ARGS_HELP ? console_finish() : 2;
    size_t n = strlen(s.base_url);
    while (n > 0 && s.base_url[n - 1] == '/') n--;
    base = mem_strdup_n(s.base_url, n);
    j.parts = json_array();
    j.base = base;
    interrupt_install();
    if (!base || !j.parts) {
        console_error("out of memory");
        rc = 1;
    } else {
        rc = model_list_load(&l, &err) < 0 ? console_fail(l.path, &err) : run(&j, &l);
    }
    model_list_release(&l);
    json_decref(j.parts);
    mem_free(base);
    return rc;
}
