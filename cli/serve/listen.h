/* listen.h - listening sockets, non-blocking: an address and a port, or a file. */
#ifndef CLI_SERVE_LISTEN_H
#define CLI_SERVE_LISTEN_H

#include "loader/base.h"

/* port_wanted 0: any free port. *port: the port. */
int listen_tcp(int *out, int *port, const char *address, int port_wanted, err_ctx *err);

/* Only the file's owner can connect. Replaces a file on which no process listens. */
int listen_unix(int *out, const char *path, err_ctx *err);

#endif
