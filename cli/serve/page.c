/* page.c - sends a file with its ETag and its Content-Security-Policy. */
#include "cli/serve/page.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

extern const char page_html[], page_html_end[], page_style[], page_style_end[];
extern const char page_script[], page_script_end[];

static const struct { const char *begin, *end, *type; } files[] = {
    [PAGE_HTML] = { page_html, page_html_end, "text/html; charset=utf-8" },
    [PAGE_STYLE] = { page_style, page_style_end, "text/css; charset=utf-8" },
    [PAGE_SCRIPT] = { page_script, page_script_end, "text/javascript; charset=utf-8" },
};

static const char policy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/* FNV-1a; tells files of two builds apart. */
static uint64_t hash_of(const char *begin, const char *end)
{
    uint64_t h = 0xcbf29ce484222325;
    for (const char *p = begin; p < end; p++) h = (h ^ (unsigned char)*p) * 0x100000001b3;
    return h;
}

void page_send(http_exchange *x, page_file file)
{
    const char *begin = files[file].begin, *end = files[file].end;
    const char *cached_tag = http_header(x, "If-None-Match");
    char tag[24];
    snprintf(tag, sizeof tag, "\"%016" PRIx64 "\"", hash_of(begin, end));
    http_add_header(x, "ETag", tag);
    http_add_header(x, "Cache-Control", "no-cache");
    http_add_header(x, "Content-Security-Policy", policy);
    http_add_header(x, "X-Content-Type-Options", "nosniff");
    http_add_header(x, "Referrer-Policy", "no-referrer");
    if (cached_tag && strstr(cached_tag, tag)) http_reply(x, 304, NULL, NULL, 0);
    else http_reply(x, 200, files[file].type, begin, (size_t)(end - begin));
}
