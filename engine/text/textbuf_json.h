/* textbuf_json.h - writes JSON values as text on one line.
 *
 * Two styles match the programs that wrote the models' training data: Python's json.dumps
 * ("a": 1, "b": 1e-05) and Rust's serde ("a":1,"b":1e-5). Both keep the order of keys and do not
 * escape non-ASCII characters. textbuf_check reports a failed allocation of any earlier call. */
#ifndef ENGINE_TEXT_TEXTBUF_JSON_H
#define ENGINE_TEXT_TEXTBUF_JSON_H

#include <jansson.h>

#include "loader/base.h"

typedef enum json_style { JSON_SPACED, JSON_TIGHT } json_style;

void textbuf_json(textbuf *b, const json_t *v, json_style style);
void textbuf_json_string(textbuf *b, str_view s);        /* with the quotes */
void textbuf_python(textbuf *b, const json_t *v);        /* a value as Python's str() writes it */

str_view json_view(const json_t *string);                /* NULL and 0: no string */

int textbuf_check(const textbuf *b, err_ctx *err);       /* ERR_NOMEM if an allocation failed */

/* Writes v in the spaced style to a new, terminated *out; *len excludes the terminator. The caller
 * frees *out with mem_free. Returns 0, or < 0 with *err filled and *out NULL. */
int textbuf_json_text(char **out, size_t *len, const json_t *v, err_ctx *err);

#endif
