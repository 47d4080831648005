/* demo_model.h - the demo model, part of the program: a GGUF file of 23 million parameters. */
#ifndef CLI_DEMO_MODEL_H
#define CLI_DEMO_MODEL_H

#include <stddef.h>

#define DEMO_MODEL_NAME "demo model"             /* what messages show in place of a path */

#define DEMO_MODEL_REMARK "no -m given: using the built-in demo model (23 million parameters; it " \
    "writes Victorian nonsense)"

extern const unsigned char demo_model_data[];    /* aligned to 64 bytes */
extern const unsigned char demo_model_end[];     /* the first byte after it */

static inline size_t demo_model_bytes(void)
{
    return (size_t)(demo_model_end - demo_model_data);
}

#endif
