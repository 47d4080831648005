/* first_dates.c - a small table; the conversation that was quiet longest makes room. */
#include "cli/serve/first_dates.h"

#include <stdio.h>

/* Of the beginning; *more: the conversation goes on after it. */
static uint64_t key_of(const chat_request *req, bool *more)
{
    uint64_t key = 1;
    int i = 0;
    for (bool user = false; i < req->n_message && !user; i++) {
        const chat_message *m = &req->messages[i];
        user = m->role == CHAT_USER;
        key = (key * 31 + (uint64_t)m->role) * 31 + str_hash(m->content);
    }
    *more = i < req->n_message;
    return key | 1;                      /* 0: an empty place */
}

const char *first_dates_of(first_dates *t, const chat_request *req, const char *today)
{
    bool more;
    const uint64_t key = key_of(req, &more);
    int at = 0;
    for (int i = 0; i < FIRST_DATES; i++) {
        if (t->all[i].key == key) {
            at = i;
            break;
        }
        if (t->all[i].used < t->all[at].used) at = i;
    }
    if (t->all[at].key != key || !more) {
        t->all[at].key = key;
        snprintf(t->all[at].date, sizeof t->all[at].date, "%s", today);
    }
    t->all[at].used = ++t->clock;
    return t->all[at].date;
}
