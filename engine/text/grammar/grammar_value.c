/* grammar_value.c - rules for values in a notation: JSON or Gemma's. */
#include "engine/text/grammar/grammar_value.h"

#include <string.h>

#include "engine/text/grammar/grammar_number.h"
#include "engine/text/textbuf_json.h"

#define GEMMA_QUOTE "<|\"|>"
enum { WORD_MAX_BYTES = 128 };

#define HEX "[0-9a-fA-F]"
static const char letter_text[] =
    "root ::= [^\"\\\\\\x00-\\x1F] | \"\\\\\" ([\"\\\\/bfnrt] | \"u\" code)\n"
    "code ::= [1-9A-Ca-cE-Fe-f] " HEX "{3} | [Dd] [0-7] " HEX "{2}\n"
    " | [Dd] [89ABab] " HEX "{2} \"\\\\u\" [Dd] [C-Fc-f] " HEX "{2}\n"
    " | \"0\" ([1-9a-fA-F] " HEX "{2} | \"0\" ([1-9a-fA-F] " HEX " | \"0\" [1-9a-fA-F]))\n";
#undef HEX

rules_expr value_quote(const value_rules *v)
{
    return rules_text(v->r, v->as == VALUE_GEMMA ? GEMMA_QUOTE : "\"");
}

rules_expr value_mark(const value_rules *v, const char *sign)
{
    rules *r = v->r;
    if (v->as == VALUE_GEMMA) return rules_text(r, sign);
    return rules_seq(r, rules_text(r, sign), rules_option(r, rules_text(r, " ")));
}

rules_expr value_list(const value_rules *v, rules_expr item, int min, int max)
{
    rules *r = v->r;
    const rules_expr next = rules_seq(r, value_mark(v, ","), item);
    if (max == 0) return RULES_EMPTY;
    const rules_expr some = rules_seq(
        r, item, rules_repeat(r, next, max_int(min - 1, 0),
                              max == RULES_NO_LIMIT ? RULES_NO_LIMIT : max - 1));
    return min > 0 ? some : rules_alt(r, RULES_EMPTY, some);
}

rules_expr value_word(const value_rules *v)
{
    rules *r = v->r;
    const rules_expr letter = rules_alt(r, rules_range(r, 'a', 'z'), rules_range(r, 'A', 'Z'));
    const rules_expr other = rules_alt(r, rules_range(r, '0', '9'), rules_range(r, '_', '_'));
    return rules_repeat(r, rules_alt(r, letter, other), 1, WORD_MAX_BYTES);
}

/* Adds the rules for strings and keys. */
static int add_strings(value_rules *v, err_ctx *err)
{
    rules *r = v->r;
    v->string = rules_new(r, str_from("string"));
    if (v->as == VALUE_GEMMA) {
        const rules_tag close = { GEMMA_QUOTE, RULES_EMPTY };
        v->letter = rules_new(r, str_from("letter"));
        rules_define(r, v->letter, rules_alt(r, rules_chars(r, 1, '<' - 1),
                                             rules_chars(r, '<' + 1, 0x10FFFF)));
        const int rest = rules_text_until(r, &close, 1, false);
        rules_define(r, v->string, rules_seq(r, value_quote(v), rules_call(r, rest)));
        return 0;
    }
    v->letter = rules_add_gbnf(r, str_from(letter_text), err);
    if (v->letter < 0) return v->letter;
    const rules_expr letters = rules_repeat(r, rules_call(r, v->letter), 0, RULES_NO_LIMIT);
    rules_define(r, v->string, rules_seq3(r, value_quote(v), letters, value_quote(v)));
    v->key_end = rules_add_gbnf(r, str_from("root ::= [^\"\\\\\\x00-\\x1F]* \"\\\"\""), err);
    return v->key_end < 0 ? v->key_end : 0;
}

int value_rules_init(value_rules *v, rules *r, value_notation as, err_ctx *err)
{
    *v = (value_rules){ .r = r, .as = as };
    const int rc = add_strings(v, err);
    if (rc < 0) return rc;
    v->value = rules_new(r, str_from("value"));
    v->object = rules_new(r, str_from("object"));
    v->number = rules_new(r, str_from("number"));
    const rules_expr string = rules_call(r, v->string), value = rules_call(r, v->value);
    rules_define(r, v->number, rules_number(r));
    const rules_expr key = as == VALUE_GEMMA ? value_word(v) : string;
    const rules_expr member = rules_seq3(r, key, value_mark(v, ":"), value);
    const rules_expr members = value_list(v, member, 0, RULES_NO_LIMIT);
    rules_define(r, v->object, rules_seq3(r, rules_text(r, "{"), members, rules_text(r, "}")));
    const rules_expr items = value_list(v, value, 0, RULES_NO_LIMIT);
    const rules_expr array = rules_seq3(r, rules_text(r, "["), items, rules_text(r, "]"));
    rules_expr any = rules_alt(r, rules_text(r, "true"), rules_text(r, "false"));
    any = rules_alt(r, rules_alt(r, any, rules_text(r, "null")), string);
    any = rules_alt(r, any, rules_call(r, v->number));
    any = rules_alt(r, any, rules_call(r, v->object));
    rules_define(r, v->value, rules_alt(r, any, array));
    return 0;
}

/* Adds a quoted string, in JSON with escapes. */
static int string_literal(rules_expr *out, const value_rules *v, const json_t *s, err_ctx *err)
{
    const str_view text = json_view(s);
    char *json;
    size_t n;
    if (v->as == VALUE_GEMMA) {
        if (text.len && memmem(text.ptr, text.len, GEMMA_QUOTE, strlen(GEMMA_QUOTE)))
            return err_set(err, ERR_UNSUPPORTED, "a string with %s in it", GEMMA_QUOTE);
        *out = rules_seq3(v->r, value_quote(v), rules_bytes(v->r, text), value_quote(v));
        return 0;
    }
    const int rc = textbuf_json_text(&json, &n, s, err);
    if (rc < 0) return rc;
    *out = rules_bytes(v->r, (str_view){ json, n });
    mem_free(json);
    return 0;
}

int value_key(rules_expr *out, const value_rules *v, const char *name, err_ctx *err)
{
    const char word[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
    json_t *key;
    *out = RULES_NOTHING;
    if (v->as == VALUE_GEMMA && *name && name[strspn(name, word)] == '\0') {
        *out = rules_text(v->r, name);
        return 0;
    }
    key = json_string(name);
    const int rc = key ? string_literal(out, v, key, err)
                       : err_set(err, ERR_NOMEM, "out of memory for a schema");
    json_decref(key);
    return rc;
}

int value_literal(rules_expr *out, const value_rules *v, const json_t *value, err_ctx *err)
{
    rules *r = v->r;
    rules_expr x = RULES_EMPTY, one;
    const char *key;
    json_t *item;
    size_t i, n = 0;
    int rc;
    *out = RULES_NOTHING;
    if (json_is_object(value)) {
        json_object_foreach((json_t *)value, key, item) {
            x = rules_seq(r, x, n++ ? value_mark(v, ",") : RULES_EMPTY);
            if ((rc = value_key(&one, v, key, err)) < 0) return rc;
            x = rules_seq3(r, x, one, value_mark(v, ":"));
            if ((rc = value_literal(&one, v, item, err)) < 0) return rc;
            x = rules_seq(r, x, one);
        }
        *out = rules_seq3(r, rules_text(r, "{"), x, rules_text(r, "}"));
        return 0;
    }
    if (json_is_array(value)) {
        json_array_foreach(value, i, item) {
            if ((rc = value_literal(&one, v, item, err)) < 0) return rc;
            x = rules_seq3(r, x, i ? value_mark(v, ",") : RULES_EMPTY, one);
        }
        *out = rules_seq3(r, rules_text(r, "["), x, rules_text(r, "]"));
        return 0;
    }
    if (json_is_string(value)) return string_literal(out, v, value, err);
    char *text;
    if ((rc = textbuf_json_text(&text, &n, value, err)) < 0) return rc;
    *out = rules_bytes(r, (str_view){ text, n });
    mem_free(text);
    return 0;
}
