/* reader_uring_stub.c - replaces reader_uring.c if there is no liburing. Only start is called. */
#include "tiers/reader_internal.h"

static int uring_start(void **self, int depth, int *room, err_ctx *err)
{
    (void)depth;
    *self = NULL;
    *room = 0;
    return err_set(err, ERR_UNSUPPORTED, "this build has no io_uring");
}

const reader_backend reader_uring = {
    .name = "io_uring", .depth = READER_DEPTH, .built = false, .start = uring_start,
};
