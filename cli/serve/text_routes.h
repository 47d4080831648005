/* text_routes.h - what the tokenizer and the chat format make of a text, for those who look for
 * mistakes: /tokenize, /detokenize, /apply-template. On the network's thread alone. */
#ifndef CLI_SERVE_TEXT_ROUTES_H
#define CLI_SERVE_TEXT_ROUTES_H

#include "cli/serve/route.h"

enum { TEXT_TOKENIZE, TEXT_DETOKENIZE, TEXT_TEMPLATE };
void text_route(server_context *c, http_exchange *x, int which);

#endif
