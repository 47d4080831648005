/* text_routes.h - /tokenize, /detokenize and /apply-template: tokenizer and chat format over HTTP.
 *
 * Network thread only. Bodies above 256 KiB are refused, so that a call takes milliseconds. */
#ifndef CLI_SERVE_TEXT_ROUTES_H
#define CLI_SERVE_TEXT_ROUTES_H

#include "cli/serve/server_context.h"

enum { TEXT_TOKENIZE, TEXT_DETOKENIZE, TEXT_TEMPLATE };
void text_route(server_context *c, http_exchange *x, int action);

#endif
