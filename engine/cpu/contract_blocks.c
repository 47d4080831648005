/* contract_blocks.c - the unpackers of contract_blocks_body.h for the reference. */
#include "engine/cpu/contract_blocks_body.h"

const block_format *contract_blocks_of(uint32_t type)
{
    return type < QT_COUNT && block_formats[type].unpack ? &block_formats[type] : NULL;
}
