/* moe_serve.c - main of moe-serve: a model over HTTP. */
#include "cli/commands.h"

int main(int argc, char **argv)
{
    if (commands_begin("moe-serve") != 0) return 2;
    if (commands_asks_version(argc, argv)) return commands_version("moe-serve");
    return cmd_serve(argc, argv);
}
