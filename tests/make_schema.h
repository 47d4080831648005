/* make_schema.h - random JSON schemas and who judges values by them, for tests of grammars. */
#ifndef TESTS_MAKE_SCHEMA_H
#define TESTS_MAKE_SCHEMA_H

#include <jansson.h>

#include "tests/test.h"

enum { SCHEMA_N_NAME = 9 };
extern const char *const schema_names[SCHEMA_N_NAME];    /* of properties, in the schemas' order */

/* An object's schema with $defs/t, which it may refer to. */
json_t *schema_random(test_rng *rng);

/* Puts in what schema_random leaves out: oneOf, lists of types, formats, bounds that are not there.
 * What a model that talks nonsense has written by this schema comes to an end. */
void schema_widen(test_rng *rng, json_t *s);

/* Does the value have the schema's form? Knows the keywords that these two use. strict as in
 * grammar_from_schema. root has the $defs. */
bool schema_valid(const json_t *s, const json_t *v, const json_t *root, bool strict);

bool schema_lists(const json_t *list, const char *name); /* is the name in the array? */

#endif
