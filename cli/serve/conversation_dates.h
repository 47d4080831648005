/* conversation_dates.h - the date on which a conversation began.
 *
 * Some chat formats put the date at the beginning of the prompt. A conversation that goes on after
 * midnight keeps the date of its first turn, so that its prefix stays cached. Its messages up to
 * the first of the user identify it; a request that ends there begins anew and gets today's date.
 * The table keeps 256 conversations and evicts the least recently used. One thread at a time. */
#ifndef CLI_SERVE_CONVERSATION_DATES_H
#define CLI_SERVE_CONVERSATION_DATES_H

#include "engine/text/chat/chat.h"

enum { CONVERSATION_DATES = 256, CONVERSATION_DATE_CAP = 16 };

typedef struct conversation_dates {      /* begins zeroed */
    struct { uint64_t key, used; char date[CONVERSATION_DATE_CAP]; } entries[CONVERSATION_DATES];
    uint64_t clock;                      /* counts calls */
} conversation_dates;

/* The date for this request; valid until the next call. */
const char *conversation_dates_get(conversation_dates *t, const chat_request *req,
                                   const char *today);

#endif
