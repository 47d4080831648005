/* textbuf_json.h - writes JSON values as text on one line.
 *
 * Two styles exist, those of the programs that wrote the models' training data: Python's json.dumps
 * ("a": 1, "b": 1e-05) and Rust's serde ("a":1,"b":1e-5). Both keep the order of keys and do not
 * escape non-ASCII characters. A textbuf remembers a failed allocation; textbuf_check reports it. */
#ifndef ENGINE_TEXT_TEXTBUF_JSON_H
#define ENGINE_TEXT_TEXTBUF_JSON_H

#include <jansson.h>

#include "loader/base.h"

typedef enum json_style { JSON_SPACED, JSON_TIGHT } json_style;

void textbuf_json(textbuf *b, const json_t *v, json_style style);
void textbuf_json_string(textbuf *b, str_view s);        /* with the quotes */
void textbuf_python(textbuf *b, const json_t *v);        /* a value as Python's str() writes it */

int textbuf_check(const textbuf *b, err_ctx *err);       /* ERR_NOMEM if an allocation failed */

/* v in the spaced style, terminated; *len does not count the terminator. Free *out with mem_free.
 * Returns 0, or < 0 with *err filled and *out NULL. */
int textbuf_json_text(char **out, size_t *len, const json_t *v, err_ctx *err);

#endif
