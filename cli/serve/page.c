/* page.c - files of the page to answers. */
#include "cli/serve/page.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

extern const char page_html[], page_html_end[], page_style[], page_style_end[];
extern const char page_script[], page_script_end[];

static const struct { const char *from, *end, *type; } files[] = {
    [PAGE_HTML] = { page_html, page_html_end, "text/html; charset=utf-8" },
    [PAGE_STYLE] = { page_style, page_style_end, "text/css; charset=utf-8" },
    [PAGE_SCRIPT] = { page_script, page_script_end, "text/javascript; charset=utf-8" },
};

static const char policy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/* FNV-1a: it tells files of two builds apart, and that is all. */
static uint64_t hash_of(const char *from, const char *end)
{
    uint64_t h = 0xcbf29ce484222325;
    for (const char *p = from; p < end; p++) h = (h ^ (unsigned char)*p) * 0x100000001b3;
    return h;
}

void page_send(http_exchange *x, page_file which)
{
    const char *from = files[which].from, *end = files[which].end;
    const char *known = http_header(x, "If-None-Match");
    char tag[24];
    snprintf(tag, sizeof tag, "\"%016" PRIx64 "\"", hash_of(from, end));
    http_add_header(x, "ETag", tag);
    http_add_header(x, "Cache-Control", "no-cache");
    http_add_header(x, "Content-Security-Policy", policy);
    http_add_header(x, "X-Content-Type-Options", "nosniff");
    http_add_header(x, "Referrer-Policy", "no-referrer");
    if (known && strstr(known, tag)) http_reply(x, 304, NULL, NULL, 0);
    else http_reply(x, 200, files[which].type, from, (size_t)(end - from));
}
