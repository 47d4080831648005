/* small_model.c - small_model ARCH FILE: writes the small synthetic model of that architecture, for
 * tests of the programs. Two layers; no skew. */
#include <stdio.h>
#include <string.h>

#include "cli/synth/synth.h"
#include "tests/small_shapes.h"

int main(int argc, char **argv)
{
    for (int i = 0; i < N_SMALL_SHAPES && argc == 3; i++) {
        synth_options o = synth_options_of(&small_shapes[i]);
        synth_report r;
        err_ctx err = { 0, "" };
        if (strcmp(small_shapes[i].family->arch, argv[1]) != 0) continue;
        o.n_layer = 2;
        if (synth_write(&r, argv[2], &o, 1, NULL, NULL, &err) == 0) return 0;
        fprintf(stderr, "small_model: %s: %s\n", argv[2], err.msg);
        return 1;
    }
    fputs("usage: small_model ARCH FILE\n", stderr);
    return 2;
}
