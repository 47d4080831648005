/* tokenize.c - moe-run tokenize: text to ids and back, by JSON lines or for reading.
 *
 * Each line gets exactly one line of output, in order; the first that cannot be converted ends the
 * program with an error that names it. Lines may be of any length. */
#include "cli/args/args.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/model_name.h"
#include "engine/text/tokenizer/tokenizer.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct tokenize_options {
    const char *model, *text;
    bool decode, no_special, add_special;
} tokenize_options;

static const arg_option options[] = {
    { "model", 'm', ARG_NEEDED_TEXT, offsetof(tokenize_options, model), "FILE", "MOE_MODEL", 0, 0,
      "GGUF file with the vocabulary, or the first part of a split one" },
    { "text", 't', ARG_TEXT, offsetof(tokenize_options, text), "TEXT", NULL, 0, 0,
      "Show the tokens of this text as a table; read no input" },
    { "decode", 'd', ARG_FLAG, offsetof(tokenize_options, decode), NULL, NULL, 0, 0,
      "Read ids, write text" },
    { "no-special", 0, ARG_FLAG, offsetof(tokenize_options, no_special), NULL, NULL, 0, 0,
      "Control tokens in a text are plain text, unless its line says otherwise" },
    { "add-special", 0, ARG_FLAG, offsetof(tokenize_options, add_special), NULL, NULL, 0, 0,
      "Put begin and end tokens around a text, where the file asks for them" },
};

static const arg_spec spec = {
    .usage = "moe-run tokenize [-m] FILE [--text TEXT | --decode]",
    .about = "Reads JSON lines {\"text\": \"...\", \"special\": true}, "
             "writes an array of ids each.\n"
             "With --decode: reads arrays of ids or {\"ids\": [...]}, writes {\"text\": \"...\"}.\n"
             "special: control tokens written in the text become their ids (default: true).",
    .options = options, .n_option = ARRAY_LEN(options),
};

typedef struct session {
    const tokenize_options *opt;
    tokenizer *t;
    encoder *e;
    id_list ids;
    textbuf text;                        /* decoded so far */
} session;

/* ---- text to ids --------------------------------------------------------------------------- */

static int encode(session *s, str_view text, bool parse, err_ctx *err)
{
    s->ids.n = 0;
    return s->opt->add_special ? encoder_encode_whole(s->e, &s->ids, text, parse, true, err)
                               : encoder_encode(s->e, &s->ids, text, parse, err);
}

static int encode_line(session *s, const json_t *line, err_ctx *err)
{
    const json_t *text = json_object_get(line, "text"), *special = json_object_get(line, "special");
    if (!json_is_object(line)) return err_set(err, ERR_FORMAT, "expected a JSON object");
    if (!json_is_string(text)) return err_set(err, ERR_FORMAT,
                                              "\"text\" is missing or not a string");
    if (special && !json_is_boolean(special))
        return err_set(err, ERR_FORMAT, "\"special\" is not true or false");
    const str_view view = { json_string_value(text), json_string_length(text) };
    const bool parse = special ? json_is_true(special) : !s->opt->no_special;
    const int rc = encode(s, view, parse, err);
    if (rc < 0) return rc;
    putchar('[');
    for (size_t i = 0; i < s->ids.n; i++) printf(i ? ",%d" : "%d", (int)s->ids.ids[i]);
    fputs("]\n", stdout);
    return 0;
}

static int show_text(session *s, err_ctx *err)
{
    char shown[4200];                    /* any real token, every byte escaped; others are cut */
    const int rc = encode(s, str_from(s->opt->text), !s->opt->no_special, err);
    if (rc < 0) return rc;
    printf("     id  bytes\n");
    for (size_t i = 0; i < s->ids.n; i++) {
        const int id = s->ids.ids[i];
        const token_kind kind = tokenizer_kind(s->t, id);
        printf("%7d  \"%s\"%s\n", id, ESC(shown, tokenizer_bytes(s->t, id, true)),
               kind == TOKEN_NORMAL ? "" : kind == TOKEN_BYTE ? "  byte" : "  special");
    }
    return 0;
}

/* ---- ids to text --------------------------------------------------------------------------- */

static int append_bytes(session *s, utf8_stream *stream, str_view bytes, err_ctx *err)
{
    char *at = textbuf_room(&s->text, 3 * (bytes.len + 3) + 3);  /* as utf8_stream_push wants it */
    if (!at) return err_set(err, ERR_NOMEM, "text of more than %zu bytes", s->text.len);
    s->text.len += utf8_stream_push(stream, at, bytes);
    return 0;
}

static int decode_line(session *s, const json_t *line, err_ctx *err)
{
    const json_t *ids = json_is_object(line) ? json_object_get(line, "ids") : line;
    const int n_token = tokenizer_n_token(s->t);
    utf8_stream stream = { 0 };
    int rc;
    if (!json_is_array(ids)) return err_set(err, ERR_FORMAT, "expected an array of ids");
    s->text.len = 0;
    s->ids.n = 0;
    if ((rc = append_bytes(s, &stream, (str_view){ "", 0 }, err)) < 0) return rc;
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *v = json_array_get(ids, i);
        const json_int_t id = json_integer_value(v);
        if (!json_is_integer(v)) return err_set(err, ERR_FORMAT, "ids[%zu] is not an integer", i);
        if (id < 0 || id >= n_token)
            return err_set(err, ERR_RANGE, "ids[%zu] is %lld, the vocabulary has 0 to %d", i,
                           (long long)id, n_token - 1);
        if ((rc = ids_push(&s->ids, (int32_t)id, err)) < 0) return rc;
        rc = append_bytes(s, &stream, tokenizer_bytes_at(s->t, s->ids.ids, i), err);
        if (rc < 0) return rc;
    }
    s->text.len += utf8_stream_end(&stream, s->text.ptr + s->text.len);  /* push left room */
    json_t *answer = json_pack("{s:o}", "text", json_stringn(s->text.ptr, s->text.len));
    /* ASCII: a line separator inside a text must not look like the end of the line */
    if (console_json(answer, JSON_ENSURE_ASCII)) return 0;
    return err_set(err, ERR_NOMEM, "text of %zu bytes", s->text.len);
}

/* ---- lines --------------------------------------------------------------------------------- */

static bool is_blank(const char *line, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strchr(" \t\r\n", line[i]) || line[i] == '\0') return false;
    return true;
}

static int answer_line(session *s, const char *line, size_t n, err_ctx *err)
{
    json_error_t why;
    json_t *value = json_loadb(line, n, JSON_ALLOW_NUL, &why);
    if (!value) return err_set(err, ERR_FORMAT, "not JSON: %s at byte %d", why.text, why.position);
    const int rc = s->opt->decode ? decode_line(s, value, err) : encode_line(s, value, err);
    json_decref(value);
    return rc;
}

/* A program that feeds lines through a pipe may wait for each result; a file does not. */
static int answer_lines(session *s)
{
    struct stat st;
    const bool flush = fstat(fileno(stdin), &st) != 0 || !S_ISREG(st.st_mode);
    char *line = NULL;
    size_t cap = 0;
    unsigned long number = 0;
    ssize_t n;
    int rc = 0;
    console_await("JSON lines");
    while (rc == 0 && (errno = 0, n = getline(&line, &cap, stdin)) >= 0) {
        err_ctx err;
        number++;
        if (is_blank(line, (size_t)n)) continue;
        if (answer_line(s, line, (size_t)n, &err) < 0) {
            fflush(stdout);
            console_error("line %lu: %s", number, err.msg);
            rc = 1;
        } else if (flush && fflush(stdout) != 0) {
            break;                       /* console_finish says why */
        }
    }
    if (rc == 0 && !feof(stdin) && !ferror(stdout)) {
        console_error("standard input, line %lu: %s", number + 1, strerror(errno));
        rc = 1;
    }
    free(line);
    return rc;
}

static int open_session(session *s, const char *path, err_ctx *err)
{
    gguf *g;
    int rc = model_name_open(&g, path, err);
    if (rc < 0) return rc;
    rc = tokenizer_create(&s->t, g, err);
    gguf_close(g);
    return rc < 0 ? rc : encoder_create(&s->e, s->t, err);
}

int cmd_tokenize(int argc, char **argv)
{
    tokenize_options opt = { 0 };
    session s = { .opt = &opt };
    int n_operand, rc;
    err_ctx err;

    rc = args_parse(&spec, &opt, NULL, &n_operand, argc, argv);
    if (rc != ARGS_RUN) return rc == ARGS_HELP ? console_finish() : 2;
    if (opt.text && opt.decode) {
        console_error("--text and --decode do not go together");
        return 2;
    }
    if (open_session(&s, opt.model, &err) < 0) rc = console_fail(opt.model, &err);
    else if (!opt.text) rc = answer_lines(&s);
    else if (show_text(&s, &err) < 0) rc = console_fail("--text", &err);
    ids_free(&s.ids);
    textbuf_free(&s.text);
    encoder_free(s.e);
    tokenizer_free(s.t);
    return rc ? rc : console_finish();
}
