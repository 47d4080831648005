/* page.h - the page at /: its files, which are part of the program.
 *
 * They hold nothing about the model or the machine, so they are sent without a key; what the page
 * shows it asks for with one. A browser asks each time whether a file is still the same, and may
 * run and load nothing that is not from here. */
#ifndef CLI_SERVE_PAGE_H
#define CLI_SERVE_PAGE_H

#include "cli/serve/http.h"

typedef enum page_file { PAGE_HTML, PAGE_STYLE, PAGE_SCRIPT } page_file;

void page_send(http_exchange *x, page_file which);       /* from the network's thread */

#endif
