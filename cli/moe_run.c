/* moe_run.c - main of moe-run: everything about one model. */
#include "cli/commands.h"

#include <stdio.h>
#include <unistd.h>

#include "cli/console.h"

static const char welcome[] =
    "moe-run runs Mixture-of-Experts language models from GGUF files.\n"
    "\n"
    "Try the small built-in model:\n"
    "  moe-run -p \"Tell me a story.\" -n 200\n"
    "\n"
    "With a model of your own:\n"
    "  moe-run -m model.gguf -p \"Why is the sky blue?\"\n"
    "  moe-run chat -m model.gguf     hold a conversation\n"
    "  moe-run inspect model.gguf     print contents and sizes of the file\n"
    "  moe-run plan -m model.gguf     print the placement in memory and the expected speed\n"
    "  moe-run models                 list public model files\n"
    "  moe-run pull gpt-oss-20b       download one of them; then -m gpt-oss-20b\n"
    "\n"
    "moe-run --help lists the verbs, moe-run run --help the options of an answer.\n";

static const command ops_table[] = {
    {"run", "Answers a prompt; the verb may be left out", cmd_run},
    {"chat", "Holds a conversation with line editing, commands and saved chats", cmd_chat},
    {"serve", "Serves clients of OpenAI, Anthropic and Ollama, as moe-serve does", cmd_serve},
    {"inspect", "Prints the architecture, sizes, types and tokenizer of a GGUF file", cmd_inspect},
    {"plan", "Prints what goes into VRAM, RAM and drive, and the expected speed", cmd_plan},
    {"tokenize", "Converts text to token ids and back", cmd_tokenize},
    {"render", "Converts a chat request to its prompt, and an answer to its parts", cmd_render},
    {"models", "Lists public model files: addresses, sizes, checksums", cmd_models},
    {"pull", "Downloads one of them", cmd_pull},
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
