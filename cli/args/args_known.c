/* args_known.c - three tables: aliases of options, aliases of variables, foreign options.
 *
 * A name belongs here if users of llama.cpp, or of a fork that caches or fetches experts, type it.
 * Options in a verb's table take precedence. */
#include "cli/args/args_known.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const arg_alias aliases[] = {
    { .name = "ctx-size", .ours = "ctx", .type = ARG_INT },
    { .name = "temperature", .ours = "temp", .type = ARG_FLOAT },
    { .name = "n-predict", .ours = "tokens", .type = ARG_INT },
    { .name = "predict", .ours = "tokens", .type = ARG_INT },
    { .name = "repeat-last-n", .ours = "penalty-window", .type = ARG_INT },
    { .name = "system-prompt", .ours = "system", .type = ARG_TEXT },
    { .name = "moe-hot-cache-max-mib", .ours = "expert-cache", .type = ARG_SIZE_OR_AUTO,
      .mib = true },
    { .name = "moe-hot-cache", .ours = "expert-profile", .type = ARG_TEXT },
    { .name = "sys", .ours = "system", .type = ARG_TEXT, .one_dash = true },
    { .name = "cmoe", .ours = "cpu-moe", .type = ARG_FLAG, .one_dash = true },
    { .name = "np", .ours = "parallel", .type = ARG_INT, .one_dash = true },
};

const arg_alias *args_known_alias_at(int i)
{
    return i >= 0 && i < (int)ARRAY_LEN(aliases) ? &aliases[i] : NULL;
}

const arg_alias *args_known_alias(str_view name)
{
    for (size_t i = 0; i < ARRAY_LEN(aliases); i++)
        if (str_is(name, aliases[i].name)) return &aliases[i];
    return NULL;
}

/* The first name that is set is used. */
#define POSTFETCH(name) { "MOE_POSTFETCH_" name, "LLAMA_POSTFETCH_" name }
static const struct variable { const char *ours, *known; } variables[] = {
    POSTFETCH("ENABLE"), POSTFETCH("FORCE_CPU"), POSTFETCH("BLOCK_ON_MISS"),
    POSTFETCH("MAX_TRANSFERS"), POSTFETCH("SCRATCHPAD_MB"), POSTFETCH("DEDICATED_STREAMS"),
    POSTFETCH("DEBUG"),
    { "MOE_POSTFETCH_DEDICATED_STREAMS", "MOE_POSTFETCH_USE_DEDICATED_STREAMS" },
    { "MOE_POSTFETCH_DEDICATED_STREAMS", "LLAMA_POSTFETCH_USE_DEDICATED_STREAMS" },
    /* threads of the CPU's part; here one team does all work of the CPU */
    { "MOE_THREADS", "MOE_POSTFETCH_CPU_LIMIT" },
    { "MOE_THREADS", "LLAMA_POSTFETCH_CPU_LIMIT" },
};

const char *args_known_variable(const char **name, const char *ours)
{
    const char *found = ours, *text = getenv(ours);
    for (size_t i = 0; i < ARRAY_LEN(variables) && !text; i++) {
        if (strcmp(variables[i].ours, ours) != 0) continue;
        found = variables[i].known;
        text = getenv(found);
    }
    *name = found;
    return text;
}

#define PLAN "ignored: the plan places weights; moe-run plan prints it, --vram and --ram limit it"
#define READING "ignored: the plan decides how the file is read"
#define FORMAT "the chat format comes from the file; run --raw uses none"

static const arg_foreign foreign[] = {
    { FOREIGN_VALUE, " -ngl --gpu-layers --n-gpu-layers -ncmoe --n-cpu-moe -ot --override-tensor "
      "-sm --split-mode -ts --tensor-split ", PLAN },
    { FOREIGN_ALONE, " -nkvo --no-kv-offload ", PLAN },
    { FOREIGN_REFUSED, " -mg --main-gpu -dev ", "the first GPU is used; --device cpu uses none" },
    { FOREIGN_ALONE, " --no-mmap --mmap -mmp --mlock --direct-io ", READING },
    { FOREIGN_VALUE, " --numa ", READING },
    { FOREIGN_SWITCH, " -fa --flash-attn ", "ignored: attention is always computed this way" },
    { FOREIGN_ALONE, " --jinja --no-jinja ", "ignored: " FORMAT },
    { FOREIGN_REFUSED, " --chat-template --chat-template-file ", FORMAT },
    { FOREIGN_ALONE, " -no-cnv --no-conversation -st --single-turn ",
      "ignored: moe-run answers one prompt; moe-run chat holds a conversation" },
    { FOREIGN_REFUSED, " -cnv --conversation -i --interactive -if --interactive-first ",
      "use moe-run chat" },
    { FOREIGN_VALUE, " -b --batch-size -ub --ubatch-size ", "ignored: --chunk sets the prompt "
      "tokens per pass" },
    { FOREIGN_REFUSED, " -ctk --cache-type-k -ctv --cache-type-v ", "use --kv f32, f16 or q8_0" },
    { FOREIGN_REFUSED, " -hf --hf-repo -hff --hf-file -mu --model-url ",
      "use moe-run pull NAME, then -m NAME; moe-run models lists names" },
    { FOREIGN_REFUSED, " -sys ", "use --system" },
    { FOREIGN_REFUSED, " -cmoe ", "use --cpu-moe" },
    { FOREIGN_ALONE, " --postfetch-enable ", "ignored: it is on where it pays, and always with "
      "MOE_POSTFETCH_ENABLE=on" },
    { FOREIGN_REFUSED, " -r --reverse-prompt ", "use --stop" },
    { FOREIGN_REFUSED, " -tb --threads-batch ", "use --threads, for prompts and answers" },
    { FOREIGN_REFUSED, " --host --port ", "use --listen ADDRESS:PORT of moe-serve" },
    { FOREIGN_REFUSED, " -np --parallel ", "use --parallel of moe-serve" },
    { FOREIGN_REFUSED, " -md --model-draft --draft --lora ", "not supported" },
    { FOREIGN_REFUSED, " -e --escape ", "escapes are not read; -f FILE reads a prompt of several "
      "lines" },
    { FOREIGN_ALONE, " --color --no-warmup --no-display-prompt --simple-io --log-disable -co ",
      "ignored" },
};

const arg_foreign *args_known_foreign(const char *flag)
{
    char word[40];
    const size_t n = strcspn(flag, "=");
    if (n == 0 || n > sizeof word - 3 || memchr(flag, ' ', n)) return NULL;
    snprintf(word, sizeof word, " %.*s ", (int)n, flag);
    for (size_t i = 0; i < ARRAY_LEN(foreign); i++)
        if (strstr(foreign[i].flags, word)) return &foreign[i];
    return NULL;
}

bool args_known_is_value(const arg_foreign *f, const char *flag, const char *word)
{
    static const char *const switches[] = { "on", "off", "auto", "0", "1" };
    if (!word || strchr(flag, '=')) return false;
    if (f->kind == FOREIGN_VALUE)
        return word[0] != '-' || (word[1] >= '0' && word[1] <= '9');     /* -ngl -1 */
    for (size_t i = 0; i < ARRAY_LEN(switches) && f->kind == FOREIGN_SWITCH; i++)
        if (!strcmp(word, switches[i])) return true;
    return false;
}
