/* error_reply.c - calls the exchange and the API's error object; no route and no queue. */
#include "cli/serve/error_reply.h"

void error_reply(http_exchange *x, api_kind kind, const api_error *error)
{
    char *body = api_error_body(error, kind, http_id(x));
    if (error->status == 401) http_add_header(x, "WWW-Authenticate", "Bearer");
    if (error->status == 503 || error->status == 529) http_add_header(x, "Retry-After", "1");
    http_remark(x, error->message);
    http_reply_json(x, error->status, body);
    mem_free(body);
}

void error_reply_text(http_exchange *x, api_kind kind, api_error_type type, const char *text)
{
    api_error error;
    api_error_make(&error, type, kind, "%s", text);
    error_reply(x, kind, &error);
}
