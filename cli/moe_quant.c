/* moe_quant.c - main of moe-quant: a model file in other weight types. */
#include "cli/commands.h"

int main(int argc, char **argv)
{
    if (commands_begin("moe-quant") != 0) return 2;
    return commands_asks_version(argc, argv) ? commands_version("moe-quant") : cmd_quant(argc, argv);
}
