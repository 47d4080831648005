/* fault_injection.h - the seam where tests make the machine fail.
 *
 * Code that can meet a fault asks here first; unless a test (or MOE_FAULT, read by the programs)
 * has armed the point, it is told no, which costs one load. */
#ifndef TIERS_FAULT_INJECTION_H
#define TIERS_FAULT_INJECTION_H

#include "loader/base.h"

typedef enum fault_point {               /* in texts: */
    FAULT_READ_ERROR,                    /* read-error: a read fails with EIO */
    FAULT_READ_SHORT,                    /* read-short: it gives fewer bytes than asked for, then
                                          * goes on */
    FAULT_READ_END,                      /* read-end: the file ends early, cut while in use */
    FAULT_DIRECT,                        /* direct: the file system refuses O_DIRECT */
    FAULT_URING,                         /* io-uring: is not permitted */
    FAULT_PAGE_LOCK,                     /* page-lock: is refused */
    FAULT_VRAM,                          /* vram: what was free is taken */
    FAULT_GPU_LOST,                      /* gpu-lost: the device no longer responds */
    FAULT_COUNT
} fault_point;

enum { FAULT_ALWAYS = INT32_MAX };

/* The next skip questions about p get no, the n after them yes, all others no. Nobody may ask
 * about p meanwhile. */
void fault_arm(fault_point p, int skip, int n);
void fault_disarm_all(void);

bool fault_hits(fault_point p);          /* any thread */

/* "read-error:3:1:50,io-uring": names with optional skip, count (default 0 and always) and every
 * (never); "" arms nothing. False, with nothing armed, if the text is not understood. */
bool fault_arm_text(const char *text);

#endif
