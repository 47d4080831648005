/* fetch_stub.c - fetch.h where the program was built without libcurl. */
#include "cli/pull/fetch.h"

const char *fetch_missing(void)
{
    return "this program was built without libcurl: install libcurl4-openssl-dev and run make "
           "again, or download the file with another program";
}

bool fetch_is_base(const char *text)
{
    (void)text;
    return false;
}

bool fetch_may_send_token(const char *url)
{
    (void)url;
    return false;
}

int fetch_get(fetch_head *head, bool *again, const fetch_request *r, err_ctx *err)
{
    (void)r;
    *head = (fetch_head){ .status = 0 };
    *again = false;
    return err_set(err, ERR_UNSUPPORTED, "%s", fetch_missing());
}
