/* args.c - parses a verb's arguments from its table and prints its help.
 *
 * Accepts --name VALUE, --name=VALUE, -x VALUE, -xVALUE; operands may stand between options. */
#include "cli/args.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/console.h"

/* ---- values -------------------------------------------------------------------------------- */

static bool parse_int(int64_t *out, const char *text)
{
    char *end;
    errno = 0;
    *out = strtoll(text, &end, 10);
    return errno == 0 && end != text && *end == '\0';
}

static bool parse_float(double *out, const char *text)
{
    char *end;
    errno = 0;
    *out = strtod(text, &end);
    return errno == 0 && end != text && *end == '\0' && isfinite(*out);
}

bool arg_parse_size(uint64_t *out, const char *text)
{
    static const char units[] = "KMGT";
    double v;
    char *end, *unit;
    errno = 0;
    v = strtod(text, &end);
    if (errno || end == text || !isfinite(v) || v < 0) return false;
    if (*end && (unit = strchr(units, *end & ~0x20))) {
        v *= pow(1024, (double)(unit - units + 1));
        end++;
        if (*end == 'i') end++;
        if (*end == 'B') end++;
    }
    if (*end || v >= 9e18) return false;
    *out = (uint64_t)v;
    return true;
}

/* ---- the tables ---------------------------------------------------------------------------- */

/* An option with the struct its offset counts from. */
typedef struct slot {
    const arg_option *o;                 /* NULL: there is no such option */
    void *into;
} slot;

static int n_slot(const arg_spec *spec)
{
    int n = spec->n_option;
    for (int g = 0; g < spec->n_group; g++) n += spec->groups[g].n_option;
    return n;
}

/* Option i: the verb's own ones first, then group after group. */
static slot slot_at(const arg_spec *spec, void *into, int i)
{
    int g = 0;
    if (i < spec->n_option) return (slot){ &spec->options[i], into };
    i -= spec->n_option;
    while (i >= spec->groups[g].n_option) i -= spec->groups[g++].n_option;
    return (slot){ &spec->groups[g].options[i], (char *)into + spec->groups[g].offset };
}

static slot find_long(const arg_spec *spec, void *into, const char *name, size_t len)
{
    for (int i = 0; i < n_slot(spec); i++) {
        const slot s = slot_at(spec, into, i);
        if (strlen(s.o->name) == len && memcmp(s.o->name, name, len) == 0) return s;
    }
    return (slot){ NULL, NULL };
}

static slot find_short(const arg_spec *spec, void *into, char letter)
{
    for (int i = 0; i < n_slot(spec); i++) {
        const slot s = slot_at(spec, into, i);
        if (s.o->letter == letter) return s;
    }
    return (slot){ NULL, NULL };
}

/* Stores text in the option's field. where is what the message calls it: "--seed" or "MOE_SEED". */
static int set_value(slot s, const char *text, const char *where)
{
    const arg_option *o = s.o;
    void *field = (char *)s.into + o->offset;
    const bool limited = o->lo != 0 || o->hi != 0;
    double number = 0;
    bool ok = true;

    switch (o->type) {
    case ARG_FLAG: *(bool *)field = strcmp(text, "0") != 0; break;
    case ARG_INT: {
        int64_t v;
        if ((ok = parse_int(&v, text))) *(int64_t *)field = v;
        number = (double)v;
        break;
    }
    case ARG_FLOAT: ok = parse_float(&number, text); if (ok) *(double *)field = number; break;
    case ARG_SIZE: ok = arg_parse_size((uint64_t *)field, text); break;
    case ARG_TEXT:
    case ARG_NEEDED_TEXT: *(const char **)field = text; break;
    case ARG_TEXTS: {
        arg_texts *list = field;
        if (list->n == ARG_TEXTS_MAX) {
            console_error("%s: given more than %d times", where, ARG_TEXTS_MAX);
            return ARGS_BAD;
        }
        list->text[list->n++] = text;
        break;
    }
    }
    if (!ok) {
        console_error("%s: '%s' is not %s", where, text,
                      o->type == ARG_INT ? "a whole number" : o->type == ARG_SIZE ?
                      "a size such as 512M or 20G" : "a number");
        return ARGS_BAD;
    }
    if (limited && (o->type == ARG_INT || o->type == ARG_FLOAT) &&
        (number < o->lo || number > o->hi)) {
        console_error("%s: %s is out of range %.10g..%.10g", where, text, o->lo, o->hi);
        return ARGS_BAD;
    }
    return ARGS_RUN;
}

/* ---- help ---------------------------------------------------------------------------------- */

enum { LEFT_MIN = 21, LEFT_MAX = 31 };   /* columns of the part with the names */

static int option_left(char *dst, size_t cap, const arg_option *o)
{
    char letter[8] = "    ";
    if (o->letter) snprintf(letter, sizeof letter, "-%c, ", o->letter);
    return snprintf(dst, cap, "%s--%s%s%s", letter, o->name, o->value ? " " : "",
                    o->value ? o->value : "");
}

static void print_options(const arg_option *options, int n, int width)
{
    char left[64];
    for (int i = 0; i < n; i++) {
        option_left(left, sizeof left, &options[i]);
        printf("  %-*s %s", width, left, options[i].help);
        if (options[i].env) printf("   [%s]", options[i].env);
        printf("\n");
    }
}

static void print_help(const arg_spec *spec)
{
    int width = LEFT_MIN;
    for (int i = 0; i < n_slot(spec); i++) {
        char left[64];
        const int n = option_left(left, sizeof left, slot_at(spec, NULL, i).o);
        if (n > width && n <= LEFT_MAX) width = n;
    }
    printf("Usage: %s\n%s\n", spec->usage, spec->about);
    print_options(spec->options, spec->n_option, width);
    printf("  %-*s %s\n", width, "-h, --help", "Show this help");
    for (int g = 0; g < spec->n_group; g++) {
        printf("\n%s\n", spec->groups[g].title);
        print_options(spec->groups[g].options, spec->groups[g].n_option, width);
    }
    if (spec->epilogue) printf("\n%s\n", spec->epilogue);
}

/* ---- parsing ------------------------------------------------------------------------------- */

static int read_environment(const arg_spec *spec, void *into)
{
    for (int i = 0; i < n_slot(spec); i++) {
        const slot s = slot_at(spec, into, i);
        const char *text = s.o->env ? getenv(s.o->env) : NULL;
        if (text && *text && set_value(s, text, s.o->env) != ARGS_RUN) return ARGS_BAD;
    }
    return ARGS_RUN;
}

/* "moe-run run" from a usage of "moe-run [run] [-m FILE] ...". */
static const char *verb_name(char *dst, size_t cap, const arg_spec *spec)
{
    size_t n = 0;
    int blanks = 0;
    for (const char *p = spec->usage; *p && n + 1 < cap; p++) {
        if (*p == ' ' && ++blanks == 2) break;
        if (*p != '[' && *p != ']') dst[n++] = *p;
    }
    dst[n] = '\0';
    return dst;
}

/* One option at argv[*i]; moves *i over a value that stands in the next argument. */
static int parse_option(const arg_spec *spec, void *into, int argc, char **argv, int *i)
{
    const char *arg = argv[*i], *value = NULL;
    char where[64], verb[64];
    slot s;

    if (arg[1] == '-') {
        const char *eq = strchr(arg, '=');
        const size_t len = eq ? (size_t)(eq - arg - 2) : strlen(arg + 2);
        s = find_long(spec, into, arg + 2, len);
        if (eq) value = eq + 1;
    } else {
        s = find_short(spec, into, arg[1]);
        if (arg[2]) value = arg + 2;
    }
    if (!s.o || (s.o->type == ARG_FLAG && value)) {
        console_error("unknown option %s (%s --help lists them)", arg, verb_name(verb, sizeof verb,
                                                                                 spec));
        return ARGS_BAD;
    }
    if (s.o->type == ARG_FLAG) return set_value(s, "1", "");
    snprintf(where, sizeof where, "--%s", s.o->name);
    if (!value && *i + 1 < argc) value = argv[++*i];
    if (!value) {
        console_error("%s needs a value (%s)", where, s.o->value);
        return ARGS_BAD;
    }
    return set_value(s, value, where);
}

int args_parse(const arg_spec *spec, void *into, const char **operands, int *n_operand, int argc,
               char **argv)
{
    bool options_end = false;
    int n = 0;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--") == 0) break;
        if (strcmp(argv[i], "--help") != 0 && strcmp(argv[i], "-h") != 0) continue;
        print_help(spec);
        return ARGS_HELP;
    }
    if (read_environment(spec, into) != ARGS_RUN) return ARGS_BAD;
    for (int i = 1; i < argc; i++) {
        if (!options_end && strcmp(argv[i], "--") == 0) {
            options_end = true;
        } else if (!options_end && argv[i][0] == '-' && argv[i][1]) {
            if (parse_option(spec, into, argc, argv, &i) != ARGS_RUN) return ARGS_BAD;
        } else if (n == spec->max_operands) {
            console_error("unexpected argument '%s' (usage: %s)", argv[i], spec->usage);
            return ARGS_BAD;
        } else {
            operands[n++] = argv[i];
        }
    }
    if (n < spec->min_operands) {
        console_error("%s missing (usage: %s)", spec->operands, spec->usage);
        return ARGS_BAD;
    }
    for (int i = 0; i < n_slot(spec); i++) {
        const slot s = slot_at(spec, into, i);
        const arg_option *o = s.o;
        if (o->type != ARG_NEEDED_TEXT || *(const char **)((char *)s.into + o->offset)) continue;
        console_error("-%c %s missing (usage: %s)", o->letter, o->value, spec->usage);
        return ARGS_BAD;
    }
    if (n_operand) *n_operand = n;
    return ARGS_RUN;
}
