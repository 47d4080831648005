/* page.h - the files of the page at /, which are part of the program.
 *
 * They hold nothing about the model or the machine, so they need no key; the page asks for its
 * data with one. A browser revalidates a file at each use. Its Content-Security-Policy allows
 * scripts and connections of this server only. */
#ifndef CLI_SERVE_PAGE_H
#define CLI_SERVE_PAGE_H

#include "cli/serve/http.h"

typedef enum page_file { PAGE_HTML, PAGE_STYLE, PAGE_SCRIPT } page_file;

void page_send(http_exchange *x, page_file file);        /* network threads */

#endif
