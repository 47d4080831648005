/* conversation.c - the message list of a chat and its JSON.
 *
 * Invariant: [system] (user assistant)* [user]; every text is owned, valid UTF-8 and terminated.
 * engine/text/chat/chat.h renders messages; session_save writes the JSON with the state. */
#include "cli/chat/conversation.h"

#include <stdio.h>
#include <string.h>

#include "cli/console.h"

/* ---- messages ------------------------------------------------------------------------------ */

static void message_release(chat_message *m)
{
    mem_free((char *)m->content.ptr);
    mem_free((char *)m->reasoning.ptr);
    *m = (chat_message){ 0 };
}

static int copy_text(str_view *out, str_view text, err_ctx *err)
{
    char *p;
    const int rc = text_check_utf8(text, err);
    if (rc < 0) return rc;
    if (!(p = mem_strdup_n(text.len ? text.ptr : "", text.len)))
        return err_set(err, ERR_NOMEM, "out of memory for a message of %zu bytes", text.len);
    *out = (str_view){ p, text.len };
    return 0;
}

static int message_init(chat_message *out, chat_role role, str_view content, str_view reasoning,
                        err_ctx *err)
{
    int rc;
    *out = (chat_message){ .role = role };
    if ((rc = copy_text(&out->content, content, err)) < 0 ||
        (rc = copy_text(&out->reasoning, reasoning, err)) < 0)
        message_release(out);
    return rc;
}

/* Room for one more message. */
static int reserve(conversation *c, err_ctx *err)
{
    chat_message *p = mem_grow(c->messages, c->n_message, &c->cap, sizeof *p);
    if (!p) return err_set(err, ERR_NOMEM, "out of memory for %d messages", c->n_message + 1);
    c->messages = p;
    return 0;
}

static bool has_system(const conversation *c)
{
    return c->n_message > 0 && c->messages[0].role == CHAT_SYSTEM;
}

static void drop_last(conversation *c)
{
    message_release(&c->messages[--c->n_message]);
}

void conversation_release(conversation *c)
{
    while (c->n_message > 0) drop_last(c);
    mem_free(c->messages);
    *c = (conversation){ 0 };
}

int conversation_set_system(conversation *c, str_view text, err_ctx *err)
{
    chat_message m = { 0 };
    int rc;

    if (text.len) {
        if ((rc = message_init(&m, CHAT_SYSTEM, text, (str_view){ 0 }, err)) < 0) return rc;
        if ((rc = reserve(c, err)) < 0) {
            message_release(&m);
            return rc;
        }
    }
    if (has_system(c)) {
        message_release(&c->messages[0]);
        c->n_message--;
        memmove(c->messages, c->messages + 1, (size_t)c->n_message * sizeof m);
    }
    if (text.len) {
        memmove(c->messages + 1, c->messages, (size_t)c->n_message * sizeof m);
        c->messages[0] = m;
        c->n_message++;
    }
    return 0;
}

int conversation_ask(conversation *c, str_view text, err_ctx *err)
{
    chat_message m;
    int rc;
    if ((rc = reserve(c, err)) < 0 ||
        (rc = message_init(&m, CHAT_USER, text, (str_view){ 0 }, err)) < 0)
        return rc;
    if (conversation_is_open(c)) drop_last(c);
    c->messages[c->n_message++] = m;
    return 0;
}

int conversation_answer(conversation *c, str_view content, str_view reasoning, err_ctx *err)
{
    chat_message m;
    int rc;
    if (!conversation_is_open(c)) return err_set(err, ERR_RANGE, "no question is open");
    if ((rc = reserve(c, err)) < 0 ||
        (rc = message_init(&m, CHAT_ASSISTANT, content, reasoning, err)) < 0)
        return rc;
    c->messages[c->n_message++] = m;
    return 0;
}

bool conversation_is_open(const conversation *c)
{
    return c->n_message > 0 && c->messages[c->n_message - 1].role == CHAT_USER;
}

int conversation_n_question(const conversation *c)
{
    return (c->n_message - has_system(c) + 1) / 2;
}

bool conversation_reopen(conversation *c, chat_message *answer)
{
    *answer = (chat_message){ 0 };
    if (conversation_n_question(c) == 0) return false;
    if (!conversation_is_open(c)) *answer = c->messages[--c->n_message];
    return true;
}

bool conversation_put_back(conversation *c, chat_message *answer)
{
    const bool wanted = answer->content.ptr && conversation_is_open(c);
    if (wanted) c->messages[c->n_message++] = *answer;   /* the array has room */
    else message_release(answer);
    *answer = (chat_message){ 0 };
    return wanted;
}

bool conversation_undo(conversation *c)
{
    if (conversation_n_question(c) == 0) return false;
    if (!conversation_is_open(c)) drop_last(c);
    drop_last(c);
    return true;
}

void conversation_reset(conversation *c)
{
    while (conversation_undo(c)) continue;
}

/* ---- to text ------------------------------------------------------------------------------- */

static const char kind[] = "moe-run chat";
enum { VERSION = 1 };

static const char *role_name(chat_role role)
{
    return role == CHAT_SYSTEM ? "system" : role == CHAT_USER ? "user" : "assistant";
}

static json_t *message_json(const chat_message *m)
{
    json_t *v = json_pack("{s:s, s:s%}", "role", role_name(m->role),
                          "content", m->content.ptr, m->content.len);
    if (v && m->role == CHAT_ASSISTANT && m->reasoning.len &&
        json_object_set_new(v, "reasoning",
                            json_stringn(m->reasoning.ptr, m->reasoning.len)) != 0) {
        json_decref(v);
        return NULL;
    }
    return v;
}

static json_t *messages_json(const conversation *c)
{
    json_t *list = json_array();
    for (int i = 0; i < c->n_message; i++)
        list = console_append(list, message_json(&c->messages[i]));
    return list;
}

int conversation_write(char **out, size_t *len, const conversation *c,
                       const conversation_settings *s, err_ctx *err)
{
    const sampler_options *o = &s->sampling;
    json_t *sampling = json_pack(
        "{s:f, s:i, s:f, s:f, s:f, s:f, s:f, s:i}",
        "temperature", o->temperature, "top_k", o->top_k, "top_p", o->top_p, "min_p", o->min_p,
        "repeat_penalty", o->repeat_penalty, "presence_penalty", o->presence_penalty,
        "frequency_penalty", o->frequency_penalty, "penalty_window", o->penalty_window);
    json_t *root = json_pack("{s:s, s:i, s:s, s:s, s:I, s:I, s:o, s:o}", "kind", kind,
                             "version", VERSION, "reasoning",
                             chat_reasoning_name(s->effort, s->thinking), "date", s->date,
                             "seed", (json_int_t)s->seed,
                             "answers", (json_int_t)s->n_answer, "sampling", sampling,
                             "messages", messages_json(c));
    const size_t n = root ? json_dumpb(root, NULL, 0, JSON_COMPACT) : 0;
    char *text = n ? mem_alloc(n + 1) : NULL;

    *out = NULL;
    if (text) {
        json_dumpb(root, text, n, JSON_COMPACT);
        text[n] = '\0';
        *out = text;
        *len = n;
    }
    json_decref(root);
    return text ? 0 : err_set(err, ERR_NOMEM, "out of memory for a conversation of %d messages",
                              c->n_message);
}

/* ---- and back ------------------------------------------------------------------------------ */

/* Jansson's message may quote the file, so it is escaped. */
static int bad_shape(err_ctx *err, const char *where, const json_error_t *why)
{
    char esc[200];
    return err_set(err, ERR_FORMAT, "conversation: %s: %s", where, ESC(esc, str_from(why->text)));
}

static int read_settings(conversation_settings *s, json_t **messages, json_t *root, err_ctx *err)
{
    const char *what, *effort, *date;
    sampler_options *o = &s->sampling;
    json_int_t version, seed, n_answer, top_k, window;
    json_error_t why;
    char esc[64];

    if (json_unpack_ex(root, &why, JSON_STRICT,
                       "{s:s, s:I, s:s, s:s, s:I, s:I, s:{s:F, s:I, s:F, s:F, s:F, s:F, s:F, s:I},"
                       " s:o}",
                       "kind", &what, "version", &version, "reasoning", &effort, "date", &date,
                       "seed", &seed, "answers", &n_answer, "sampling",
                       "temperature", &o->temperature, "top_k", &top_k, "top_p", &o->top_p,
                       "min_p", &o->min_p, "repeat_penalty", &o->repeat_penalty,
                       "presence_penalty", &o->presence_penalty,
                       "frequency_penalty", &o->frequency_penalty,
                       "penalty_window", &window, "messages", messages) != 0)
        return bad_shape(err, "settings", &why);
    if (strcmp(what, kind) != 0)
        return err_set(err, ERR_FORMAT, "conversation: of kind \"%s\", not \"%s\"",
                       ESC(esc, str_from(what)), kind);
    if (version != VERSION)
        return err_set(err, ERR_UNSUPPORTED, "conversation: version %lld, this program reads %d",
                       (long long)version, VERSION);
    if (!chat_reasoning_from_name(&s->effort, &s->thinking, effort))
        return err_set(err, ERR_FORMAT, "conversation: reasoning \"%s\" is not low, medium, high, "
                       "on or off", ESC(esc, str_from(effort)));
    if (!text_is_date(date))
        return err_set(err, ERR_FORMAT, "conversation: \"%s\" is no date",
                       ESC(esc, str_from(date)));
    if (seed < 0 || n_answer < 0)
        return err_set(err, ERR_RANGE, "conversation: seed %lld and answers %lld must not be "
                       "negative", (long long)seed, (long long)n_answer);
    if (n_answer > INT32_MAX)
        return err_set(err, ERR_RANGE, "conversation: %lld answers are too many",
                       (long long)n_answer);
    if (top_k != (int)top_k || window != (int)window)
        return err_set(err, ERR_RANGE, "conversation: top_k %lld or penalty_window %lld is too "
                       "large", (long long)top_k, (long long)window);
    o->top_k = (int)top_k;
    o->penalty_window = (int)window;
    snprintf(s->date, sizeof s->date, "%s", date);
    s->seed = seed;
    s->n_answer = n_answer;
    return 0;
}

static int read_message(conversation *c, json_t *v, size_t i, err_ctx *err)
{
    const char *role;
    str_view content, reasoning = { 0 };
    json_error_t why;
    char esc[64], where[32];

    snprintf(where, sizeof where, "messages[%zu]", i);
    if (json_unpack_ex(v, &why, JSON_STRICT, "{s:s, s:s%, s?s%}", "role", &role,
                       "content", &content.ptr, &content.len,
                       "reasoning", &reasoning.ptr, &reasoning.len) != 0)
        return bad_shape(err, where, &why);
    if (!strcmp(role, "system") && i == 0 && content.len && !reasoning.ptr)
        return conversation_set_system(c, content, err);
    if (!strcmp(role, "user") && !conversation_is_open(c) && !reasoning.ptr)
        return conversation_ask(c, content, err);
    if (!strcmp(role, "assistant") && conversation_is_open(c))
        return conversation_answer(c, content, reasoning, err);
    return err_set(err, ERR_FORMAT, "conversation: %s: a message of \"%s\" does not belong there",
                   where, ESC(esc, str_from(role)));
}

int conversation_read(conversation *c, conversation_settings *s, str_view text, err_ctx *err)
{
    json_error_t why;
    json_t *root = json_loadb(text.len ? text.ptr : "", text.len,
                              JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    json_t *messages, *v;
    size_t i;
    int rc;

    *c = (conversation){ 0 };
    *s = (conversation_settings){ 0 };
    if (!root) return bad_shape(err, "not JSON", &why);
    rc = read_settings(s, &messages, root, err);
    if (rc == 0 && !json_is_array(messages))
        rc = err_set(err, ERR_FORMAT, "conversation: messages are not an array");
    if (rc == 0)
        json_array_foreach(messages, i, v)
            if ((rc = read_message(c, v, i, err)) < 0) break;
    json_decref(root);
    if (rc < 0) conversation_release(c);
    return rc;
}

bool text_is_date(const char *text)
{
    static const char shape[] = "dddd-dd-dd";
    size_t i = 0;
    if (!*text) return true;
    while (shape[i] && (shape[i] == 'd' ? text[i] >= '0' && text[i] <= '9' : text[i] == '-')) i++;
    if (shape[i] || text[i]) return false;
    const int month = 10 * (text[5] - '0') + text[6] - '0';
    const int day = 10 * (text[8] - '0') + text[9] - '0';
    return month >= 1 && month <= 12 && day >= 1 && day <= 31;
}

bool text_is_utf8(str_view text, size_t *at)
{
    const uint8_t *p = (const uint8_t *)text.ptr;
    uint32_t cp;
    for (size_t i = 0; i < text.len;) {
        const int n = utf8_decode(&cp, p + i, text.len - i);
        if (n == 0) {
            *at = i;
            return false;
        }
        i += (size_t)n;
    }
    return true;
}

int text_check_utf8(str_view text, err_ctx *err)
{
    size_t at;
    if (text_is_utf8(text, &at)) return 0;
    return err_set(err, ERR_FORMAT, "the text is not UTF-8: byte 0x%02X at offset %zu; iconv -t "
                   "UTF-8 converts other encodings", (uint8_t)text.ptr[at], at);
}
