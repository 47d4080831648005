/* small_shapes.h - small synthetic models of families: a few megabytes, with a whole vocabulary.
 * All have embeddings of 1,024 channels and at most 64 experts. */
#ifndef TESTS_SMALL_SHAPES_H
#define TESTS_SMALL_SHAPES_H

#include "cli/synth/synth_family.h"

enum { N_SMALL_SHAPES = 6 };
extern const synth_shape small_shapes[N_SMALL_SHAPES];

#endif
