/* cache_plot.c - an SVG written by hand: axes, lines with marks, a legend.
 *
 * Colours are classes, with a second set for dark pages, on a background of their own. Lines differ
 * in colour, mark and dash, so that no reader depends on one of them alone. Text from the trace is
 * escaped. */
#include "cli/bench/cache_plot.h"

#include <stdio.h>
#include <string.h>

#include "cli/console.h"

#define put textbuf_printf              /* nearly every line is one */

enum {
    PANEL_W = 380, PANEL_H = 280,        /* of the axes */
    LEFT = 62, TOP = 84, BOTTOM = 52, GAP = 34, LEGEND_W = 112
};

/* The model's name between tags: printable, and nothing that XML would obey. */
static void put_name(textbuf *b, const routing_model *m)
{
    char shown[4 * ROUTING_NAME_CAP];
    for (const char *p = ESC(shown, str_from(m->name)); *p; p++) {
        if (*p == '&') textbuf_str(b, "&amp;");
        else if (*p == '<') textbuf_str(b, "&lt;");
        else if (*p == '>') textbuf_str(b, "&gt;");
        else textbuf_put(b, (str_view){ p, 1 });
    }
}

/* ---- looks ----------------------------------------------------------------------------------- */

typedef enum mark {
    MARK_NONE, MARK_CIRCLE, MARK_SQUARE, MARK_TRIANGLE, MARK_DIAMOND, MARK_ON_TIP
} mark;

/* By rule. Lines that often lie on each other grow thinner in the order in which they are drawn. */
static const struct look {
    const char *light, *dark, *dash;
    double width;
    mark m;
} looks[REPLAY_RULES] = {
    [CACHE_LRU] = { "#0969da", "#58a6ff", "", 2, MARK_CIRCLE },
    [CACHE_LFU] = { "#bf8700", "#e3b341", "", 6.5, MARK_SQUARE },
    [CACHE_LFRU] = { "#1a7f37", "#3fb950", "", 4.2, MARK_TRIANGLE },
    [CACHE_LCP] = { "#cf222e", "#ff7b72", "", 2.4, MARK_DIAMOND },
    [CACHE_FADE] = { "#8250df", "#bc8cff", "", 1.2, MARK_ON_TIP },
    [REPLAY_BEST] = { "#1f2328", "#f0f6fc", "7 4", 2, MARK_NONE },
    [REPLAY_FIXED] = { "#6e7781", "#8b949e", "2 3", 2, MARK_NONE },
};

static void put_style(textbuf *b)
{
    textbuf_str(b, "<style>\n"
                   "text { font: 12px system-ui, sans-serif; fill: #1f2328 }\n"
                   ".title { font-size: 15px; font-weight: 600 }\n"
                   ".faint { fill: #59636e }\n"
                   ".page { fill: #ffffff }\n"
                   ".grid { stroke: #d1d9e0; stroke-width: 1; fill: none }\n"
                   ".axis { stroke: #59636e; stroke-width: 1; fill: none }\n"
                   ".line { fill: none; stroke-linejoin: round }\n");
    for (int r = 0; r < REPLAY_RULES; r++)
        put(b, ".%s { stroke: %s; stroke-width: %g } .%s-mark { fill: %s }\n", replay_rule_name(r),
            looks[r].light, looks[r].width, replay_rule_name(r), looks[r].light);
    textbuf_str(b, "@media (prefers-color-scheme: dark) {\n"
                   "text { fill: #f0f6fc }\n"
                   ".faint { fill: #9198a1 }\n"
                   ".page { fill: #0d1117 }\n"
                   ".grid { stroke: #3d444d }\n"
                   ".axis { stroke: #9198a1 }\n");
    for (int r = 0; r < REPLAY_RULES; r++)
        put(b, ".%s { stroke: %s } .%s-mark { fill: %s }\n", replay_rule_name(r), looks[r].dark,
            replay_rule_name(r), looks[r].dark);
    textbuf_str(b, "}\n</style>\n");
}

static void put_mark(textbuf *b, int rule, double x, double y)
{
    const char *name = replay_rule_name(rule);
    switch (looks[rule].m) {
    case MARK_NONE: break;
    case MARK_CIRCLE:
        put(b, "<circle class=\"%s-mark\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.4\"/>\n", name, x, y);
        break;
    case MARK_SQUARE:
        put(b, "<rect class=\"%s-mark\" x=\"%.1f\" y=\"%.1f\" width=\"6\" height=\"6\"/>\n", name,
            x - 3, y - 3);
        break;
    case MARK_TRIANGLE:
        put(b, "<path class=\"%s-mark\" d=\"M%.1f %.1fl4 7h-8z\"/>\n", name, x, y - 4.5);
        break;
    case MARK_DIAMOND:
        put(b, "<path class=\"%s-mark\" d=\"M%.1f %.1fl4 4l-4 4l-4-4z\"/>\n", name, x, y - 4);
        break;
    case MARK_ON_TIP:
        put(b, "<path class=\"%s-mark\" d=\"M%.1f %.1fl4-7h-8z\"/>\n", name, x, y + 4.5);
        break;
    }
}

/* Attributes of a line, without its points. */
static void put_line_class(textbuf *b, int rule)
{
    put(b, "class=\"line %s\"", replay_rule_name(rule));
    if (looks[rule].dash[0]) put(b, " stroke-dasharray=\"%s\"", looks[rule].dash);
}

/* ---- a panel --------------------------------------------------------------------------------- */

static double x_of(double percent) { return PANEL_W * percent / 100; }
static double y_of(double share) { return PANEL_H * (1 - share); }

static void put_axes(textbuf *b, bool with_labels)
{
    for (int v = 0; v <= 100; v += 25) {
        const double x = x_of(v), y = y_of(v / 100.0);
        put(b, "<path class=\"grid\" d=\"M%.1f 0V%dM0 %.1fH%d\"/>\n", x, PANEL_H, y, PANEL_W);
        put(b, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%d%%</text>\n", x, PANEL_H + 18,
            v);
        if (with_labels)
            put(b, "<text x=\"-8\" y=\"%.1f\" text-anchor=\"end\">%d%%</text>\n", y + 4, v);
    }
    put(b, "<path class=\"axis\" d=\"M0 0V%dH%d\"/>\n", PANEL_H, PANEL_W);
    put(b, "<text class=\"faint\" x=\"%d\" y=\"%d\" text-anchor=\"middle\">cache size, share of "
        "all experts</text>\n", PANEL_W / 2, PANEL_H + 38);
    if (with_labels)
        put(b, "<text class=\"faint\" transform=\"translate(-46 %d) rotate(-90)\" "
            "text-anchor=\"middle\">hit rate</text>\n", PANEL_H / 2);
}

static void put_one_token(textbuf *b, const cache_table *t)
{
    for (int s = 0; s < t->n_size; s++) {
        const double x = x_of(t->sizes[s].percent);
        const bool right = t->sizes[s].percent > 60;
        if (!t->sizes[s].one_token) continue;
        put(b, "<path class=\"axis\" stroke-dasharray=\"1 3\" d=\"M%.1f 0V%d\"/>\n", x, PANEL_H);
        put(b, "<text class=\"faint\" x=\"%.1f\" y=\"%d\" text-anchor=\"%s\">one token's "
            "worth</text>\n", right ? x - 5 : x + 5, PANEL_H - 7, right ? "end" : "start");
    }
}

static void put_curve(textbuf *b, const cache_table *t, replay_mode mode, int rule)
{
    textbuf_str(b, "<polyline ");
    put_line_class(b, rule);
    textbuf_str(b, " points=\"");
    for (int s = 0; s < t->n_size; s++)
        put(b, "%s%.1f,%.1f", s ? " " : "", x_of(t->sizes[s].percent),
            y_of(t->at[mode][s][rule].hit_rate));
    textbuf_str(b, "\"/>\n");
    for (int s = 0; s < t->n_size; s++)
        put_mark(b, rule, x_of(t->sizes[s].percent), y_of(t->at[mode][s][rule].hit_rate));
}

static void put_panel(textbuf *b, const cache_table *t, replay_mode mode, int x, bool first)
{
    char text[128];
    put(b, "<g transform=\"translate(%d %d)\">\n", x, TOP);
    put(b, "<text x=\"0\" y=\"-14\">%s</text>\n", cache_mode_text(text, sizeof text, t, mode));
    put_axes(b, first);
    put_one_token(b, t);
    for (int i = 0; i < REPLAY_RULES; i++)
        if (cache_has(t, mode, cache_rule_at(i))) put_curve(b, t, mode, cache_rule_at(i));
    textbuf_str(b, "</g>\n");
}

/* From the best down, as the lines are. */
static void put_legend(textbuf *b, const cache_table *t, int x)
{
    int y = 8;
    put(b, "<g transform=\"translate(%d %d)\">\n", x, TOP);
    for (int i = REPLAY_RULES - 1; i >= 0; i--) {
        const int rule = cache_rule_at(i);
        if (!cache_has(t, REPLAY_VRAM, rule) && !cache_has(t, REPLAY_RAM, rule)) continue;
        textbuf_str(b, "<path ");
        put_line_class(b, rule);
        put(b, " d=\"M0 %dh26\"/>\n", y);
        put_mark(b, rule, 13, y);
        put(b, "<text x=\"34\" y=\"%d\">%s</text>\n", y + 4, replay_rule_name(rule));
        y += 22;
    }
    textbuf_str(b, "</g>\n");
}

void cache_plot(textbuf *b, const cache_table *t)
{
    const routing_model *m = &t->trace->model;
    const int n_panel = t->mode[REPLAY_VRAM] + t->mode[REPLAY_RAM];
    const int width = LEFT + n_panel * PANEL_W + (n_panel - 1) * GAP + LEGEND_W;
    const int height = TOP + PANEL_H + BOTTOM;
    int x = LEFT;
    put(b, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
        "height=\"%d\" role=\"img\">\n<title>Hit rate of expert caches: ", width, height, width,
        height);
    put_name(b, m);
    textbuf_str(b, "</title>\n");
    put_style(b);
    put(b, "<rect class=\"page\" width=\"%d\" height=\"%d\"/>\n", width, height);
    put(b, "<text class=\"title\" x=\"%d\" y=\"24\">", LEFT);
    put_name(b, m);
    put(b, "</text>\n<text class=\"faint\" x=\"%d\" y=\"43\">%d of %d experts in each of %d "
        "layers, %d tokens after a prompt of %d</text>\n", LEFT, m->n_used, m->n_expert, m->n_layer,
        t->trace->n_token - t->trace->n_prompt, t->trace->n_prompt);
    for (int mode = 0; mode < REPLAY_MODES; mode++) {
        if (!t->mode[mode]) continue;
        put_panel(b, t, (replay_mode)mode, x, x == LEFT);
        x += PANEL_W + GAP;
    }
    put_legend(b, t, x - GAP + 22);
    textbuf_str(b, "</svg>\n");
}
