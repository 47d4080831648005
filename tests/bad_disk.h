/* bad_disk.h - a disk that fails when it is told to: read, write, fsync and rename of a program that
 * is linked with it are its own, so that each call can be made to fail, to do half of the work or to
 * be interrupted. */
#ifndef TESTS_BAD_DISK_H
#define TESTS_BAD_DISK_H

#include "loader/base.h"

typedef struct bad_disk {
    int fail_at;                         /* this call fails; 0: none */
    int n_call;
    bool lazy;                           /* a few bytes at a time, every other call interrupted;
                                          * until the next fsync */
    size_t portion;                      /* bytes that it takes at a time then */
    bool cut;                            /* reading: the file ends instead of failing */
} bad_disk;
extern bad_disk disk;

#endif
