/* first_dates.h - on which day a conversation began.
 *
 * Some formats tell the model the date, at the very beginning of the prompt. A conversation that
 * goes on after midnight keeps the date of its first turn: else nothing that was computed for it
 * could be used again. It is known by its beginning, up to the first thing that the user said; what
 * begins anew has today's date, whoever said the same before. One thread at a time. */
#ifndef CLI_SERVE_FIRST_DATES_H
#define CLI_SERVE_FIRST_DATES_H

#include "engine/text/chat/chat.h"

enum { FIRST_DATES = 256, FIRST_DATE_CAP = 16 };

typedef struct first_dates {             /* begins zeroed */
    struct { uint64_t key, used; char date[FIRST_DATE_CAP]; } all[FIRST_DATES];
    uint64_t clock;
} first_dates;

/* The date for this request; good until the next call. */
const char *first_dates_of(first_dates *t, const chat_request *req, const char *today);

#endif
