/* fuzz_schema.c - fuzz target: JSON schemas and grammars that anybody may send.
 *
 * What begins like JSON is a schema, anything else a grammar. One that is accepted is run: over the
 * input itself, and along bytes that fit, to places that must be alive. Runs under libFuzzer, AFL++
 * or tests/fuzz_main.c. */
#include <stdlib.h>

#include "engine/text/grammar/grammar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Along some bytes that fit; each live place can go on or end, unless the grammar is so ambiguous
 * that some ways were given up. */
static void lead(grammar_run *r, const uint8_t *data, size_t size)
{
    grammar_state at = grammar_run_start(r);
    for (size_t i = 0; i < 200 && at >= 0 && !grammar_run_crowded(r); i++) {
        const uint8_t from = size ? data[i % size] : 0;
        grammar_state to = GRAMMAR_DEAD;
        for (int k = 0; k < 256 && to < 0; k++) {
            to = grammar_run_step(r, at, (uint8_t)(from + k));
            if (to == GRAMMAR_FULL && grammar_run_n_state(r) > 1) {
                grammar_run_keep(r, &at, 1);
                k--;
            } else if (to == GRAMMAR_FULL) {
                return;
            }
        }
        if (to < 0) {
            if (!grammar_run_may_end(r, at) && !grammar_run_crowded(r)) abort();
            return;
        }
        at = to;
        if (i % 16 == 0 && grammar_run_near(r, at, 16) == GRAMMAR_DEAD) abort();
    }
}

static void try_run(const grammar *g, const uint8_t *data, size_t size)
{
    grammar_run *r;
    err_ctx err;
    if (grammar_run_create(&r, g, &err) < 0) return;
    grammar_state at = grammar_run_start(r);
    for (size_t i = 0; i < size && at >= 0; i++) at = grammar_run_step(r, at, data[i]);
    lead(r, data, size);
    grammar_run_free(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const str_view text = { (const char *)data, size };
    grammar *g = NULL;
    err_ctx err;
    json_t *schema;
    if (size && (data[0] == '{' || data[0] == '[')) {
        if (!(schema = json_loadb(text.ptr, text.len, JSON_DECODE_ANY, NULL))) return 0;
        if (grammar_from_schema(&g, schema, size & 1, &err) < 0 && g) abort();
        json_decref(schema);
    } else if (grammar_from_gbnf(&g, text, &err) < 0 && g) {
        abort();
    }
    if (g) try_run(g, data, size);
    grammar_free(g);
    return 0;
}
