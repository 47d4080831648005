/* live.h - what the engine does, as it does it, for whoever watches: /moe-events.
 *
 * A watcher's stream begins with one event about model and plan; then come, at most five times a
 * second and only if something has changed, counts, rates, and where every expert is. While nobody
 * watches nothing is looked at. A thread of its own asks the engine's for a look (desk_call), which
 * copies some numbers; all else, down to the text, is done here. Watchers that do not read miss
 * events, and nobody waits for them. */
#ifndef CLI_SERVE_LIVE_H
#define CLI_SERVE_LIVE_H

#include "cli/serve/desk.h"

typedef struct live live;

/* Of this desk's model, which is described here and now. Borrows both, and the name. */
int live_open(live **out, desk *d, const model_handle *h, const session *s, const char *name,
              err_ctx *err);

/* Takes an exchange, and answers it in any case. From the network's thread. */
void live_take(live *v, http_exchange *x);

/* Ends all streams. Before desk_close; NULL is fine, as for the next. */
void live_close(live *v);
void live_free(live *v);                 /* closed, and nobody knows it any more */

#endif
