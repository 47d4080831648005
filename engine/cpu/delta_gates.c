/* delta_gates.c - the gates of a DeltaNet head, in double, because a decay near 1 is raised to the
 * power of the context. Speed does not matter: one call for each head and token. */
#include <math.h>

#include "engine/cpu/deltanet.h"

float sigmoid_f32(float x) { return (float)(1.0 / (1.0 + exp(-(double)x))); }

float delta_decay(float alpha, float dt_bias, float a)
{
    const double x = (double)alpha + dt_bias;
    return (float)((x > 20.0 ? x : log1p(exp(x))) * a);
}
