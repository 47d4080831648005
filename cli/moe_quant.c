/* moe_quant.c - main of moe-quant: a model file in other weight types. */
#include "cli/commands.h"

int main(int argc, char **argv)
{
    if (commands_begin("moe-quant") != 0) return 2;
    if (commands_asks_version(argc, argv)) return commands_version("moe-quant");
    return cmd_quant(argc, argv);
}
