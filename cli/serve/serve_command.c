/* serve_command.c - moe-serve: opens the port, loads the model, serves until a signal.
 *
 * The port is open before the model loads, so that supervisors and clients see the state. The first
 * SIGINT or SIGTERM lets running answers go on for --stop-after seconds; the second one ends the
 * program at once. The main thread alone takes signals. */
#include "cli/commands.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "cli/args/engine_args.h"
#include "cli/args/tier_args.h"
#include "cli/console.h"
#include "cli/demo_model.h"
#include "cli/expert_cache_files.h"
#include "cli/interrupt.h"
#include "cli/prompt_cache.h"
#include "cli/serve/metrics.h"
#include "cli/serve/route.h"
#include "cli/view/plan_view.h"
#include "tiers/available_memory.h"

#define DIGITS "0123456789"
#define LETTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

enum {
    DEFAULT_PORT = 8080, DEFAULT_CTX = 32768, MAX_CONNECTIONS = 512,
    CODEX_IDLE_MS = 600000,          /* twice Codex' default: prompts may be long */
    N_SNAPSHOT = 8, N_SNAPSHOT_CACHED = 2,       /* with a prompt cache they only save copies */
    DEFAULT_SLOTS = 8, MAX_SLOTS = SESSION_MAX_SHARING + 1,
    SLOTS_FRACTION = 16,                 /* 1/16 of the memory for all slots but the first, by
                                          * default */
    CACHE_FRACTION = 32,               /* 1/32 of the free memory, by default */
    CACHE_DIVISOR = 8,                      /* a cache that does not fit is divided by it */
    MIN_CACHE_BYTES = 1 << 20
};

typedef struct serve_options {
    const char *key_file;
    arg_texts listen, keys, aliases, origins;
    int64_t queue, wait_limit, parallel;
    uint64_t body, cache, drive;
    bool quiet;
    engine_args engine;
    tier_args tiers;
} serve_options;

#define FIELD(f) offsetof(serve_options, f)
static const arg_option options[] = {
    { "listen", 0, ARG_TEXTS, FIELD(listen), "WHERE", NULL, 0, 0,
      "ADDRESS:PORT, PORT alone, or unix:PATH, or one of each. Default: 127.0.0.1:8080" },
    { "api-key", 0, ARG_TEXTS, FIELD(keys), "KEY", "MOE_API_KEY", 0, 0,
      "Requests must carry one of these keys. Default: no key needed" },
    { "api-key-file", 0, ARG_TEXT, FIELD(key_file), "FILE", NULL, 0, 0,
      "More keys, one on each line" },
    { "alias", 0, ARG_TEXTS, FIELD(aliases), "NAME", NULL, 0, 0,
      "The model's name for clients; more names if given several times. Default: the file's" },
    { "cors", 0, ARG_TEXTS, FIELD(origins), "ORIGIN", NULL, 0, 0,
      "Let pages from ORIGIN use the server; *: all pages. Default: pages of this machine" },
    { "parallel", 0, ARG_INT, FIELD(parallel), "N", "MOE_PARALLEL", 1, MAX_SLOTS,
      "Requests that run at a time, each with --ctx tokens. Default: up to 8, as memory allows" },
    { "queue", 0, ARG_INT, FIELD(queue), "N", NULL, 1, 100000,
      "Requests that may wait for a slot; more get status 503. Default: 64" },
    { "body-limit", 0, ARG_SIZE, FIELD(body), "SIZE", NULL, 0, 0,
      "Largest request. Default: 32M" },
    { "prompt-cache", 0, ARG_SIZE, FIELD(cache), "SIZE", "MOE_PROMPT_CACHE", 0, 0,
      "RAM for the prompt cache; 0: last prompt only. Default: 1/32 of free RAM, at least 1G" },
    { PROMPT_CACHE_OPTION, 0, ARG_SIZE, FIELD(drive), "SIZE", PROMPT_CACHE_ENV, 0, 0,
      "Prompt cache on the drive, in $XDG_CACHE_HOME/moe/prompts; 0: none. Default: 16G" },
    { "stop-after", 0, ARG_INT, FIELD(wait_limit), "SECONDS", NULL, 0, 3600,
      "On Ctrl-C, wait up to this long for running answers. Default: 10" },
    { "quiet", 'q', ARG_FLAG, FIELD(quiet), NULL, NULL, 0, 0, "Print only errors" },
};

static const arg_group groups[] = {
    { "Model:", engine_arg_options, ENGINE_N_OPTION, FIELD(engine) },
    { "Memory:", tier_options, TIER_N_OPTION, FIELD(tiers) },
};

static const arg_spec spec = {
    .usage = "moe-serve [[-m] FILE] [options]",
    .about =
        "Serves a model over HTTP: OpenAI's chat completions, completions and Responses,\n"
        "Anthropic's messages, Ollama's chat and generate. The address it prints, opened in a\n"
        "browser, is a page with a chat and a map of the experts.\n"
        "  moe-serve -m model.gguf\n"
        "  curl http://127.0.0.1:8080/v1/chat/completions -d \\\n"
        "    '{\"messages\":[{\"role\":\"user\",\"content\":\"Why is the sky blue?\"}]}'",
    .options = options, .n_option = ARRAY_LEN(options), .max_operands = 1,
    .operands = "FILE", .groups = groups, .n_group = ARRAY_LEN(groups),
    .epilogue =
        "Paths: POST /v1/chat/completions, /v1/completions, /v1/responses, /v1/messages,\n"
        "/v1/messages/count_tokens, /api/chat, /api/generate, /api/show, /tokenize,\n"
        "/detokenize, /apply-template; GET /v1/models, /api/tags, /api/ps, /api/version,\n"
        "/props, /health, /slots, /metrics, /moe-events; GET and POST /moe-layer-perf,\n"
        "/moe-hot-cache.\n"
        "Exit code: 0 stopped by a signal, 1 failed, 2 bad usage, 130 or 143 ended at once by a\n"
        "second signal.",
};

typedef struct server {
    serve_options o;
    char address[64];
    const char *unix_path;
    int port;
    const char **keys;
    char *key_text;                      /* of --api-key-file; keys point into it */
    char name[128];
    server_context context;
    http_server *http;
    model_handle handle;
    session *sessions[MAX_SLOTS];
    int n_slot;
    prefix_cache *cache;
    session_options so;
    load_options load;
} server;

/* ---- options --------------------------------------------------------------------------------- */

/* "127.0.0.1:8080", "[::1]:8080", "8080", "unix:/run/moe". */
static int read_listen(server *v, const char *text)
{
    const char *colon = strrchr(text, ':'), *port = colon ? colon + 1 : text;
    char *end;
    if (!strncmp(text, "unix:", 5) && text[5]) {
        v->unix_path = text + 5;
        return 0;
    }
    const long n = strtol(port, &end, 10);
    size_t len = colon ? (size_t)(colon - text) : 0;
    const char *from = text;
    if (len > 2 && text[0] == '[' && text[len - 1] == ']') {
        from++;
        len -= 2;
    }
    if (*port && !*end && n >= 0 && n <= 65535 && len < sizeof v->address) {
        snprintf(v->address, sizeof v->address, "%.*s", len > 0 ? (int)len : 9,
                 len > 0 ? from : "127.0.0.1");
        if (!strcmp(v->address, "localhost"))
            snprintf(v->address, sizeof v->address, "127.0.0.1");
        v->port = (int)n;
        return 0;
    }
    console_error("--listen: '%s' is neither ADDRESS:PORT such as 127.0.0.1:8080 nor unix:PATH",
                  text);
    return 2;
}

static const char key_gaps[] = " \t\r\n";

static size_t count_words(const char *text)
{
    size_t n = 0;
    for (text += strspn(text, key_gaps); *text; text += strspn(text, key_gaps)) {
        text += strcspn(text, key_gaps);
        n++;
    }
    return n;
}

/* Keys of the command line, then keys of the file, separated by white space. */
static int read_keys(server *v)
{
    size_t len, n_key = (size_t)v->o.keys.n;
    err_ctx err;
    if (v->o.key_file) {
        if (read_whole_file(&v->key_text, &len, v->o.key_file, &err) < 0) {
            console_error("--api-key-file %s: %s", v->o.key_file, err.msg);
            return 1;
        }
        n_key += count_words(v->key_text);
    }
    if (n_key > 0 && !(v->keys = mem_array(n_key, sizeof *v->keys))) {
        console_error("--api-key-file: no memory for %zu keys", n_key);
        return 1;
    }
    for (int i = 0; i < v->o.keys.n; i++) {
        if (!v->o.keys.text[i][0]) {
            console_error("--api-key: it is empty");
            return 2;
        }
        v->keys[v->context.n_key++] = v->o.keys.text[i];
    }
    for (char *save, *line = v->key_text ? strtok_r(v->key_text, key_gaps, &save) : NULL; line;
         line = strtok_r(NULL, key_gaps, &save))
        v->keys[v->context.n_key++] = line;
    if (v->o.key_file && v->context.n_key == 0) {
        console_error("--api-key-file %s: there is no key in it", v->o.key_file);
        return 1;
    }
    v->context.keys = v->keys;
    return 0;
}

/* Length of the host at the beginning of text, such as "[::1]" or "a.example"; 0: none. */
static size_t host_length(const char *text)
{
    static const char name[] = LETTERS DIGITS "-._", address[] = DIGITS "abcdefABCDEF:.";
    if (text[0] != '[') return strspn(text, name);
    const size_t n = strspn(text + 1, address);
    return n > 0 && text[1 + n] == ']' ? n + 2 : 0;
}

/* SCHEME://HOST[:PORT], as browsers write it; any other text would never match. */
static bool is_origin(const char *text)
{
    const size_t scheme = strspn(text, LETTERS DIGITS "+-.");
    if (strspn(text, LETTERS) == 0 || strncmp(text + scheme, "://", 3) != 0) return false;
    const char *host = text + scheme + 3, *end = host + host_length(host);
    if (end == host) return false;
    if (end[0] != ':') return end[0] == '\0';
    const size_t n = strspn(end + 1, DIGITS);
    const long port = n <= 5 ? strtol(end + 1, NULL, 10) : 0;
    return end[1 + n] == '\0' && port >= 1 && port <= 65535;
}

static int check_origins(const arg_texts *origins)
{
    for (int i = 0; i < origins->n; i++) {
        const char *text = origins->text[i];
        if (!strcmp(text, "*") || is_origin(text)) continue;
        console_error("--cors: '%s' is neither * nor SCHEME://HOST[:PORT] such as "
                      "https://a.example, with no / after it", text);
        return 2;
    }
    return 0;
}

static bool is_loopback(const char *address)
{
    struct in_addr v4;
    struct in6_addr v6;
    if (inet_pton(AF_INET, address, &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
    return inet_pton(AF_INET6, address, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

/* An address that clients can use: loopback instead of 0.0.0.0 and ::. */
static const char *client_address(const char *address)
{
    struct in_addr v4;
    struct in6_addr v6;
    if (inet_pton(AF_INET, address, &v4) == 1 && v4.s_addr == INADDR_ANY) return "127.0.0.1";
    if (inet_pton(AF_INET6, address, &v6) == 1 && IN6_IS_ADDR_UNSPECIFIED(&v6)) return "::1";
    return address;
}

static int read_options(server *v)
{
    int code, n_unix = 0;
    for (int i = 0; i < v->o.listen.n; i++) {
        if ((code = read_listen(v, v->o.listen.text[i])) != 0) return code;
        n_unix += !strncmp(v->o.listen.text[i], "unix:", 5);
    }
    if (n_unix > 1 || v->o.listen.n - n_unix > 1) {
        console_error("--listen: one ADDRESS:PORT and one unix:PATH at most");
        return 2;
    }
    if (v->o.listen.n == 0) {
        snprintf(v->address, sizeof v->address, "127.0.0.1");
        v->port = DEFAULT_PORT;
    }
    if ((code = read_keys(v)) != 0 || (code = check_origins(&v->o.origins)) != 0) return code;
    v->context.origins = v->o.origins.text;
    v->context.n_origin = v->o.origins.n;
    v->context.loopback = !v->address[0] || is_loopback(v->address);
    return 0;
}

/* ---- the model ------------------------------------------------------------------------------- */

static void name_model(server *v)
{
    const char *slash = strrchr(v->handle.path, '/'), *base = slash ? slash + 1 : v->handle.path;
    const size_t n = strlen(base);
    const bool gguf_name = n > 5 && !strcmp(base + n - 5, ".gguf");
    if (v->o.aliases.n > 0) snprintf(v->name, sizeof v->name, "%s", v->o.aliases.text[0]);
    else if (!v->o.engine.model) snprintf(v->name, sizeof v->name, "demo");
    else snprintf(v->name, sizeof v->name, "%.*s", (int)(gguf_name ? n - 5 : n), base);
}

static void describe(server *v)
{
    const model *m = v->handle.m;
    struct stat st;
    api_model *a = &v->context.model;
    *a = (api_model){ .name = v->name, .path = v->handle.path, .arch = model_arch_name(m->hp.arch),
                      .quant = quant_name((uint32_t)model_first_bank(m)->weight[0]->type),
                      .build = commands_version_text(), .n_ctx = session_ctx(v->sessions[0]),
                      .n_ctx_train = m->hp.ctx_train, .n_vocab = m->hp.n_vocab, .n_slot = v->n_slot,
                      .thinks = chat_reasons(v->handle.format) };
    if (v->o.aliases.n > 1) {
        a->aliases = v->o.aliases.text + 1;
        a->n_alias = v->o.aliases.n - 1;
    }
    for (int i = 0; i < gguf_n_part(v->handle.file); i++)
        a->size_bytes += (int64_t)gguf_part_bytes(v->handle.file, i);
    for (int i = 0; i < gguf_n_tensor(v->handle.file); i++)
        a->n_params += (int64_t)gguf_tensor_at(v->handle.file, i)->elems;
    a->vram_bytes = v->handle.where ? (int64_t)plan_vram(&v->handle.where->p) : 0;
    a->created = stat(v->handle.path, &st) == 0 ? (int64_t)st.st_mtime : (int64_t)time(NULL);
    a->expires = a->created + 10ll * 365 * 86400;
}

static int open_cache(server *v, err_ctx *err)
{
    char folder[1024];
    prompt_cache_folder(folder, sizeof folder);
    const prefix_cache_options c = {
        .ram_bytes = v->o.cache, .folder = v->o.drive > 0 && folder[0] ? folder : NULL,
        .drive_bytes = v->o.drive, .note = console_note_line,
    };
    return v->o.cache == 0 ? 0 : prefix_cache_create(&v->cache, v->sessions[0], &c, err);
}

/* The number of slots: --parallel, or as many as 1/16 of the memory holds, at most 8. */
static int choose_n_slot(server *v, err_ctx *err)
{
    session_options some = v->so;
    plan_machine machine;
    uint64_t bytes[2] = { 0 }, vram;
    int rc = 0;
    v->n_slot = (int)v->o.parallel;
    for (int i = 0; i < 2 && v->n_slot == 0 && rc == 0; i++) {
        some.n_sharing = 1 + i;
        rc = session_plan(&bytes[i], &vram, v->handle.e, &some, err);
    }
    if (rc == 0 && v->n_slot == 0 &&
        (rc = planning_machine(&machine, v->load.where.device != DEVICE_CPU, err)) == 0) {
        const plan_wish *w = &v->load.where.wish;
        const uint64_t free = machine.gpu ? machine.vram_free : machine.ram_available;
        const uint64_t bound = machine.gpu ? w->vram : w->ram;
        const uint64_t limit = bound < free ? bound : free;
        const uint64_t each = bytes[1] - bytes[0];
        for (v->n_slot = 1; v->n_slot < DEFAULT_SLOTS; v->n_slot++)
            if ((uint64_t)v->n_slot * each > limit / SLOTS_FRACTION) break;
    }
    v->so.n_sharing = v->n_slot - 1;
    return rc;
}

static void use_cache(server *v, uint64_t bytes)
{
    v->o.cache = v->handle.asked.ram_aside = bytes;
    v->so.n_snapshot = bytes > 0 ? N_SNAPSHOT_CACHED : N_SNAPSHOT;
}

static void note_cache(const server *v, uint64_t wished)
{
    char less[32], all[32];
    if (v->o.cache == wished || v->o.quiet) return;
    console_note("a prompt cache of %s instead of %s: memory is short",
                 text_bytes(less, sizeof less, v->o.cache), text_bytes(all, sizeof all, wished));
}

/* Makes the prompt cache smaller, and drops slots that --parallel did not ask for, until the model
 * fits. Otherwise they would grow with --ram, and the advice in the error would never suffice. */
static int place_model(server *v, err_ctx *err)
{
    const uint64_t wished = v->o.cache;
    int rc = model_handle_place(&v->handle, &v->so, err);
    if (rc == ERR_NOMEM && v->o.parallel == 0 && v->n_slot > 1) {
        v->n_slot = 1;
        v->so.n_sharing = 0;
        rc = model_handle_place(&v->handle, &v->so, err);
    }
    while (rc == ERR_NOMEM && v->o.cache > 0) {
        const uint64_t less = v->o.cache / CACHE_DIVISOR;
        use_cache(v, less < MIN_CACHE_BYTES ? 0 : less);
        rc = model_handle_place(&v->handle, &v->so, err);
    }
    if (rc == 0) note_cache(v, wished);
    return rc;
}

static int make_sessions(server *v, err_ctx *err)
{
    int rc = model_handle_session(&v->sessions[0], &v->handle, &v->so, err);
    for (int i = 1; i < v->n_slot && rc == 0; i++)
        rc = session_create_sharing(&v->sessions[i], session_runner(v->sessions[0]), err);
    return rc;
}

/* 1/32 of the free memory, at least 1 GiB. A conversation of 30,000 tokens takes 1 to 2 GiB. */
static uint64_t default_cache(void)
{
    const uint64_t least = (uint64_t)1 << 30;
    const char *whose;
    uint64_t room;
    return available_memory(&room, &whose, NULL) == 0 && room / CACHE_FRACTION > least
               ? room / CACHE_FRACTION : least;
}

/* Returns 0, or the exit code. */
static int load_model(server *v)
{
    const uint64_t ram = v->load.where.wish.ram;
    err_ctx err = { 0 };
    if (v->o.cache == UINT64_MAX) v->o.cache = default_cache();
    v->load.path = v->o.engine.model;
    v->load.with_text = true;
    v->load.where.remember = true;
    if (model_handle_open(&v->handle, &v->load, &err) < 0)
        return model_handle_fail(v->o.engine.model ? v->o.engine.model : DEMO_MODEL_NAME, &err);
    const int most = v->handle.m->hp.ctx_train;
    if (v->so.ctx == 0) v->so.ctx = most < DEFAULT_CTX ? most : DEFAULT_CTX;
    use_cache(v, v->o.cache < ram / 2 ? v->o.cache : ram / 2);
    if (choose_n_slot(v, &err) < 0) return model_handle_fail(v->handle.path, &err);
    if (place_model(v, &err) < 0) return model_handle_fail(v->handle.path, &err);
    if (!v->o.quiet) model_handle_say_notes(&v->handle, true, false);
    if (make_sessions(v, &err) < 0) return model_handle_fail(v->handle.path, &err);
    if (open_cache(v, &err) < 0) return model_handle_fail(NULL, &err);
    name_model(v);
    describe(v);
    v->context.tok = v->handle.tok;
    v->context.format = v->handle.format;
    if (encoder_create(&v->context.enc, v->handle.tok, &err) < 0)
        return model_handle_fail(NULL, &err);
    const engine_context ec = { .model = &v->handle, .sessions = v->sessions,
                                .n_session = v->n_slot, .cache = v->cache, .name = v->name };
    if (queue_open(&v->context.queue, &ec, (int)v->o.queue, &err) < 0 ||
        live_events_open(&v->context.events, v->context.queue, &v->handle, v->sessions[0],
                         v->name, &err) < 0)
        return model_handle_fail(NULL, &err);
    atomic_store(&v->context.ready, true);
    return 0;
}

/* ---- the network ----------------------------------------------------------------------------- */

/* Logs one line for each request: names, counts, and why it was refused; no text of a message. */
static void on_done(void *ctx, const http_exchange *x, int status)
{
    server_context *c = ctx;
    const bool left = http_gone(x) && status < 400 && !strcmp(http_method(x), "POST");
    const char *remark = http_get_remark(x)[0] ? http_get_remark(x) : left ? "the client left" : "";
    route_done(c, x, status);
    if (c->quiet) return;
    console_note("%s %s %s %d%s%s", http_id(x), http_method(x), http_path(x), status,
                 remark[0] ? ": " : "", remark);
}

static int open_port(server *v)
{
    const http_options h = {
        .address = v->address[0] ? v->address : NULL, .port = v->port, .unix_path = v->unix_path,
        .max_body_bytes = v->o.body, .max_bodies_bytes = 8 * v->o.body,
        .max_connections = MAX_CONNECTIONS, .head = route_head, .handler = route_request,
        .done = on_done, .ctx = &v->context,
    };
    err_ctx err = { 0 };
    v->context.quiet = v->o.quiet;
    if (route_counts_create(&v->context.counts, &err) < 0 || http_start(&v->http, &h, &err) < 0) {
        console_error("%s%s", err.msg, strstr(err.msg, "in use") ? "; use another --listen" : "");
        return 1;
    }
    if (!v->context.loopback && v->context.n_key == 0)
        console_note("every machine that reaches %s can use this server; --api-key KEY restricts "
                     "it", v->address);
    return 0;
}

static void print_start(const server *v)
{
    char host[80], url[160], ctx[32], slots[48] = "", line[PLAN_LINE_CAP];
    const char *address = client_address(v->address);
    const bool v6 = strchr(address, ':') != NULL;
    if (v->o.quiet) return;
    snprintf(host, sizeof host, "%s%s%s", v6 ? "[" : "", address, v6 ? "]" : "");
    if (v->address[0]) snprintf(url, sizeof url, "http://%s:%d", host, http_port(v->http));
    else snprintf(url, sizeof url, "unix:%s", v->unix_path);
    text_count(ctx, sizeof ctx, (uint64_t)session_ctx(v->sessions[0]));
    const plan_view where = placement_view(v->handle.where);
    if (v->n_slot > 1) snprintf(slots, sizeof slots, ", %d requests at a time", v->n_slot);
    console_note("%s: %s tokens of context%s, %s", v->name, ctx, slots,
                 plan_view_line(line, sizeof line, &where));
    if (v->address[0] && v->unix_path) console_note("listening on unix:%s", v->unix_path);
    console_note("listening on %s", url);
    if (!v->address[0]) return;
    if (address != v->address)
        console_note("other machines use the address of this one instead of %s", host);
    const int n_ctx = session_ctx(v->sessions[0]);
    console_note("in a browser, that address is a page with a chat and a map of the experts");
    console_note("Codex, in ~/.codex/config.toml:");
    console_copy("model_provider = \"moe\"\nmodel_context_window = %d\n"
                 "model_providers.moe = { name = \"moe\", base_url = \"%s/v1\", "
                 "wire_api = \"responses\", stream_idle_timeout_ms = %d }", n_ctx, url,
                 CODEX_IDLE_MS);
    console_note("Claude Code:");
    console_copy("ANTHROPIC_BASE_URL=%s ANTHROPIC_AUTH_TOKEN=%s ANTHROPIC_MODEL='%s' "
                 "CLAUDE_CODE_ATTRIBUTION_HEADER=0 CLAUDE_CODE_AUTO_COMPACT_WINDOW=%d claude",
                 url, v->context.n_key > 0 ? "KEY" : "none", v->name, n_ctx);
}

static void wait_for_signal(void)
{
    while (!interrupted()) (void)interrupt_wait(-1);
}

/* Waits until clients have read what was written. */
static void send_rest(const server *v, int64_t seconds)
{
    (void)http_wait_idle(v->http, clock_ns() + (uint64_t)(seconds > 0 ? seconds : 1) * 1000000000);
}

int cmd_serve(int argc, char **argv)
{
    static server v;                     /* network threads have its address */
    const char *operand = NULL;
    int code;

    v.o = (serve_options){ .queue = 64, .body = 32u << 20, .wait_limit = 10,
                             .cache = UINT64_MAX, .drive = PROMPT_CACHE_BYTES };
    engine_args_init(&v.o.engine);
    tier_args_init(&v.o.tiers);
    const int rc = args_parse(&spec, &v.o, &operand, NULL, argc, argv);
    if (rc != ARGS_RUN) return rc == ARGS_HELP ? console_finish() : 2;
    if ((code = engine_args_read(&v.load.where, &v.so, &v.o.engine)) != 0 ||
        (code = tier_args_read(&v.load.where, &v.o.tiers)) != 0 || (code = read_options(&v)) != 0)
        return code;
    if (operand && v.o.engine.model) {
        console_error("two models: %s and -m %s", operand, v.o.engine.model);
        return 2;
    }
    if (operand) v.o.engine.model = operand;
    interrupt_install();
    if (!v.o.engine.model && !v.o.quiet) console_note("%s", DEMO_MODEL_REMARK);
    if ((code = open_port(&v)) == 0 && (code = load_model(&v)) == 0) {
        print_start(&v);
        wait_for_signal();
        if (!v.o.quiet) console_note("stopping");
        atomic_store(&v.context.stopping, true);
        http_quiesce(v.http);
    }
    live_events_close(v.context.events);
    queue_close(v.context.queue, (double)v.o.wait_limit);
    if (v.http) send_rest(&v, v.o.wait_limit);
    http_stop(v.http);
    live_events_free(v.context.events);
    queue_free(v.context.queue);
    route_counts_free(v.context.counts);
    encoder_free(v.context.enc);
    prefix_cache_free(v.cache);
    while (v.n_slot > 0) session_free(v.sessions[--v.n_slot]);
    if (v.handle.e) expert_cache_files_keep(v.handle.e, &v.handle.asked, v.handle.m);
    model_handle_close(&v.handle);
    mem_free(v.keys);
    mem_free(v.key_text);
    return code;
}
