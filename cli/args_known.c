/* args_known.c - two tables: other names for our options, and flags that need no counterpart.
 *
 * A name belongs here if someone who comes from llama.cpp would type it. Options of our own are in
 * the verbs' tables and win over these. */
#include "cli/args_known.h"

#include <stdio.h>
#include <string.h>

static const struct alias { const char *name, *ours; arg_type type; } aliases[] = {
    { "ctx-size", "ctx", ARG_INT }, { "temperature", "temp", ARG_FLOAT },
    { "n-predict", "tokens", ARG_INT }, { "predict", "tokens", ARG_INT },
    { "repeat-last-n", "penalty-window", ARG_INT }, { "system-prompt", "system", ARG_TEXT },
};

const char *args_known_alias_at(int i)
{
    return i >= 0 && i < (int)ARRAY_LEN(aliases) ? aliases[i].name : NULL;
}

const char *args_known_alias(str_view name, arg_type *type)
{
    for (size_t i = 0; i < ARRAY_LEN(aliases); i++) {
        if (!str_is(name, aliases[i].name)) continue;
        *type = aliases[i].type;
        return aliases[i].ours;
    }
    return NULL;
}

#define PLAN "not needed here; the plan decides what goes where: moe-run plan shows it, --vram " \
             "and --ram bound it"

/* Flags with a blank before and after each, and what to say about them. */
static const struct foreign { const char *flags, *advice; } foreign[] = {
    { " -ngl --gpu-layers --n-gpu-layers -ncmoe --n-cpu-moe -cmoe --cpu-moe -ot --override-tensor "
      "-sm --split-mode -ts --tensor-split -mg --main-gpu -nkvo --no-kv-offload -dev ", PLAN },
    { " --no-mmap --mmap -mmp --mlock --numa --direct-io ",
      "not needed here; the plan decides how the file is read" },
    { " -fa --flash-attn ", "not needed here; attention is always computed that way" },
    { " --jinja --no-jinja --chat-template --chat-template-file ",
      "not needed here; the chat format is recognised from the file (run --raw leaves it out)" },
    { " -no-cnv --no-conversation -st --single-turn ",
      "not needed here; moe-run answers once, moe-run chat goes on" },
    { " -cnv --conversation -i --interactive -if --interactive-first ",
      "use the verb: moe-run chat" },
    { " -b --batch-size -ub --ubatch-size ", "not needed here; --chunk bounds the tokens of a "
      "prompt that are computed at a time" },
    { " -ctk --cache-type-k -ctv --cache-type-v ", "use --kv f32, f16 or q8_0" },
    { " -hf --hf-repo -hff --hf-file -mu --model-url ",
      "nothing is downloaded here; moe-run models lists files and where to get them" },
    { " -sys ", "use --system" },
    { " -r --reverse-prompt ", "use --stop" },
    { " -tb --threads-batch ", "use --threads, for prompts and answers" },
    { " -md --model-draft --draft --lora -np --parallel ", "there is no such thing here yet" },
    { " --color --no-warmup --no-display-prompt --simple-io --log-disable -e --escape -co ",
      "not needed here: leave it out" },
};

const char *args_known_foreign(const char *flag)
{
    char word[40];
    const size_t n = strcspn(flag, "=");
    if (n == 0 || n > sizeof word - 3 || memchr(flag, ' ', n)) return NULL;
    snprintf(word, sizeof word, " %.*s ", (int)n, flag);
    for (size_t i = 0; i < ARRAY_LEN(foreign); i++)
        if (strstr(foreign[i].flags, word)) return foreign[i].advice;
    return NULL;
}
