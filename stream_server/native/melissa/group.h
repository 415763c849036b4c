/* The processes of one simulation, as Melissa's interface needs them: with MPI, or a single process. */
#ifndef SC_GROUP_H
#define SC_GROUP_H

#include <stdbool.h>
#include <stdint.h>

typedef struct sc_group sc_group;

struct sc_group {
    int rank;
    int num_ranks;
    /* Collective. *before becomes the sum of `size` over lower ranks, *total that over all; false on all ranks if
     * `fine` is false on any. */
    bool (*agree)(sc_group *group, bool fine, int64_t size, int64_t *before, int64_t *total);
    void (*leave)(sc_group *group);
};

#endif
