/* listen.h - sockets to listen on: an address and a port, or a file. They do not block. */
#ifndef CLI_SERVE_LISTEN_H
#define CLI_SERVE_LISTEN_H

#include "loader/base.h"

/* wanted 0: any port that is free; which one is in *port. */
int listen_tcp(int *out, int *port, const char *address, int wanted, err_ctx *err);

/* Only the owner can connect. A file that nobody listens on any more is replaced. */
int listen_unix(int *out, const char *path, err_ctx *err);

#endif
