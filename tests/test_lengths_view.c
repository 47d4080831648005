/* test_lengths_view.c - tables by hand: where speed falls, lines of numbers, a picture. */
#include "cli/bench/lengths_view.h"

#include <string.h>

#include "tests/test.h"

static spread alone(double v) { return (spread){ .n = 1, .median = v, .min = v, .max = v }; }

static lengths_table table_of(const int *tokens, const double *rates, int n)
{
    lengths_table t = { .model = "a <b> & c", .place = "here", .n_row = n };
    t.ways[LENGTHS_AUTO] = true;
    for (int r = 0; r < n; r++) {
        t.rows[r].tokens = tokens[r];
        t.rows[r].sent_percent = r == 2 ? 40 : -1;
        if (rates[r] > 0) t.rows[r].rate[LENGTHS_AUTO] = alone(rates[r]);
    }
    return t;
}

/* Eight tokens and nine are computed differently; noise is no fall; nothing measured is none. */
static void test_falls(void)
{
    static const int tokens[] = { 1, 8, 9, 16, 32, 64, 128 };
    static const double rates[] = { 50, 900, 100, 96, 94, 0, 200 };
    static const bool falls[] = { false, false, false, false, true, false, false };
    const lengths_table t = table_of(tokens, rates, ARRAY_LEN(tokens));
    for (int r = 0; r < t.n_row; r++)
        CHECK_MSG(lengths_falls(&t, r, LENGTHS_AUTO) == falls[r], "%d tokens", tokens[r]);
    CHECK(!lengths_falls(&t, 4, LENGTHS_BUS));
}

static void test_texts(void)
{
    static const int tokens[] = { 1, 9, 512 };
    static const double rates[] = { 50, 100, 1000 };
    lengths_table t = table_of(tokens, rates, ARRAY_LEN(tokens));
    textbuf b = { 0 };
    lengths_csv(&b, &t);
    textbuf_put(&b, (str_view){ "", 1 });
    CHECK(!b.failed && strcmp(b.ptr, "tokens,way,tok_s,min,max,runs,sent_percent\n"
                                     "1,auto,50.000,50.000,50.000,1,\n"
                                     "9,auto,100.000,100.000,100.000,1,\n"
                                     "512,auto,1000.000,1000.000,1000.000,1,40\n") == 0);
    textbuf_free(&b);
    b = (textbuf){ 0 };
    lengths_plot(&b, &t);
    textbuf_put(&b, (str_view){ "", 1 });
    CHECK(!b.failed && strstr(b.ptr, "a &lt;b&gt; &amp; c") && !strstr(b.ptr, "<b>"));
    CHECK(strstr(b.ptr, "</svg>") && !strstr(b.ptr, "nan") && !strstr(b.ptr, "inf"));
    /* 1 and 512 tokens are the ends of one axis; 50 is between 10 and 1000, the other's */
    CHECK(strstr(b.ptr, "points=\"0.0,221.") && strstr(b.ptr, " 560.0,0.0 \""));
    textbuf_free(&b);
    b = (textbuf){ 0 };
    t.n_row = 0;
    lengths_plot(&b, &t);
    CHECK(!b.failed);
    textbuf_free(&b);
}

int main(int argc, char **argv)
{
    test_begin("lengths_view", argc, argv);
    test_falls();
    test_texts();
    return test_end();
}
