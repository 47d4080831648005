/* conversation_dates.c - a table of 256 entries, searched from the first to the last. */
#include "cli/serve/conversation_dates.h"

#include <stdio.h>

/* Of the messages up to the first of the user. *continues: others follow. Never 0, the key of an
 * empty entry. */
static uint64_t key_of(const chat_request *req, bool *continues)
{
    uint64_t key = 1;
    int i = 0;
    for (bool user = false; i < req->n_message && !user; i++) {
        const chat_message *m = &req->messages[i];
        user = m->role == CHAT_USER;
        key = (key * 31 + (uint64_t)m->role) * 31 + str_hash(m->content);
    }
    *continues = i < req->n_message;
    return key | 1;
}

const char *conversation_dates_get(conversation_dates *t, const chat_request *req,
                                   const char *today)
{
    bool continues;
    const uint64_t key = key_of(req, &continues);
    int entry = 0;
    for (int i = 0; i < CONVERSATION_DATES; i++) {
        if (t->entries[i].key == key) {
            entry = i;
            break;
        }
        if (t->entries[i].used < t->entries[entry].used) entry = i;
    }
    if (t->entries[entry].key != key || !continues) {
        t->entries[entry].key = key;
        snprintf(t->entries[entry].date, CONVERSATION_DATE_CAP, "%s", today);
    }
    t->entries[entry].used = ++t->clock;
    return t->entries[entry].date;
}
