/* form_args.c - reads --json-schema and --grammar; a file that is neither is bad usage. */
#include "cli/form_args.h"

#include "cli/console.h"

const arg_option form_options[FORM_N_OPTION] = {
    { "json-schema", 0, ARG_TEXT, offsetof(form_args, schema), "FILE", NULL, 0, 0,
      "The answer is JSON of this schema's form" },
    { "grammar", 0, ARG_TEXT, offsetof(form_args, grammar), "FILE", NULL, 0, 0,
      "The answer fits this grammar (GBNF)" },
};

static int read_schema(grammar **out, str_view text, err_ctx *err)
{
    json_error_t why;
    json_t *schema = json_loadb(text.ptr, text.len, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &why);
    char esc[160];
    if (!schema)
        return err_set(err, ERR_FORMAT, "line %d, column %d: %s", why.line, why.column,
                       ESC(esc, str_from(why.text)));
    const int rc = grammar_from_schema(out, schema, true, err);
    json_decref(schema);
    return rc;
}

int form_args_read(grammar **out, const form_args *a)
{
    const char *path = a->schema ? a->schema : a->grammar;
    char *text = NULL;
    size_t len = 0;
    err_ctx err = { 0 };
    *out = NULL;
    if (!path) return 0;
    if (a->schema && a->grammar) {
        console_error("--json-schema and --grammar do not go together");
        return 2;
    }
    int rc = read_whole_file(&text, &len, path, &err);
    if (rc == 0 && len > GRAMMAR_MAX_TEXT)
        rc = err_set(&err, ERR_RANGE, "%zu bytes: %d are the most", len, GRAMMAR_MAX_TEXT);
    if (rc == 0)
        rc = a->schema ? read_schema(out, (str_view){ text, len }, &err)
                       : grammar_from_gbnf(out, (str_view){ text, len }, &err);
    mem_free(text);
    if (rc == 0) return 0;
    console_error("%s: %s", path, err.msg);
    return 2;
}

int form_open(form *out, const grammar *g, const tokenizer *tok, int n_vocab, err_ctx *err)
{
    *out = (form){ 0 };
    if (!g) return 0;
    int rc = token_trie_create(&out->trie, tok, grammar_has_markup(g), err);
    if (rc == 0) rc = grammar_mask_create(&out->mask, g, out->trie, n_vocab, err);
    if (rc < 0) form_close(out);
    return rc;
}

void form_close(form *f)
{
    grammar_mask_free(f->mask);
    token_trie_free(f->trie);
    *f = (form){ 0 };
}
