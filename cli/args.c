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

static bool parse_size(uint64_t *out, const char *text)
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

/* Stores text in the option's field. where is what the message calls it: "--seed" or "MOE_SEED". */
static int set_value(const arg_option *o, void *into, const char *text, const char *where)
{
    void *field = (char *)into + o->offset;
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
    case ARG_SIZE: ok = parse_size((uint64_t *)field, text); break;
    case ARG_TEXT:
    case ARG_NEEDED_TEXT: *(const char **)field = text; break;
    }
    if (!ok) {
        console_error("%s: '%s' is not %s", where, text,
                      o->type == ARG_INT ? "a whole number" : o->type == ARG_SIZE ?
                      "a size such as 512M or 20G" : "a number");
        return ARGS_BAD;
    }
    if (limited && (o->type == ARG_INT || o->type == ARG_FLOAT) &&
        (number < o->lo || number > o->hi)) {
        console_error("%s: %s is out of range %g..%g", where, text, o->lo, o->hi);
        return ARGS_BAD;
    }
    return ARGS_RUN;
}

/* ---- help ---------------------------------------------------------------------------------- */

static void print_option(const arg_option *o)
{
    char left[64], letter[8] = "    ";
    if (o->letter) snprintf(letter, sizeof letter, "-%c, ", o->letter);
    snprintf(left, sizeof left, "%s--%s%s%s", letter, o->name, o->value ? " " : "",
             o->value ? o->value : "");
    printf("  %-21s %s", left, o->help);
    if (o->env) printf("   [%s]", o->env);
    printf("\n");
}

static void print_help(const arg_spec *spec)
{
    printf("Usage: %s\n%s\n", spec->usage, spec->about);
    for (int i = 0; i < spec->n_option; i++) print_option(&spec->options[i]);
    printf("  %-21s %s\n", "-h, --help", "Show this help");
}

/* ---- parsing ------------------------------------------------------------------------------- */

static const arg_option *find_long(const arg_spec *spec, const char *name, size_t len)
{
    for (int i = 0; i < spec->n_option; i++)
        if (strlen(spec->options[i].name) == len && memcmp(spec->options[i].name, name, len) == 0)
            return &spec->options[i];
    return NULL;
}

static const arg_option *find_short(const arg_spec *spec, char letter)
{
    for (int i = 0; i < spec->n_option; i++)
        if (spec->options[i].letter == letter) return &spec->options[i];
    return NULL;
}

static int read_environment(const arg_spec *spec, void *into)
{
    for (int i = 0; i < spec->n_option; i++) {
        const arg_option *o = &spec->options[i];
        const char *text = o->env ? getenv(o->env) : NULL;
        if (text && *text && set_value(o, into, text, o->env) != ARGS_RUN) return ARGS_BAD;
    }
    return ARGS_RUN;
}

/* One option at argv[*i]; moves *i over a value that stands in the next argument. */
static int parse_option(const arg_spec *spec, void *into, int argc, char **argv, int *i)
{
    const char *arg = argv[*i], *value = NULL;
    const arg_option *o;
    char where[64];

    if (arg[1] == '-') {
        const char *eq = strchr(arg, '=');
        const size_t len = eq ? (size_t)(eq - arg - 2) : strlen(arg + 2);
        o = find_long(spec, arg + 2, len);
        if (eq) value = eq + 1;
    } else {
        o = find_short(spec, arg[1]);
        if (arg[2]) value = arg + 2;
    }
    if (!o || (o->type == ARG_FLAG && value)) {
        console_error("unknown option %s (--help lists them)", arg);
        return ARGS_BAD;
    }
    if (o->type == ARG_FLAG) return set_value(o, into, "1", "");
    snprintf(where, sizeof where, "--%s", o->name);
    if (!value && *i + 1 < argc) value = argv[++*i];
    if (!value) {
        console_error("%s needs a value (%s)", where, o->value);
        return ARGS_BAD;
    }
    return set_value(o, into, value, where);
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
    for (int i = 0; i < spec->n_option; i++) {
        const arg_option *o = &spec->options[i];
        if (o->type != ARG_NEEDED_TEXT || *(const char **)((char *)into + o->offset)) continue;
        console_error("-%c %s missing (usage: %s)", o->letter, o->value, spec->usage);
        return ARGS_BAD;
    }
    if (n_operand) *n_operand = n;
    return ARGS_RUN;
}
