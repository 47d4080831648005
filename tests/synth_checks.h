/* synth_checks.h - what tests of synthetic files share. */
#ifndef TESTS_SYNTH_CHECKS_H
#define TESTS_SYNTH_CHECKS_H

#include "cli/synth/synth.h"
#include "cli/synth/synth_family.h"
#include "engine/models/model.h"

/* The whole file; NULL after a failed check. */
uint8_t *synth_fill_all(const synth_options *o, size_t *bytes);

/* Each allocation of a plan fails once: an error, and no leak, which the sanitizer would see. */
void synth_check_no_memory(const synth_options *o);

bool synth_in_block(const tensor *t, int l);     /* by its name */

/* All tensors are in use, but perhaps those of a next-token block, which follows n_layer layers. */
void synth_check_used(const model *m, const gguf *g, const synth_shape *s, int n_layer);

/* Whether a model could be bound; one of an architecture that the engine does not know yet is
 * skipped. */
bool synth_bind(model **m, const gguf *g, const char *what);

#endif
