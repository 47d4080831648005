/* fault_injection.h - lets tests make the machine fail.
 *
 * Code that can meet a fault calls fault_hits first. It returns false, which costs one load, unless
 * a test or MOE_FAULT (read by the programs) has armed the point. */
#ifndef TIERS_FAULT_INJECTION_H
#define TIERS_FAULT_INJECTION_H

#include "loader/base.h"

typedef enum fault_point {               /* in texts: */
    FAULT_READ_ERROR,                    /* read-error: a read fails with EIO */
    FAULT_READ_SHORT,                    /* read-short: a read returns fewer bytes than requested;
                                          * the rest can be read */
    FAULT_READ_END,                      /* read-end: the file was truncated while in use */
    FAULT_DIRECT,                        /* direct: the file system refuses O_DIRECT */
    FAULT_URING,                         /* io-uring: the system does not permit it */
    FAULT_PAGE_LOCK,                     /* page-lock: the driver refuses it */
    FAULT_VRAM,                          /* vram: another program has taken the free VRAM */
    FAULT_GPU_LOST,                      /* gpu-lost: the device no longer responds */
    FAULT_COUNT
} fault_point;

enum { FAULT_ALWAYS = INT32_MAX };

/* The next skip calls of fault_hits(p) return false, the n after them true, all others false. No
 * other thread may call fault_hits(p) at the same time. */
void fault_arm(fault_point p, int skip, int n);
void fault_disarm_all(void);

bool fault_hits(fault_point p);          /* any thread */

/* "read-error:3:1:50,io-uring": names with optional skip, count (default 0 and always) and every
 * (never); "" arms nothing. False, with nothing armed, if the text is not understood. */
bool fault_arm_text(const char *text);

#endif
