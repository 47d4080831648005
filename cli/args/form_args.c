/* form_args.c - reads --json-schema and --grammar, each a file or the text itself. */
#include "cli/args/form_args.h"

#include <string.h>

#include "cli/console.h"

const arg_option form_options[FORM_N_OPTION] = {
    { "json-schema", 0, ARG_TEXT, offsetof(form_args, schema), "FILE", NULL, 0, 0,
      "Restrict the answer to JSON of this schema: a file or the schema itself" },
    { "grammar", 0, ARG_TEXT, offsetof(form_args, grammar), "FILE", NULL, 0, 0,
      "Restrict the answer to this GBNF grammar: a file or its text" },
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

/* Whether the argument is the text itself, not a file. */
static bool is_text(const form_args *a)
{
    return a->schema ? a->schema[strspn(a->schema, " \t\r\n")] == '{'
                     : strstr(a->grammar, "::=") != NULL;
}

int form_args_read(grammar **out, const form_args *a)
{
    const char *said = a->schema ? a->schema : a->grammar;
    char *text = NULL;
    size_t len = 0;
    err_ctx err = { 0 };
    int rc = 0;
    *out = NULL;
    if (!said) return 0;
    if (a->schema && a->grammar) {
        console_error("--json-schema and --grammar exclude each other");
        return 2;
    }
    const bool inline_text = is_text(a);
    if (inline_text) len = strlen(said);
    else rc = read_whole_file(&text, &len, said, &err);
    if (rc == 0 && len > GRAMMAR_MAX_TEXT)
        rc = err_set(&err, ERR_RANGE, "%zu bytes exceed the limit of %d", len, GRAMMAR_MAX_TEXT);
    const str_view form = { inline_text ? said : text, len };
    if (rc == 0)
        rc = a->schema ? read_schema(out, form, &err) : grammar_from_gbnf(out, form, &err);
    mem_free(text);
    if (rc == 0) return 0;
    console_error("%s: %s", !inline_text ? said : a->schema ? "--json-schema" : "--grammar",
                  err.msg);
    return 2;
}

int form_tries_make(form_tries *t, const grammar *g, const tokenizer *tok, err_ctx *err)
{
    const bool markup = g && grammar_has_markup(g);
    return !g || t->of[markup] ? 0 : token_trie_create(&t->of[markup], tok, markup, err);
}

int form_mask(grammar_mask **out, const form_tries *t, const grammar *g, int n_vocab, err_ctx *err)
{
    *out = NULL;
    return g ? grammar_mask_create(out, g, t->of[grammar_has_markup(g)], n_vocab, err) : 0;
}

void form_tries_release(form_tries *t)
{
    for (size_t i = 0; i < ARRAY_LEN(t->of); i++) token_trie_free(t->of[i]);
    *t = (form_tries){ 0 };
}
