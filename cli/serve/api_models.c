/* api_models.c - responses about the model: lists, details, token counts.
 *
 * One list serves OpenAI's and Anthropic's clients, which ignore each other's keys. An alias is an
 * entry of its own, because a client searches for the name it was given. */
#include "cli/serve/api_internal.h"

static const char *name_at(const api_model *m, int i)
{
    return i ? m->aliases[i - 1] : m->name;
}

bool api_model_is(const api_model *m, const char *id)
{
    for (int i = 0; i <= m->n_alias; i++)
        if (strcmp(name_at(m, i), id) == 0) return true;
    return false;
}

char *api_count_body(int n_tokens)
{
    textbuf b = { 0 };
    textbuf_printf(&b, "{\"input_tokens\":%d}", n_tokens);
    return api_take(&b);
}

static void put_model(textbuf *b, const api_model *m, const char *id)
{
    api_put_field(b, "{\"id\":", id);
    textbuf_printf(b, ",\"object\":\"model\",\"type\":\"model\",\"created\":%lld,\"created_at\":",
                   (long long)m->created);
    api_put_date(b, m->created);
    api_put_field(b, ",\"owned_by\":\"moe\",\"display_name\":", id);
    textbuf_printf(b, ",\"lifecycle\":\"active\",\"max_input_tokens\":%d,\"meta\":{\"n_ctx\":%d,"
                   "\"n_ctx_train\":%d,\"n_params\":%lld,\"size\":%lld,\"n_vocab\":%d}}", m->n_ctx,
                   m->n_ctx, m->n_ctx_train, (long long)m->n_params, (long long)m->size_bytes,
                   m->n_vocab);
}

char *api_models_body(const api_model *m)
{
    textbuf b = { 0 };
    textbuf_str(&b, "{\"object\":\"list\",\"data\":[");
    for (int i = 0; i <= m->n_alias; i++) {
        if (i) textbuf_str(&b, ",");
        put_model(&b, m, name_at(m, i));
    }
    api_put_field(&b, "],\"models\":[],\"has_more\":false,\"first_id\":", m->name);
    api_put_field(&b, ",\"last_id\":", name_at(m, m->n_alias));
    textbuf_str(&b, "}");
    return api_take(&b);
}

char *api_model_body(const api_model *m, const char *id)
{
    textbuf b = { 0 };
    if (!api_model_is(m, id)) return NULL;
    put_model(&b, m, id);
    return api_take(&b);
}

/* ---- Ollama -------------------------------------------------------------------------------- */

static void put_details(textbuf *b, const api_model *m)
{
    api_put_field(b, "{\"parent_model\":\"\",\"format\":\"gguf\",\"family\":", m->arch);
    api_put_field(b, ",\"families\":[", m->arch);
    if (m->n_params >= 1000000000)
        textbuf_printf(b, "],\"parameter_size\":\"%.0fB\"", (double)m->n_params * 1e-9);
    else
        textbuf_printf(b, "],\"parameter_size\":\"%.1fM\"", (double)m->n_params * 1e-6);
    api_put_field(b, ",\"quantization_level\":", m->quant);
    textbuf_str(b, "}");
}

/* The digest is the same for the same file; nothing else depends on it. */
static void put_entry(textbuf *b, const api_model *m, const char *name, bool loaded)
{
    const uint64_t key = str_hash(str_from(m->name)) ^ (uint64_t)m->size_bytes;
    api_put_field(b, "{\"name\":", name);
    api_put_field(b, ",\"model\":", name);
    textbuf_str(b, ",\"modified_at\":");
    api_put_date(b, m->created);
    textbuf_printf(b, ",\"size\":%lld,\"digest\":\"", (long long)m->size_bytes);
    for (uint64_t i = 0; i < 4; i++)
        textbuf_printf(b, "%016llx", (unsigned long long)random_word(key, i));
    textbuf_str(b, "\",\"details\":");
    put_details(b, m);
    if (loaded) {
        textbuf_str(b, ",\"expires_at\":");
        api_put_date(b, m->expires);
        textbuf_printf(b, ",\"size_vram\":%lld,\"context_length\":%d", (long long)m->vram_bytes,
                       m->n_ctx);
    }
    textbuf_str(b, "}");
}

static char *entries_body(const api_model *m, bool loaded)
{
    textbuf b = { 0 };
    textbuf_str(&b, "{\"models\":[");
    for (int i = 0; i <= (loaded ? 0 : m->n_alias); i++) {
        if (i) textbuf_str(&b, ",");
        put_entry(&b, m, name_at(m, i), loaded);
    }
    textbuf_str(&b, "]}");
    return api_take(&b);
}

char *api_tags_body(const api_model *m) { return entries_body(m, false); }

char *api_ps_body(const api_model *m) { return entries_body(m, true); }

char *api_show_body(const api_model *m)
{
    textbuf b = { 0 };
    textbuf_printf(&b, "{\"modelfile\":\"\",\"parameters\":\"num_ctx %d\\n\",\"template\":\"\","
                   "\"modified_at\":", m->n_ctx);
    api_put_date(&b, m->created);
    textbuf_str(&b, ",\"details\":");
    put_details(&b, m);
    api_put_field(&b, ",\"model_info\":{\"general.architecture\":", m->arch);
    textbuf_printf(&b, ",\"general.parameter_count\":%lld,", (long long)m->n_params);
    textbuf_printf(&b, "\"%s.context_length\":%d},\"capabilities\":[\"completion\",\"tools\"%s]}",
                   m->arch, m->n_ctx, m->thinks ? ",\"thinking\"" : "");
    return api_take(&b);
}

/* Codex refuses older versions; this is the first with the Responses API. */
char *api_version_body(void)
{
    textbuf b = { 0 };
    textbuf_str(&b, "{\"version\":\"0.13.4\"}");
    return api_take(&b);
}

char *api_props_body(const api_model *m)
{
    textbuf b = { 0 };
    textbuf_printf(&b, "{\"default_generation_settings\":{\"n_ctx\":%d},\"total_slots\":%d,"
                   "\"model_path\":", m->n_ctx, m->n_slot);
    api_put_text(&b, m->path);
    api_put_field(&b, ",\"build_info\":", m->build ? m->build : "");
    textbuf_str(&b, ",\"chat_template\":\"\",\"modalities\":{\"vision\":false,\"audio\":false}}");
    return api_take(&b);
}
