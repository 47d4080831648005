/* chat_grammar.c - compiles tools to the grammar of the calls that a model may write.
 *
 * The grammar has the markup of the formats' templates, which models were trained on and the
 * parsers of chat_*.c accept. Free text around ChatML's calls excludes the tag that begins a call,
 * so every call is constrained.
 *
 * Parameters between tags (XML, GLM) have no types: the parser reads a value as a string if the
 * schema allows one, else as JSON. The rule of a value follows that decision: strings are unquoted
 * up to the closing tag; those of limited length contain no '<'. */
#include "engine/text/chat/chat_grammar.h"

#include <string.h>

#include "engine/text/chat/chat_internal.h"
#include "engine/text/grammar/grammar_merge.h"
#include "engine/text/grammar/grammar_rules.h"

enum {
    MAX_TOOLS = 1024,
    MAX_NAME_BYTES = 128,                /* of a tool, of an XML parameter */
    MAX_CALLS = 16                       /* in one answer of CHAT_CALLS_MUST */
};

/* The text around a parameter: open NAME middle VALUE lead close line. */
typedef struct param_tags {
    const char *open, *middle;
    const char *lead, *close;            /* close is the tag, lead the text before it */
    const char *line;
} param_tags;

typedef struct maker {
    const chat *c;
    param_tags tags;
    const chat_request *req;
    rules *r;
    schema_reader *d;                    /* for arguments */
    schema_reader *text;                 /* for the answer's text */
    json_t *any;                         /* the schema of any object */
    int letter;                          /* rule: any character but NUL and '<' */
    int value;                           /* rule: text up to and including its closing tag */
    int any_param;                       /* rule: a parameter that is in no schema */
    err_ctx *err;
} maker;

/* ---- tools ----------------------------------------------------------------------------------- */

static bool name_fits(const char *name)
{
    size_t n = 0;
    for (; name[n]; n++)
        if ((uint8_t)name[n] <= ' ' || (uint8_t)name[n] >= 0x7F || strchr("<>\"\\", name[n]))
            return false;
    return n > 0 && n <= MAX_NAME_BYTES;
}

static bool is_strict(const json_t *function)
{
    return json_is_true(json_object_get(function, "strict"));
}

static schema_strictness strictness_of(const json_t *function)
{
    return is_strict(function) ? SCHEMA_CLOSED : SCHEMA_LENIENT;
}

static bool obeys(const maker *m, const json_t *function)
{
    return m->req->calls == CHAT_CALLS_MUST || is_strict(function);
}

/* Returns rc; prefixes the message of an error with the tool's name. */
static int named(maker *m, const char *name, int rc)
{
    return rc < 0 ? err_prefix(m->err, rc, "tool \"%s\"", name) : rc;
}

static int json_arguments(rules_expr *out, maker *m, const json_t *function)
{
    const json_t *schema = json_object_get(function, "parameters");
    const bool any = !obeys(m, function) || (schema && json_object_size(schema) == 0);
    if (!schema) {
        *out = rules_text(m->r, "{}");
        return 0;
    }
    const json_t *root = any ? m->any : schema;
    const int rule = schema_reader_add(m->d, root, root, strictness_of(function), m->err);
    if (rule >= 0) *out = rules_call(m->r, rule);
    return rule < 0 ? rule : 0;
}

/* ---- parameters between tags ----------------------------------------------------------------- */

/* Adds the strings of an enum, unquoted, and null. */
static int bare_values(rules_expr *out, maker *m, const json_t *values)
{
    size_t i;
    json_t *v;
    *out = RULES_NOTHING;
    json_array_foreach(values, i, v) {
        const str_view text = json_view(v);
        if (json_is_null(v)) *out = rules_alt(m->r, *out, rules_text(m->r, "null"));
        if (!json_is_string(v) || view_has(text, m->tags.close)) continue;
        *out = rules_alt(m->r, *out, rules_bytes(m->r, text));
    }
    return *out == RULES_NOTHING ? err_set(m->err, ERR_UNSUPPORTED, "no value has a text form")
                                 : 0;
}

static rules_expr close_value(maker *m)
{
    return rules_seq(m->r, rules_text(m->r, m->tags.lead), rules_text(m->r, m->tags.close));
}

/* Adds an unquoted string, up to and including the closing tag. */
static int bare_string(rules_expr *out, maker *m, const json_t *s, schema_strictness strictness)
{
    static const char *const unions[] = { "anyOf", "oneOf" };
    const rules_expr close = close_value(m);
    const json_t *item = json_object_get(s, "const"), *list = json_object_get(s, "enum");
    json_t *single = item ? json_pack("[O]", item) : NULL, *v;
    rules_expr x = RULES_NOTHING;
    size_t i;
    int rc = 0;
    *out = RULES_NOTHING;
    if (item || list) {
        rc = bare_values(&x, m, item ? single : list);
        json_decref(single);
        if (rc == 0) *out = rules_seq(m->r, x, close);
        return rc;
    }
    for (size_t u = 0; u < ARRAY_LEN(unions); u++) {
        json_array_foreach(json_object_get(s, unions[u]), i, v) {
            if (!(schema_types(v) & TYPE_STRING)) continue;
            if ((rc = bare_string(&x, m, v, strictness)) < 0) return rc;
            *out = rules_alt(m->r, *out, x);
        }
        if (*out != RULES_NOTHING) return 0;
    }
    if ((rc = schema_reader_letters(&x, m->d, s, rules_call(m->r, m->letter), strictness,
                                    m->err)) < 0)
        return rc;
    *out = x == RULES_NOTHING ? rules_call(m->r, m->value) : rules_seq(m->r, x, close);
    return 0;
}

/* Adds a parameter with its tags. */
static int param(rules_expr *out, maker *m, const char *name, const json_t *schema,
                 const json_t *root, schema_strictness strictness)
{
    rules *r = m->r;
    const int types = schema_types(schema);
    rules_expr x = RULES_NOTHING;
    int rc;
    if (!name_fits(name))
        return err_set(m->err, ERR_UNSUPPORTED, "a parameter's name is not valid in a tag");
    if (types & TYPE_STRING) {
        if ((rc = bare_string(&x, m, schema, strictness)) < 0)
            return err_prefix(m->err, rc, "%s", name);
        if (types & TYPE_NULL)
            x = rules_alt(r, x, rules_seq(r, rules_text(r, "null"), close_value(m)));
    } else {
        if ((rc = schema_reader_add(m->d, root, schema, strictness, m->err)) < 0)
            return err_prefix(m->err, rc, "%s", name);
        x = rules_seq(r, rules_call(r, rc), close_value(m));
    }
    const int rule = rules_new(r, str_from(name));
    const rules_expr head = rules_seq3(r, rules_text(r, m->tags.open), rules_text(r, name),
                                       rules_text(r, m->tags.middle));
    const rules_expr tail = rules_seq(r, x, rules_text(r, m->tags.line));
    rules_define(r, rule, rules_seq(r, head, tail));
    *out = rules_call(r, rule);
    return 0;
}

/* Adds the parameters in the schema's order; optional ones may be omitted. */
static int tagged_arguments(rules_expr *out, maker *m, const json_t *function)
{
    static const char *const unknown[] = { "$ref", "anyOf", "oneOf", "allOf", "enum", "const" };
    const json_t *schema = json_object_get(function, "parameters");
    const json_t *properties = json_object_get(schema, "properties");
    const json_t *required = json_object_get(schema, "required");
    const schema_strictness strictness = strictness_of(function);
    const char *name;
    json_t *v;
    *out = RULES_EMPTY;
    if (!schema) return 0;
    bool any = !obeys(m, function) || !json_is_object(properties);
    for (size_t i = 0; i < ARRAY_LEN(unknown); i++) {
        if (any || !json_object_get(schema, unknown[i])) continue;
        if (strictness == SCHEMA_CLOSED)
            return err_set(m->err, ERR_UNSUPPORTED, "parameters with \"%s\" have no form in XML",
                           unknown[i]);
        any = true;
    }
    if (any) {
        *out = rules_repeat(m->r, rules_call(m->r, m->any_param), 0, RULES_NO_LIMIT);
        return 0;
    }
    json_object_foreach((json_t *)properties, name, v) {
        rules_expr x = RULES_NOTHING;
        const int rc = param(&x, m, name, v, schema, strictness);
        if (rc < 0) return rc;
        *out = rules_seq(m->r, *out, schema_array_has(required, name) ? x : rules_option(m->r, x));
    }
    return 0;
}

/* ---- calls between tags ---------------------------------------------------------------------- */

/* Adds the bodies of all callable tools: JSON from '{' to '}', XML from the function's name to its
 * closing tag, GLM's and Gemma's from the name to the last argument. */
static int tagged_bodies(rules_expr *out, maker *m, const json_t *callable)
{
    rules *r = m->r;
    const bool glm = m->c->ops->format == CHAT_GLM;
    const char *name;
    json_t *pos;
    *out = RULES_NOTHING;
    json_object_foreach((json_t *)callable, name, pos) {
        const json_t *f = tool_function(json_array_get(m->req->tools,
                                                       (size_t)json_integer_value(pos)));
        rules_expr args = RULES_NOTHING, x;
        int rc = glm || m->c->xml_calls ? tagged_arguments(&args, m, f)
                                        : json_arguments(&args, m, f);
        if (rc < 0) return named(m, name, rc);
        if (m->c->ops->format == CHAT_GEMMA) {
            x = rules_seq(r, rules_text(r, name), args);
        } else if (glm) {
            x = rules_seq3(r, rules_text(r, name), rules_text(r, m->c->g_line), args);
        } else if (m->c->xml_calls) {
            x = rules_seq3(r, rules_text(r, name), rules_text(r, ">\n"), args);
            x = rules_seq(r, x, rules_text(r, TAG_FUNCTION_END));
        } else {
            x = rules_seq3(r, rules_text(r, "{\"name\": \""), rules_text(r, name),
                           rules_text(r, "\", \"arguments\": "));
            x = rules_seq3(r, x, args, rules_text(r, "}"));
        }
        *out = rules_alt(r, *out, x);
    }
    return 0;
}

static int tagged_root(maker *m, const json_t *callable, rules_expr text)
{
    rules *r = m->r;
    const int body = rules_new(r, str_from("call")), root = rules_new(r, str_from("answer"));
    const bool xml = m->c->xml_calls, glm = m->c->ops->format == CHAT_GLM;
    const bool gemma = m->c->ops->format == CHAT_GEMMA;
    const bool item = m->req->one_call;
    rules_expr bodies;
    const int rc = tagged_bodies(&bodies, m, callable);
    if (rc < 0) return rc;
    rules_define(r, body, bodies);
    /* after <tool_call> */
    const rules_expr inside = rules_seq3(r, rules_text(r, gemma ? GEMMA_CALL_WORD : glm ? "" :
                                                       xml ? "\n" TAG_FUNCTION : "\n"),
                                         rules_call(r, body),
                                         rules_seq(r, rules_text(r, glm || gemma ? "" : "\n"),
                                                   rules_text(r, m->c->tags->call_end)));
    const rules_expr newline = rules_option(r, rules_text(r, "\n"));
    const rules_expr call = rules_seq(r, rules_text(r, m->c->tags->call), inside);
    const rules_expr more = rules_repeat(r, rules_seq(r, newline, call), 0, MAX_CALLS - 1);
    const rules_expr calls = rules_seq3(r, rules_repeat(r, rules_text(r, "\n"), 0, 2), call,
                                        rules_seq(r, item ? RULES_EMPTY : more, newline));
    if (m->req->calls == CHAT_CALLS_MUST) {
        rules_define(r, root, calls);
    } else if (m->req->formed) {
        rules_define(r, root, rules_alt(r, text, calls));
    } else {
        const rules_expr then = item ? newline : rules_call(r, root);
        const rules_expr bare = rules_seq(r, rules_call(r, body),
                                          rules_option(r, rules_text(r, "\n" TAG_CALL_END)));
        const rules_tag tags[] = { { m->c->tags->call, rules_seq(r, inside, then) },
                             { TAG_FUNCTION, rules_seq(r, bare, then) } };
        rules_define(r, root, rules_call(r, rules_text_until(r, tags, xml ? 2 : 1, true)));
    }
    return root;
}

/* ---- calls of harmony ------------------------------------------------------------------------ */

static int harmony_root(maker *m, const json_t *callable, rules_expr text)
{
    rules *r = m->r;
    const int root = rules_new(r, str_from("message"));
    rules_expr all = rules_seq(r, rules_range(r, KEY_TEXT, KEY_TEXT), text);
    const char *name;
    json_t *pos;
    if (!m->req->formed) all = RULES_NOTHING;
    json_object_foreach((json_t *)callable, name, pos) {
        const int i = (int)json_integer_value(pos);
        const json_t *f = tool_function(json_array_get(m->req->tools, (size_t)i));
        rules_expr args = RULES_NOTHING;
        const int rc = json_arguments(&args, m, f);
        if (rc < 0) return named(m, name, rc);
        const rules_expr digits = rules_seq(r, rules_range(r, i >> 8, i >> 8),
                                           rules_range(r, i & 255, i & 255));
        all = rules_alt(r, all, rules_seq3(r, rules_range(r, KEY_CALL, KEY_CALL), digits, args));
    }
    rules_define(r, root, all);
    return root;
}

/* ---- the whole grammar ----------------------------------------------------------------------- */

/* Harmony: refuses a tool whose call cannot be finished once its header is written. In formats with
 * tags the grammar never begins such a call. */
static int check_parts(const grammar *g, const json_t *callable, err_ctx *err)
{
    grammar_run *run;
    const char *name;
    json_t *pos;
    int rc = grammar_run_create(&run, g, err);
    if (rc < 0) return rc;
    const grammar_state start = grammar_run_start(run);
    json_object_foreach((json_t *)callable, name, pos) {
        const int i = (int)json_integer_value(pos);
        const uint8_t key[] = { KEY_CALL, (uint8_t)(i >> 8), (uint8_t)i };
        grammar_state s = start;
        for (size_t k = 0; k < sizeof key; k++) s = grammar_run_step(run, s, key[k]);
        if (s < 0 && rc == 0)
            rc = err_set(err, ERR_FORMAT, "tool \"%s\": no finite text has its form", name);
    }
    grammar_run_free(run);
    return rc;
}

/* Adds the rules shared by all calls with parameters between tags. */
static void add_tagged(maker *m)
{
    const char *line = m->c->ops->format == CHAT_GLM ? m->c->g_line : "\n";
    rules *r = m->r;
    m->tags = m->c->ops->format == CHAT_GLM
        ? (param_tags){ TAG_KEY, line[0] ? TAG_KEY_END "\n" TAG_VALUE : TAG_KEY_END TAG_VALUE, "",
                        TAG_VALUE_END, line }
        : (param_tags){ TAG_PARAM, ">\n", "\n", TAG_PARAM_END, "\n" };
    const rules_tag close = { m->tags.close, RULES_EMPTY };
    m->letter = rules_new(r, str_from("letter"));
    rules_define(r, m->letter, rules_alt(r, rules_chars(r, 1, '<' - 1),
                                         rules_chars(r, '<' + 1, 0x10FFFF)));
    m->value = rules_text_until(r, &close, 1, false);
    m->any_param = rules_new(r, str_from("parameter"));
    const rules_expr word = rules_alt(r, rules_range(r, 'a', 'z'),
                                      rules_alt(r, rules_range(r, 'A', 'Z'),
                                                rules_alt(r, rules_range(r, '0', '9'),
                                                          rules_range(r, '_', '_'))));
    const rules_expr name = rules_repeat(r, word, 1, MAX_NAME_BYTES);
    rules_define(r, m->any_param, rules_seq3(r, rules_text(r, m->tags.open), name,
                                             rules_seq3(r, rules_text(r, m->tags.middle),
                                                        rules_call(r, m->value),
                                                        rules_text(r, line))));
}

static int make(grammar **out, maker *m, const json_t *callable, const json_t *text, bool strict)
{
    rules_expr answer = RULES_NOTHING;
    const value_notation as = m->c->ops->format == CHAT_GEMMA ? VALUE_GEMMA : VALUE_JSON;
    int rc = schema_reader_create(&m->d, m->r, as, m->err);
    if (rc < 0) return rc;
    add_tagged(m);
    if (m->req->formed) {
        rc = schema_reader_create(&m->text, m->r, VALUE_JSON, m->err);
        if (rc == 0)
            rc = schema_reader_add(m->text, text, text, strict ? SCHEMA_CLOSED : SCHEMA_OPEN,
                                   m->err);
        if (rc < 0) return rc;
        answer = rules_call(m->r, rc);
    }
    rc = m->c->ops->format == CHAT_HARMONY ? harmony_root(m, callable, answer)
                                           : tagged_root(m, callable, answer);
    if (rc >= 0) rc = rules_finish(out, m->r, rc, m->err);
    if (rc < 0) return rc;
    (*out)->markup = m->c->ops->format != CHAT_HARMONY;
    if (m->c->ops->format == CHAT_HARMONY) rc = check_parts(*out, callable, m->err);
    if (rc < 0) {
        grammar_free(*out);
        *out = NULL;
    }
    return rc;
}

static int check(const chat *c, const chat_request *req, const json_t *callable, err_ctx *err)
{
    const char *name;
    json_t *pos;
    char esc[80];
    if (!c->ops->tools)
        return err_set(err, ERR_UNSUPPORTED, "this model's chat format has no tool calls");
    if (json_array_size(req->tools) > MAX_TOOLS)
        return err_set(err, ERR_RANGE, "more than %d tools", MAX_TOOLS);
    if (json_object_size(callable) == 0)
        return err_set(err, ERR_RANGE, "no tool may be called");
    json_object_foreach((json_t *)callable, name, pos)
        if (!name_fits(name))
            return err_set(err, ERR_UNSUPPORTED, "a tool's name is 1 to %d letters, digits and "
                           "signs, unlike \"%s\"", MAX_NAME_BYTES, ESC(esc, str_from(name)));
    return 0;
}

int chat_grammar(grammar **out, const chat *c, const chat_request *req, const json_t *text,
                 bool strict, err_ctx *err)
{
    maker m = { .c = c, .req = req, .r = rules_create(), .err = err,
                .any = json_pack("{s:s}", "type", "object") };
    json_t *callable = request_callable(req);
    *out = NULL;
    int rc = m.r && m.any && callable ? check(c, req, callable, err)
                                      : err_set(err, ERR_NOMEM, "out of memory for a grammar");
    if (rc == 0) rc = make(out, &m, callable, text, strict);
    schema_reader_free(m.d);
    schema_reader_free(m.text);
    rules_free(m.r);
    json_decref(m.any);
    json_decref(callable);
    return rc;
}
