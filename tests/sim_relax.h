/* sim_relax.h - included before engine/gpu/expert_server.c where the GPU is simulated: the host
 * waits for it without taking a core from it. A real GPU is polled, microseconds count there; the
 * threads of a simulated one need every core that there is. */
#ifndef TESTS_SIM_RELAX_H
#define TESTS_SIM_RELAX_H

#include <time.h>

#include "tiers/pool.h"

/* A few polls, then a nap: looks whether the device is alive come after many polls. */
static inline void sim_relax(void)
{
    static _Thread_local unsigned n_poll;
    const struct timespec nap = { 0, 20000 };
    if (++n_poll % 64 == 0) nanosleep(&nap, NULL);
    else pool_relax();
}

#define pool_relax sim_relax

#endif
