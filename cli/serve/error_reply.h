/* error_reply.h - an error as the whole response: its status, and the error object of the client's
 * API. Any thread that may answer the exchange. */
#ifndef CLI_SERVE_ERROR_REPLY_H
#define CLI_SERVE_ERROR_REPLY_H

#include "cli/serve/api.h"
#include "cli/serve/http.h"

/* Adds Retry-After to 503 and 529 and WWW-Authenticate to 401. The log line ends with the
 * error's message. */
void error_reply(http_exchange *x, api_kind kind, const api_error *error);

/* The same for an error of this type and text. */
void error_reply_text(http_exchange *x, api_kind kind, api_error_type type, const char *text);

#endif
