/* fim.c - builds a fill-in-the-middle prompt: three tokens around two texts. */
#include "engine/text/chat/fim.h"

#include <string.h>

enum { PREFIX, SUFFIX, MIDDLE, N_MARK };

static bool find_marks(int marks[N_MARK], const tokenizer *t)
{
    static const char *const names[N_MARK] = { "<|fim_prefix|>", "<|fim_suffix|>",
                                               "<|fim_middle|>" };
    bool all = true;
    for (int i = 0; i < N_MARK; i++) all &= (marks[i] = tokenizer_special(t, names[i])) >= 0;
    return all;
}

bool fim_is_known(const tokenizer *t)
{
    int marks[N_MARK];
    return find_marks(marks, t);
}

int fim_wrap(id_list *prompt, const tokenizer *t, encoder *e, str_view after, err_ctx *err)
{
    int marks[N_MARK];
    int rc;
    if (!find_marks(marks, t))
        return err_set(err, ERR_UNSUPPORTED, "this model has no tokens to fill in the middle");
    if ((rc = ids_push(prompt, marks[SUFFIX], err)) < 0) return rc;
    memmove(prompt->ids + 1, prompt->ids, (prompt->n - 1) * sizeof *prompt->ids);
    prompt->ids[0] = marks[PREFIX];
    if ((rc = ids_push(prompt, marks[SUFFIX], err)) < 0 ||
        (rc = encoder_encode(e, prompt, after, false, err)) < 0) return rc;
    return ids_push(prompt, marks[MIDDLE], err);
}
