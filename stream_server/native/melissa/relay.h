/* The code behind Melissa's functions: fields by name, time steps counted here, errors printed once.
 *
 * Why: docs/decisions/0023-melissa-interface.md */
#ifndef SC_RELAY_H
#define SC_RELAY_H

#include <stdbool.h>
#include <stdint.h>

/* The processes of one simulation: with MPI, or a single process. */
typedef struct sc_group sc_group;

struct sc_group {
    int rank;
    int num_ranks;
    /* Collective. *before becomes the sum of `size` over lower ranks, *total that over all; false on all ranks if
     * `fine` is false on any. */
    bool (*agree)(sc_group *group, bool fine, int64_t size, int64_t *before, int64_t *total);
    void (*leave)(sc_group *group);
};

/* The first field connects; all do what melissa_init does. `group` is kept until sc_relay_finalize. */
void sc_relay_init(const char *field_name, int size, sc_group *group);
void sc_relay_send(const char *field_name, const double *values);
void sc_relay_finalize(void);

/* The group of the fields so far, or NULL. */
sc_group *sc_relay_group(void);

/* Print what is wrong and take part no more. */
void sc_relay_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
