/* moe_run.c - main of moe-run: everything about one model. */
#include "cli/commands.h"

#include "loader/base.h"

static const command verbs[] = {
    { "inspect", "What a GGUF file holds: architecture, sizes, types, tokenizer", cmd_inspect },
    { "tokenize", "Text to token ids and back", cmd_tokenize },
    { "render", "Chat messages to the exact prompt, and an answer back to its parts", cmd_render },
    { "models", "Public model files that are known to work", cmd_models },
};

int main(int argc, char **argv)
{
    return commands_main("moe-run",
                         "Runs big Mixture-of-Experts models from GGUF files on ordinary machines.",
                         "\nExamples:\n"
                         "  moe-run inspect model.gguf\n"
                         "  moe-run tokenize -m model.gguf --text \"Hello world\"\n"
                         "  moe-run models\n",
                         verbs, ARRAY_LEN(verbs), argc, argv);
}
