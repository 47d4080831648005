/* moe_run.c - main of moe-run: everything about one model. */
#include "cli/commands.h"

#include <stdio.h>
#include <unistd.h>

#include "cli/console.h"

static const char welcome[] =
    "moe-run runs Mixture-of-Experts language models from GGUF files.\n"
    "\n"
    "Try it now, with the small model that is built in:\n"
    "  moe-run -p \"Tell me a story.\" -n 200\n"
    "\n"
    "With a model of your own:\n"
    "  moe-run -m model.gguf -p \"Why is the sky blue?\"\n"
    "  moe-run chat -m model.gguf     talk back and forth\n"
    "  moe-run inspect model.gguf     what is in the file, and how much memory it takes\n"
    "  moe-run plan -m model.gguf     what would go where, and how fast it should be\n"
    "  moe-run models                 public model files, and where to get them\n"
    "  moe-run pull gpt-oss-20b       download one of them; then -m gpt-oss-20b\n"
    "\n"
    "moe-run --help lists the verbs, moe-run run --help every option of an answer.\n";

static const command ops_table[] = {
    { "run", "Answers a prompt; the verb may be left out", cmd_run },
    { "chat", "A conversation: line editing, commands, chats that can be saved", cmd_chat },
    { "serve", "A server for clients of OpenAI, Anthropic and Ollama: moe-serve", cmd_serve },
    { "inspect", "What a GGUF file holds: architecture, sizes, types, tokenizer", cmd_inspect },
    { "plan", "What would go into VRAM and RAM, and the speed to expect", cmd_plan },
    { "tokenize", "Text to token ids and back", cmd_tokenize },
    { "render", "Chat messages to the exact prompt, and an answer back to its parts", cmd_render },
    { "models", "Public model files: addresses, sizes, checksums", cmd_models },
    { "pull", "Downloads one of them", cmd_pull },
};

int main(int argc, char **argv)
{
    if (argc < 2 && isatty(1)) {
        fputs(welcome, stdout);
        return console_finish();
    }
    return commands_main("moe-run",
                         "Runs big Mixture-of-Experts models from GGUF files on ordinary machines.",
                         "\nExamples:\n"
                         "  moe-run -m model.gguf -p \"Why is the sky blue?\"\n"
                         "  moe-run -p \"Tell me a story.\" -n 200   (the built-in demo model)\n"
                         "  moe-run inspect model.gguf\n"
                         "  moe-run tokenize -m model.gguf --text \"Hello world\"\n"
                         "  moe-run models\n"
                         "\nSee also: moe-bench measures speed, moe-quant converts weights.\n",
                         ops_table, ARRAY_LEN(ops_table), argc, argv);
}
