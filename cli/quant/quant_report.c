/* quant_report.c - tables for people, one JSON object for scripts. Errors are relative: root mean
 * square of the differences, divided by that of the weights. */
#include "cli/quant/quant_report.h"

#include <stdio.h>

static void say_columns(const quant_kept *k)
{
    const quant_traits *to = quant_traits_of((uint32_t)k->wanted);
    char name[128], more[32] = "";
    if (k->n > 1) snprintf(more, sizeof more, " and %d more", k->n - 1);
    console_note("%s%s stay%s %s: rows of %llu are no multiple of %s's %d",
                 ESC(name, k->first->name), more, k->n > 1 ? "" : "s",
                 quant_name((uint32_t)k->first->type), (unsigned long long)k->first->cols, to->name,
                 to->block_elems);
}

void quant_report_kept(const quant_plan *p)
{
    int n_same = 0;
    for (int u = 0; u < USE_COUNT; u++) {
        const quant_kept *k = p->kept[u];
        n_same += k[KEPT_SAME].n;
        if (k[KEPT_COLUMNS].n) say_columns(&k[KEPT_COLUMNS]);
        if (k[KEPT_EMBEDDING].n)
            console_note("token_embd.weight stays %s: other programs do not look for the scale "
                         "that NVFP4 would need",
                         quant_name((uint32_t)k[KEPT_EMBEDDING].first->type));
    }
    if (n_same)
        console_note("%d matri%s of the requested type already: copied", n_same,
                     n_same == 1 ? "x is" : "ces are");
}

/* ---- for people ------------------------------------------------------------------------------ */

static void print_class(const quant_report *r, int use)
{
    const quant_class *k = &r->result->of[use];
    char old_bytes[32], new_bytes[32], from[32];
    if (k->n == 0) return;
    snprintf(from, sizeof from, "%s%s", quant_name((uint32_t)k->from), k->mixed ? " ..." : "");
    printf("%-17s %7d  %-9s  %-6s %10s %10s", model_use_name((model_use)use), k->n, from,
           quant_name((uint32_t)k->to), text_bytes(old_bytes, sizeof old_bytes, k->old_bytes),
           text_bytes(new_bytes, sizeof new_bytes, k->new_bytes));
    if (r->written) printf("  %9.3g", quant_error_relative(&k->error, false));
    if (r->written && r->weighted) printf("  %9.3g", quant_error_relative(&k->error, true));
    printf("\n");
}

static void print_table(const quant_report *r)
{
    printf("%-17s %7s  %-9s  %-6s %10s %10s%s%s\n", "class", "tensors", "was", "is", "was", "is",
           r->written ? "      error" : "", r->written && r->weighted ? "   weighted" : "");
    for (int u = 0; u < USE_COUNT; u++) print_class(r, u);
    if (r->check)
        printf("KL %.3g nats per token, the same likeliest token in %d of %d; over the last %d of "
               "%d tokens\n", r->check->kl, r->check->same, r->check->r.n_row, r->check->r.n_row,
               r->check->r.n);
}

static void say_summary(const quant_report *r)
{
    char old_bytes[32], new_bytes[32], seconds[32] = "";
    if (r->written) snprintf(seconds, sizeof seconds, ", %.1f s", (double)r->result->ns * 1e-9);
    console_note("%s: %s instead of %s, %d of %d tensors %srewritten%s", r->to,
                 text_bytes(new_bytes, sizeof new_bytes, r->plan->file_bytes),
                 text_bytes(old_bytes, sizeof old_bytes, r->old_bytes), r->plan->n_rewrite,
                 r->plan->n_item, r->written ? "" : "would be ", seconds);
}

/* ---- for scripts ----------------------------------------------------------------------------- */

static json_t *class_json(const quant_report *r, int use)
{
    const quant_class *k = &r->result->of[use];
    json_t *v = json_pack("{s:s, s:i, s:s, s:s, s:b, s:I, s:I, s:I}", "class",
                          model_use_name((model_use)use), "tensors", k->n, "from",
                          quant_name((uint32_t)k->from), "to", quant_name((uint32_t)k->to),
                          "from_mixed", (int)k->mixed, "weights", (json_int_t)k->weights,
                          "old_bytes", (json_int_t)k->old_bytes, "bytes",
                          (json_int_t)k->new_bytes);
    if (v && r->written)
        json_object_set_new(v, "error", json_real(quant_error_relative(&k->error, false)));
    if (v && r->written && r->weighted)
        json_object_set_new(v, "weighted_error", json_real(quant_error_relative(&k->error, true)));
    return v;
}

static json_t *kept_json(const quant_plan *p)
{
    static const char *const reasons[KEPT_REASONS] = { "columns", "same type", "embedding" };
    json_t *list = json_array();
    for (int u = 0; u < USE_COUNT; u++)
        for (int reason = 0; reason < KEPT_REASONS; reason++) {
            const quant_kept *k = &p->kept[u][reason];
            if (k->n == 0) continue;
            json_array_append_new(list, json_pack("{s:s, s:i, s:s, s:s}", "class",
                                                  model_use_name((model_use)u), "tensors", k->n,
                                                  "type", quant_name((uint32_t)k->first->type),
                                                  "reason", reasons[reason]));
        }
    return list;
}

static int print_json(const quant_report *r)
{
    const quant_check *c = r->check;
    json_t *classes = json_array(), *v;
    char from[1024], to[1024];
    for (int u = 0; u < USE_COUNT; u++)
        if (r->result->of[u].n) json_array_append_new(classes, class_json(r, u));
    v = json_pack("{s:s, s:s, s:b, s:I, s:I, s:i, s:i, s:i, s:f, s:o, s:o}", "input",
                  ESC(from, str_from(r->from)), "file", ESC(to, str_from(r->to)), "written",
                  (int)r->written, "old_bytes", (json_int_t)r->old_bytes, "bytes",
                  (json_int_t)r->plan->file_bytes, "tensors", r->plan->n_out, "rewritten",
                  r->plan->n_rewrite, "file_type", (int)r->plan->file_type, "seconds",
                  (double)r->result->ns * 1e-9, "classes", classes, "kept", kept_json(r->plan));
    if (v && c)
        json_object_set_new(v, "check", json_pack("{s:f, s:i, s:i, s:i}", "kl", c->kl, "same",
                                                  c->same, "rows", c->r.n_row, "tokens", c->r.n));
    return console_report(v, REPORT_FLAGS, " for the report");
}

int quant_report_print(const quant_report *r, bool json)
{
    if (json && print_json(r) != 0) return 1;
    if (!json) print_table(r);
    say_summary(r);
    return console_finish();
}
