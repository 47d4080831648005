/* lengths_view.c - the figures of moe-bench lengths, written three ways.
 *
 * The picture has colours as classes, with a second set for dark pages; lines differ in colour and
 * dash. Text from the file is escaped. */
#include "cli/bench/lengths_view.h"

#include <math.h>
#include <stdio.h>

#include "cli/console.h"

#define put textbuf_printf              /* nearly every line is one */

enum { PLOT_W = 560, PLOT_H = 340, LEFT = 70, TOP = 64, BOTTOM = 54, LEGEND_W = 92 };

#define NOISE 0.95                       /* of a shorter prompt's speed: less is a fall */

static const struct look { const char *name, *light, *dark, *dash; double width; } looks[] = {
    [LENGTHS_AUTO] = { "auto", "#0969da", "#58a6ff", "", 2.6 },
    [LENGTHS_BUS] = { "bus", "#bf8700", "#e3b341", "7 4", 1.8 },
    [LENGTHS_CORES] = { "cores", "#1a7f37", "#3fb950", "2 3", 1.8 },
    [LENGTHS_SPLIT] = { "split", "#8250df", "#bc8cff", "9 3 2 3", 1.8 },
};

const char *lengths_way_name(int way) { return looks[way].name; }

bool lengths_falls(const lengths_table *t, int row, int way)
{
    const length_row *at = &t->rows[row];
    for (int r = 0; r < row; r++)
        if (t->rows[r].tokens > 8 && at->tokens > t->rows[r].tokens && at->rate[way].n > 0 &&
            t->rows[r].rate[way].n > 0 &&
            at->rate[way].median < NOISE * t->rows[r].rate[way].median)
            return true;
    return false;
}

/* ---- a table, lines of numbers --------------------------------------------------------------- */

void lengths_print(const lengths_table *t)
{
    char shown[256];
    printf("model     %s\nplace     %s\n\n%7s", ESC(shown, str_from(t->model)), t->place, "tokens");
    for (int w = 0; w < LENGTHS_WAYS; w++)
        if (t->ways[w]) printf(" %11s  ", looks[w].name);
    printf("  over the bus\n");
    for (int r = 0; r < t->n_row; r++) {
        printf("%7d", t->rows[r].tokens);
        for (int w = 0; w < LENGTHS_WAYS; w++) {
            if (!t->ways[w]) continue;
            if (t->rows[r].rate[w].n == 0) printf(" %11s  ", "-");
            else printf(" %11.1f %s", t->rows[r].rate[w].median,
                        lengths_falls(t, r, w) ? "<" : " ");
        }
        if (t->rows[r].sent_percent >= 0) printf("  %d%%", t->rows[r].sent_percent);
        printf("\n");
    }
    printf("\ntok/s, the median of all runs; <: slower than a shorter prompt of 9 tokens or "
           "more\n");
}

void lengths_csv(textbuf *b, const lengths_table *t)
{
    textbuf_str(b, "tokens,way,tok_s,min,max,runs,sent_percent\n");
    for (int r = 0; r < t->n_row; r++)
        for (int w = 0; w < LENGTHS_WAYS; w++) {
            const spread *s = &t->rows[r].rate[w];
            if (!t->ways[w] || s->n == 0) continue;
            put(b, "%d,%s,%.3f,%.3f,%.3f,%d,", t->rows[r].tokens, looks[w].name, s->median, s->min,
                s->max, s->n);
            if (w == LENGTHS_AUTO && t->rows[r].sent_percent >= 0)
                put(b, "%d", t->rows[r].sent_percent);
            textbuf_str(b, "\n");
        }
}

/* ---- a picture ------------------------------------------------------------------------------- */

typedef struct scales { double x0, x1, y0, y1; } scales;         /* powers of 2, powers of 10 */

static scales scales_of(const lengths_table *t)
{
    scales s = { 0, 1, 1e300, -1e300 };
    for (int r = 0; r < t->n_row; r++) {
        s.x1 = fmax(s.x1, ceil(log2(t->rows[r].tokens)));
        for (int w = 0; w < LENGTHS_WAYS; w++) {
            const spread *v = &t->rows[r].rate[w];
            if (!t->ways[w] || v->n == 0 || !(v->median > 0)) continue;
            s.y0 = fmin(s.y0, floor(log10(v->median)));
            s.y1 = fmax(s.y1, ceil(log10(v->median)));
        }
    }
    if (s.y0 > s.y1) s.y0 = s.y1 = 0;
    if (s.y1 == s.y0) s.y1++;
    return s;
}

static double x_of(const scales *s, double tokens)
{
    return PLOT_W * (log2(tokens) - s->x0) / (s->x1 - s->x0);
}

static double y_of(const scales *s, double rate)
{
    return PLOT_H * (1 - (log10(rate) - s->y0) / (s->y1 - s->y0));
}

static void put_style(textbuf *b)
{
    textbuf_str(b, "<style>\ntext { font: 12px system-ui, sans-serif; fill: #1f2328 }\n"
                   ".title { font-size: 15px; font-weight: 600 }\n.faint { fill: #59636e }\n"
                   ".page { fill: #ffffff }\n.grid { stroke: #d1d9e0; fill: none }\n"
                   ".axis { stroke: #59636e; fill: none }\n"
                   ".line { fill: none; stroke-linejoin: round }\n");
    for (int w = 0; w < LENGTHS_WAYS; w++)
        put(b, ".%s { stroke: %s; stroke-width: %g } .%s-mark { fill: %s }\n", looks[w].name,
            looks[w].light, looks[w].width, looks[w].name, looks[w].light);
    textbuf_str(b, "@media (prefers-color-scheme: dark) {\ntext { fill: #f0f6fc }\n"
                   ".faint { fill: #9198a1 }\n.page { fill: #0d1117 }\n"
                   ".grid { stroke: #3d444d }\n.axis { stroke: #9198a1 }\n");
    for (int w = 0; w < LENGTHS_WAYS; w++)
        put(b, ".%s { stroke: %s } .%s-mark { fill: %s }\n", looks[w].name, looks[w].dark,
            looks[w].name, looks[w].dark);
    textbuf_str(b, "}\n</style>\n");
}

static void put_axes(textbuf *b, const scales *s)
{
    for (int i = (int)s->x0; i <= (int)s->x1; i++) {
        const double x = x_of(s, ldexp(1, i));
        put(b, "<path class=\"grid\" d=\"M%.1f 0V%d\"/>\n<text x=\"%.1f\" y=\"%d\" "
            "text-anchor=\"middle\">%.0f</text>\n", x, PLOT_H, x, PLOT_H + 18, ldexp(1, i));
    }
    for (int i = (int)s->y0; i <= (int)s->y1; i++) {
        const double y = y_of(s, pow(10, i));
        put(b, "<path class=\"grid\" d=\"M0 %.1fH%d\"/>\n<text x=\"-8\" y=\"%.1f\" "
            "text-anchor=\"end\">%g</text>\n", y, PLOT_W, y + 4, pow(10, i));
    }
    put(b, "<path class=\"axis\" d=\"M0 0V%dH%d\"/>\n<text class=\"faint\" x=\"%d\" y=\"%d\" "
        "text-anchor=\"middle\">tokens of the prompt</text>\n", PLOT_H, PLOT_W, PLOT_W / 2,
        PLOT_H + 40);
    put(b, "<text class=\"faint\" transform=\"translate(-52 %d) rotate(-90)\" "
        "text-anchor=\"middle\">tok/s</text>\n", PLOT_H / 2);
}

static void put_line_class(textbuf *b, int way)
{
    put(b, "class=\"line %s\"", looks[way].name);
    if (looks[way].dash[0]) put(b, " stroke-dasharray=\"%s\"", looks[way].dash);
}

static void put_curve(textbuf *b, const lengths_table *t, const scales *s, int way)
{
    textbuf_str(b, "<polyline ");
    put_line_class(b, way);
    textbuf_str(b, " points=\"");
    for (int r = 0; r < t->n_row; r++)
        if (t->rows[r].rate[way].n > 0)
            put(b, "%.1f,%.1f ", x_of(s, t->rows[r].tokens),
                y_of(s, t->rows[r].rate[way].median));
    textbuf_str(b, "\"/>\n");
    for (int r = 0; r < t->n_row; r++)
        if (t->rows[r].rate[way].n > 0)
            put(b, "<circle class=\"%s-mark\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"/>\n",
                looks[way].name, x_of(s, t->rows[r].tokens),
                y_of(s, t->rows[r].rate[way].median));
}

/* Between tags: printable, and nothing that XML would obey. */
static void put_text(textbuf *b, const char *text)
{
    char shown[512];
    for (const char *p = ESC(shown, str_from(text)); *p; p++) {
        if (*p == '&') textbuf_str(b, "&amp;");
        else if (*p == '<') textbuf_str(b, "&lt;");
        else if (*p == '>') textbuf_str(b, "&gt;");
        else textbuf_put(b, (str_view){ p, 1 });
    }
}

void lengths_plot(textbuf *b, const lengths_table *t)
{
    const int width = LEFT + PLOT_W + LEGEND_W, height = TOP + PLOT_H + BOTTOM;
    const scales s = scales_of(t);
    int y = 8;
    put(b, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
        "height=\"%d\" role=\"img\">\n<title>Speed of prompts by their length: ", width, height,
        width, height);
    put_text(b, t->model);
    textbuf_str(b, "</title>\n");
    put_style(b);
    put(b, "<rect class=\"page\" width=\"%d\" height=\"%d\"/>\n<text class=\"title\" x=\"%d\" "
        "y=\"24\">", width, height, LEFT);
    put_text(b, t->model);
    put(b, "</text>\n<text class=\"faint\" x=\"%d\" y=\"43\">", LEFT);
    put_text(b, t->place);
    put(b, "</text>\n<g transform=\"translate(%d %d)\">\n", LEFT, TOP);
    put_axes(b, &s);
    for (int w = LENGTHS_WAYS - 1; w >= 0; w--)
        if (t->ways[w]) put_curve(b, t, &s, w);
    put(b, "</g>\n<g transform=\"translate(%d %d)\">\n", LEFT + PLOT_W + 18, TOP);
    for (int w = 0; w < LENGTHS_WAYS; w++) {
        if (!t->ways[w]) continue;
        textbuf_str(b, "<path ");
        put_line_class(b, w);
        put(b, " d=\"M0 %dh26\"/>\n<text x=\"34\" y=\"%d\">%s</text>\n", y, y + 4, looks[w].name);
        y += 22;
    }
    textbuf_str(b, "</g>\n</svg>\n");
}
