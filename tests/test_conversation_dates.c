/* test_conversation_dates.c - a conversation keeps the date of its first turn; a new one has today's. */
#include "tests/test.h"

#include <stdio.h>
#include <string.h>

#include "cli/serve/conversation_dates.h"

static conversation_dates table;

/* The date of a conversation that began with this and has so many messages. */
static const char *date_of(const char *system, const char *said, int n, const char *today)
{
    const chat_message all[] = {
        { .role = CHAT_SYSTEM, .content = str_from(system) },
        { .role = CHAT_USER, .content = str_from(said) },
        { .role = CHAT_ASSISTANT, .content = str_from("Yes.") },
        { .role = CHAT_USER, .content = str_from("And then?") },
    };
    const chat_request req = { .messages = all, .n_message = n };
    return conversation_dates_get(&table, &req, today);
}

#define IS(date, ...) CHECK_MSG(!strcmp(date_of(__VA_ARGS__), date), "%s", #__VA_ARGS__)

int main(int argc, char **argv)
{
    char said[32];
    test_begin("conversation_dates", argc, argv);
    IS("2026-01-01", "Be kind.", "Hello", 2, "2026-01-01");
    IS("2026-01-01", "Be kind.", "Hello", 4, "2026-01-02");      /* after midnight */
    IS("2026-01-01", "Be kind.", "Hello", 4, "2026-01-03");
    IS("2026-01-02", "Be kind.", "Good day", 4, "2026-01-02");   /* others */
    IS("2026-01-02", "Be brief.", "Hello", 4, "2026-01-02");
    IS("2026-01-03", "Be kind.", "Hello", 2, "2026-01-03");      /* begun anew */
    IS("2026-01-03", "Be kind.", "Hello", 4, "2026-01-04");
    IS("2026-01-05", "Be kind.", "Hello", 0, "2026-01-05");      /* nothing at all */
    for (int i = 0; i < CONVERSATION_DATES - 1; i++) {
        snprintf(said, sizeof said, "%d", i);
        IS("2026-01-06", "Be kind.", said, 2, "2026-01-06");
        IS("2026-01-03", "Be kind.", "Hello", 4, "2026-01-07");  /* in use: it stays */
    }
    snprintf(said, sizeof said, "%d", CONVERSATION_DATES - 1);
    IS("2026-01-06", "Be kind.", said, 2, "2026-01-06");
    IS("2026-01-08", "Be kind.", "0", 4, "2026-01-08");          /* forgotten */
    return test_end();
}
