/* bad_disk.h - a disk that fails on request: read, pread, write, fsync and rename of a
 * program that is linked with it are its own, so that each call can be made to fail, to do half of
 * the work or to be interrupted. */
#ifndef TESTS_BAD_DISK_H
#define TESTS_BAD_DISK_H

#include "loader/base.h"

typedef struct bad_disk {                /* by any thread */
    _Atomic int fail_at;                 /* this call fails; 0: none */
    _Atomic int n_call;
    _Atomic bool lazy;                   /* a few bytes at a time, every other call interrupted;
                                          * until the next fsync */
    _Atomic size_t portion;              /* bytes that it takes at a time then */
    _Atomic bool cut;                    /* reading: the file ends instead of failing */
} bad_disk;
extern bad_disk disk;

#endif
