/* bench_cache.c - moe-bench cache: the two verbs about caches of experts, and what they are for. */
#include "cli/commands.h"

#include <stdio.h>
#include <string.h>

#include "cli/console.h"
#include "loader/base.h"

static const command verbs[] = {
    { "record", "Runs a model and writes which experts every token chose", cmd_bench_cache_record },
    { "replay", "Tells what caches of several sizes would have made of that",
      cmd_bench_cache_replay },
};

static int print_help(void)
{
    printf("Usage: moe-bench cache VERB [options]\n"
           "Which experts tokens really choose, and how well a cache of experts would serve "
           "them.\n");
    for (size_t i = 0; i < ARRAY_LEN(verbs); i++)
        printf("  %-11s %s\n", verbs[i].name, verbs[i].about);
    printf("\nRecord once, with a text like those the model will see; replay as often as you like, "
           "on any\nmachine: a trace has sizes and choices in it, no weights and no text.\n\n"
           "A model whose experts do not all fit has some of them in VRAM and the others in RAM, "
           "or some in\nRAM and the others on a drive. Which ones is decided by a policy, from "
           "what was used before:\n\n"
           "  lru     keeps what was used last\n"
           "  lfu     keeps what was used most often\n"
           "  lfru    half of the places for the last used, the others by how often\n"
           "  lcp     how often, quartered with every 128 tokens since the last use\n"
           "  fade    how often of late: every use counts half after 128 tokens\n"
           "  best    none can do better: it knows the tokens to come (Belady)\n"
           "  fixed   no policy: the first layers' experts, as plans do without a cache\n\n"
           "moe-bench cache VERB --help tells more about each.\n\n"
           "Examples:\n"
           "  moe-bench cache record -m model.gguf -o trace --text book.txt -p 1000 -n 512\n"
           "  moe-bench cache replay trace\n"
           "  moe-bench cache replay trace -m model.gguf --mode both --svg plot.svg\n");
    return console_finish();
}

int cmd_bench_cache(int argc, char **argv)
{
    if (argc < 2) {
        console_error("record or replay? (moe-bench cache --help tells about both)");
        return 2;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) return print_help();
    for (size_t i = 0; i < ARRAY_LEN(verbs); i++)
        if (!strcmp(argv[1], verbs[i].name)) return verbs[i].run(argc - 1, argv + 1);
    console_error("cache: '%s' is neither record nor replay (moe-bench cache --help tells about "
                  "both)", argv[1]);
    return 2;
}
