/* args.c - parses a verb's arguments from its table and prints its help.
 *
 * Accepts --name VALUE, --name=VALUE, -x VALUE and -xVALUE; operands may come between options. Each
 * error is one line that names the correction. */
#include "cli/args/args.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/args/args_known.h"
#include "cli/args/nearest_word.h"
#include "cli/console.h"
#include "cli/model_name.h"
#include "cli/view/line_wrap.h"
#include "tiers/pool.h"

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

bool arg_is_model(const char *word)
{
    struct stat st;
    return str_ends(str_from(word), ".gguf") || (stat(word, &st) == 0 && S_ISREG(st.st_mode)) ||
           model_name_find(word);
}

/* ---- the tables ---------------------------------------------------------------------------- */

/* An option and the struct that its offset refers to. */
typedef struct slot {
    const arg_option *o;                 /* NULL: none */
    void *into;
    const arg_alias *by;                 /* the alias that was typed, or NULL */
} slot;

static int n_slot(const arg_spec *spec)
{
    int n = spec->n_option;
    for (int g = 0; g < spec->n_group; g++) n += spec->groups[g].n_option;
    return n;
}

/* Option i: the verb's own options, then those of its groups. */
static slot slot_at(const arg_spec *spec, void *into, int i)
{
    int g = 0;
    if (i < spec->n_option) return (slot){ &spec->options[i], into, NULL };
    i -= spec->n_option;
    while (i >= spec->groups[g].n_option) i -= spec->groups[g++].n_option;
    return (slot){ &spec->groups[g].options[i], (char *)into + spec->groups[g].offset, NULL };
}

static slot find_exact(const arg_spec *spec, void *into, str_view name)
{
    for (int i = 0; i < n_slot(spec); i++) {
        const slot s = slot_at(spec, into, i);
        if (s.o->name && str_is(name, s.o->name)) return s;
    }
    return (slot){ 0 };
}

/* By its own name or by an alias. */
static slot find_long(const arg_spec *spec, void *into, str_view name)
{
    slot s = find_exact(spec, into, name);
    const arg_alias *alias = s.o ? NULL : args_known_alias(name);
    if (!alias) return s;
    s = find_exact(spec, into, str_from(alias->ours));
    s.by = alias;
    return s.o && s.o->type == alias->type ? s : (slot){ 0 };
}

static bool takes_value(slot s) { return s.o->type != ARG_FLAG; }

/* A number of MiB as a size; -1 is auto. Text that is no number is returned as it is. */
static const char *in_mib(char *dst, size_t cap, const char *text)
{
    if (strcmp(text, "-1") == 0) return "auto";
    if (!*text || text[strspn(text, "0123456789")] || strlen(text) + 2 > cap) return text;
    snprintf(dst, cap, "%sM", text);
    return dst;
}

static slot find_short(const arg_spec *spec, void *into, char letter)
{
    for (int i = 0; i < n_slot(spec); i++) {
        const slot s = slot_at(spec, into, i);
        if (s.o->letter == letter) return s;
    }
    return (slot){ 0 };
}

/* Stores text in the option's field. where is its name in messages: "--seed" or "MOE_SEED". */
static int set_value(slot s, const char *text, const char *where)
{
    const arg_option *o = s.o;
    void *field = (char *)s.into + o->offset;
    const bool limited = o->lo != 0 || o->hi != 0 || o->type == ARG_THREADS;
    const double lo = o->type == ARG_THREADS ? 1 : o->lo;
    const double hi = o->type == ARG_THREADS ? pool_most_threads() : o->hi;
    double number = 0;
    bool ok = true;

    switch (o->type) {
    case ARG_FLAG: *(bool *)field = strcmp(text, "0") != 0; break;
    case ARG_THREADS:
    case ARG_INT: {
        int64_t v = 0;
        if ((ok = parse_int(&v, text))) *(int64_t *)field = v;
        number = (double)v;
        break;
    }
    case ARG_FLOAT: ok = parse_float(&number, text); if (ok) *(double *)field = number; break;
    case ARG_SIZE: ok = arg_parse_size((uint64_t *)field, text); break;
    case ARG_SIZE_OR_AUTO:
        if (strcmp(text, "auto") == 0) *(uint64_t *)field = UINT64_MAX;
        else ok = arg_parse_size((uint64_t *)field, text);
        break;
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
                      o->type == ARG_FLOAT ? "a number" :
                      o->type == ARG_SIZE ? "a size such as 512M or 20G" :
                      o->type == ARG_SIZE_OR_AUTO ? "auto or a size such as 512M or 20G" :
                      "a whole number");
        return ARGS_BAD;
    }
    if (o->type == ARG_SIZE || o->type == ARG_SIZE_OR_AUTO) {
        const uint64_t bytes = *(const uint64_t *)field;
        if (bytes > 0 && bytes < 1024 && !text[strspn(text, "0123456789")]) {
            console_error("%s: %s would be %s bytes: use %sM or %sG", where, text, text, text,
                          text);
            return ARGS_BAD;
        }
    }
    if (limited && (number < lo || number > hi)) {
        console_error("%s: %s is out of range %.10g..%.10g", where, text, lo, hi);
        return ARGS_BAD;
    }
    return ARGS_RUN;
}

/* ---- help ---------------------------------------------------------------------------------- */

enum {
    LEFT_MIN = 21, LEFT_MAX = 31,        /* columns for names */
    HELP_LEAST = 24,                     /* columns for help; else it is not wrapped */
    ALIASES_MAX = 96                     /* columns of a line of aliases */
};

static int option_left(char *dst, size_t cap, const arg_option *o)
{
    char letter[8] = "    ";
    if (o->letter) snprintf(letter, sizeof letter, "-%c, ", o->letter);
    return snprintf(dst, cap, "%s--%s%s%s", letter, o->name, o->value ? " " : "",
                    o->value ? o->value : "");
}

/* The help is wrapped in a column of its own on a wide terminal, else it is one line. */
static void print_options(const arg_option *options, int n, int width)
{
    const int columns = console_columns(STDOUT_FILENO), indent = width + 3;
    char left[64];
    for (int i = 0; i < n; i++) {
        const arg_option *o = &options[i];
        if (!o->name) continue;
        line_wrap w = { .columns = columns >= indent + HELP_LEAST ? columns : 0, .indent = indent };
        option_left(left, sizeof left, o);
        w.col = printf("  %-*s ", width, left);
        line_wrap_put(&w, str_from(o->help), line_wrap_to_file, stdout);
        if (o->env) {
            snprintf(left, sizeof left, "   [%s]", o->env);
            line_wrap_put(&w, str_from(left), line_wrap_to_file, stdout);
        }
        line_wrap_flush(&w, line_wrap_to_file, stdout);
        printf("\n");
    }
}

/* Aliases of this verb's options. */
static void print_aliases(const arg_spec *spec)
{
    const arg_alias *a;
    int column = 0;
    for (int i = 0; (a = args_known_alias_at(i)); i++) {
        char text[96];
        if (!find_long(spec, NULL, str_from(a->name)).o) continue;
        const int n = a->mib ? snprintf(text, sizeof text, "--%s (--%s in MiB)", a->name, a->ours) :
                      snprintf(text, sizeof text, "%s%s", a->one_dash ? "-" : "--", a->name);
        const bool first = column == 0, over = column + n > ALIASES_MAX;
        printf("%s%s", first ? "\nAlso understood: " : over ? ",\n  " : ", ", text);
        column = (first ? 17 : over ? 2 : column + 2) + n;
    }
    if (column > 0) printf("\n");
}

static void print_help_row(int width)
{
    printf("  %-*s %s\n", width, "-h, --help", "Print this help");
}

static void print_help(const arg_spec *spec)
{
    int width = LEFT_MIN;
    for (int i = 0; i < n_slot(spec); i++) {
        char left[64];
        const arg_option *o = slot_at(spec, NULL, i).o;
        const int n = o->name ? option_left(left, sizeof left, o) : 0;
        if (n > width && n <= LEFT_MAX) width = n;
    }
    printf("Usage: %s\n%s\n", spec->usage, spec->about);
    print_options(spec->options, spec->n_option, width);
    if (spec->n_option > 0) print_help_row(width);
    for (int g = 0; g < spec->n_group; g++) {
        if (spec->groups[g].title) printf("\n%s\n", spec->groups[g].title);
        print_options(spec->groups[g].options, spec->groups[g].n_option, width);
    }
    if (spec->n_option == 0) print_help_row(width);
    print_aliases(spec);
    if (spec->epilogue) printf("\n%s\n", spec->epilogue);
}

/* ---- parsing ------------------------------------------------------------------------------- */

static int read_environment(const arg_spec *spec, void *into)
{
    for (int i = 0; i < n_slot(spec); i++) {
        const slot s = slot_at(spec, into, i);
        const char *name, *text = s.o->env ? args_known_variable(&name, s.o->env) : NULL;
        if (text && *text && set_value(s, text, name) != ARGS_RUN) return ARGS_BAD;
    }
    return ARGS_RUN;
}

/* "moe-run run" from a usage of "moe-run [run] [-m FILE] ...", "moe-bench logits" from
 * "moe-bench logits -m FILE ...", "moe-quant" from "moe-quant IN.gguf ...", "moe-serve" from
 * "moe-serve [[-m] FILE] ...". */
static const char *verb_name(char *dst, size_t cap, const arg_spec *spec)
{
    size_t n = 0;
    int blanks = 0;
    for (const char *p = spec->usage; *p && n + 1 < cap; p++) {
        const bool is_verb = p[1] >= 'a' && p[1] <= 'z', is_operand = p[1] >= 'A' && p[1] <= 'Z';
        const bool is_option = !strncmp(p + 1, "[[", 2);
        if (*p == ' ' && (++blanks >= 2 || is_operand || is_option) && !is_verb) break;
        if (*p != '[' && *p != ']') dst[n++] = *p;
    }
    dst[n] = '\0';
    return dst;
}

/* The option with the most similar name, or NULL. */
static const char *nearest(const arg_spec *spec, str_view name)
{
    nearest_word n = nearest_word_begin(name);
    for (int i = 0; i < n_slot(spec); i++) {
        const char *known = slot_at(spec, NULL, i).o->name;
        if (known) nearest_word_try(&n, known);
    }
    return n.best;
}

static int unknown_option(const arg_spec *spec, const char *arg, str_view name)
{
    char verb[64];
    const char *best = nearest(spec, name);
    if (best) console_error("unknown option %s: did you mean --%s? (%s --help lists them)", arg,
                            best, verb_name(verb, sizeof verb, spec));
    else console_error("unknown option %s (%s --help lists them)", arg,
                       verb_name(verb, sizeof verb, spec));
    return ARGS_BAD;
}

/* Refuses a long name after one dash. ARGS_RUN: it is something else. */
static int check_one_dash(const arg_spec *spec, const char *arg, str_view name)
{
    if (arg[1] == '-' || name.len < 2 || !find_long(spec, NULL, name).o) return ARGS_RUN;
    console_error("%s: a long name takes two dashes: -%.*s", arg, (int)name.len + 1, arg);
    return ARGS_BAD;
}

/* An option of another program, and its value if it takes one. */
static int skip_foreign(const arg_foreign *f, int argc, char **argv, int *i)
{
    const char *flag = argv[*i], *next = *i + 1 < argc ? argv[*i + 1] : NULL;
    if (f->kind == FOREIGN_REFUSED) {
        console_error("%s: %s", flag, f->advice);
        return ARGS_BAD;
    }
    if (args_known_is_value(f, flag, next)) ++*i;
    else next = NULL;
    console_note("%s%s%s: %s", flag, next ? " " : "", next ? next : "", f->advice);
    return ARGS_RUN;
}

/* One option at argv[*i]; moves *i past a value in the next argument. */
static int parse_option(const arg_spec *spec, void *into, int argc, char **argv, int *i,
                        slot *given)
{
    const char *arg = argv[*i], *value = NULL, *name = arg + (arg[1] == '-' ? 2 : 1);
    const str_view word = { name, strcspn(name, "=") };
    char where[64], size[32];
    slot s = { 0 };

    const arg_alias *alias = args_known_alias(word);
    const bool is_long = arg[1] == '-' ? !alias || !alias->one_dash : alias && alias->one_dash;

    if (is_long) {
        s = find_long(spec, into, word);
        if (name[word.len]) value = name + word.len + 1;
    } else if (arg[1] != '-' && !arg[2]) {
        s = find_short(spec, into, arg[1]);
    }
    const arg_foreign *foreign = s.o ? NULL : args_known_foreign(arg);
    if (foreign) return skip_foreign(foreign, argc, argv, i);
    if (!s.o && check_one_dash(spec, arg, word) != ARGS_RUN) return ARGS_BAD;
    if (!s.o && arg[1] != '-' && arg[2]) {
        s = find_short(spec, into, arg[1]);
        value = arg + 2;
    }
    if (!s.o) return unknown_option(spec, arg, word);
    *given = s;
    snprintf(where, sizeof where, "%s%s", s.by && s.by->one_dash ? "-" : "--",
             s.by ? s.by->name : s.o->name);
    if (!takes_value(s) && value) {
        if (!is_long) return unknown_option(spec, arg, word);
        console_error("%s takes no value", where);
        return ARGS_BAD;
    }
    if (!takes_value(s)) return set_value(s, "1", where);
    if (!value && *i + 1 < argc) value = argv[++*i];
    if (!value) {
        console_error("%s needs a value (%s)", where, s.o->value);
        return ARGS_BAD;
    }
    if (s.by && s.by->mib) value = in_mib(size, sizeof size, value);
    return set_value(s, value, where);
}

/* Whether the verb takes no file but standard input. */
static bool only_dash(const arg_spec *spec)
{
    return spec->max_operands > 0 && strcmp(spec->operands, "-") == 0;
}

/* A word that is neither option nor operand, often of a prompt without quotes. */
static int stray_word(const arg_spec *spec, const char *word, const char *prompt)
{
    if (prompt)
        console_error("unexpected word '%s': put quotes around a prompt of several words: "
                      "-p \"%s %s ...\"", word, prompt, word);
    else if (find_exact(spec, NULL, str_from("prompt")).o && only_dash(spec))
        console_error("unexpected word '%s': a prompt follows -p, a file's name -f", word);
    else
        console_error("unexpected argument '%s' (usage: %s)", word, spec->usage);
    return ARGS_BAD;
}

/* Whether the first word that is not an option is the model. If the verb takes other files too, the
 * ending decides; if it takes a model alone, the word is one even if no such file exists. */
static bool takes_as_model(const arg_spec *spec, const arg_option *model, const char *word)
{
    if (spec->max_operands == 0 && model->type == ARG_NEEDED_TEXT) return true;
    if (spec->max_operands == 0 || only_dash(spec)) return arg_is_model(word);
    return str_ends(str_from(word), ".gguf");
}

/* Words seen so far. */
typedef struct found {
    const char *model;                   /* a word without a flag, or NULL */
    bool model_given;                    /* by -m */
    const char *prompt;                  /* of -p, or NULL */
    int n_operand;
} found;

static int parse_word(const arg_spec *spec, void *into, const char **operands, found *f,
                      const char *word)
{
    const slot model = find_exact(spec, into, str_from("model"));
    if (model.o && !f->model && !f->model_given && f->n_operand == 0 &&
        takes_as_model(spec, model.o, word)) {
        f->model = word;
        return set_value(model, word, word);
    }
    if (f->n_operand == spec->max_operands || (only_dash(spec) && strcmp(word, "-") != 0))
        return stray_word(spec, word, f->prompt);
    operands[f->n_operand++] = word;
    return ARGS_RUN;
}

/* Notes a prompt or a model; two models are an error. */
static int note_option(found *f, slot s)
{
    const bool is_prompt = !strcmp(s.o->name, "prompt") && s.o->type == ARG_TEXT;
    const bool is_model = !strcmp(s.o->name, "model");
    if (!is_prompt && !is_model) return ARGS_RUN;
    const char *value = *(const char **)((char *)s.into + s.o->offset);
    if (is_prompt) f->prompt = value;
    else f->model_given = true;
    if (!is_model || !f->model) return ARGS_RUN;
    console_error("two models: %s and -m %s", f->model, value);
    return ARGS_BAD;
}

/* Replaces a name of models.txt by the path. */
static void find_named_model(const arg_spec *spec, void *into)
{
    const slot s = find_exact(spec, into, str_from("model"));
    const char **field = s.o ? (const char **)((char *)s.into + s.o->offset) : NULL;
    const char *path = field && *field ? model_name_find(*field) : NULL;
    if (path) *field = path;
}

int args_parse(const arg_spec *spec, void *into, const char **operands, int *n_operand, int argc,
               char **argv)
{
    bool options_end = false;
    found f = { 0 };

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--") == 0) break;
        if (strcmp(argv[i], "--help") != 0 && strcmp(argv[i], "-h") != 0) continue;
        print_help(spec);
        return ARGS_HELP;
    }
    if (read_environment(spec, into) != ARGS_RUN) return ARGS_BAD;
    for (int i = 1; i < argc; i++) {
        slot given = { 0 };
        int rc;
        if (!options_end && strcmp(argv[i], "--") == 0) {
            options_end = true;
            continue;
        }
        if (!options_end && argv[i][0] == '-' && argv[i][1]) {
            rc = parse_option(spec, into, argc, argv, &i, &given);
            if (rc == ARGS_RUN && given.o) rc = note_option(&f, given);
        } else {
            rc = parse_word(spec, into, operands, &f, argv[i]);
        }
        if (rc != ARGS_RUN) return rc;
    }
    if (f.n_operand < spec->min_operands) {
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
    find_named_model(spec, into);
    if (n_operand) *n_operand = f.n_operand;
    return ARGS_RUN;
}
