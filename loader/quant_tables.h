/* quant_tables.h - the codebooks of the IQ1, IQ2 and IQ3 formats; quant_tables.c is the only copy.
 *
 * A row is one number: byte k of it (k = 0 lowest) is column k. IQ2 and IQ3 rows hold magnitudes,
 * IQ1 rows -1, 0 and 1 as signed bytes. The tables are part of the file format; no formula gives
 * them. They were made by the ggml authors and come from llama.cpp (MIT licence). */
#ifndef LOADER_QUANT_TABLES_H
#define LOADER_QUANT_TABLES_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

extern const uint64_t quant_grid_iq1[2048];      /* IQ1_S and IQ1_M */
extern const uint64_t quant_grid_iq2_xxs[256];
extern const uint64_t quant_grid_iq2_xs[512];
extern const uint64_t quant_grid_iq2_s[1024];
extern const uint32_t quant_grid_iq3_xxs[256];
extern const uint32_t quant_grid_iq3_s[512];

#ifdef __cplusplus
}
#endif
#endif
