#include "melissa_api_no_mpi.h"

#include <stddef.h>

#include "relay.h"

static bool agree_alone(sc_group *group, bool fine, int64_t size, int64_t *before, int64_t *total) {
    (void)group;
    *before = 0;
    *total = size;
    return fine;
}

static void leave_alone(sc_group *group) {
    (void)group;
}

static sc_group one_process = {.rank = 0, .num_ranks = 1, .agree = agree_alone, .leave = leave_alone};

void melissa_init_no_mpi(const char *field_name, const int vect_size) {
    sc_group *group = sc_relay_group();
    sc_relay_init(field_name, vect_size, group ? group : &one_process);
}

void melissa_init_no_mpi_f(const char *field_name, const int *vect_size) {
    melissa_init_no_mpi(field_name, vect_size ? *vect_size : -1);
}

void melissa_send_no_mpi(const char *field_name, const double *send_vect) {
    sc_relay_send(field_name, send_vect);
}

void melissa_finalize(void) {
    sc_relay_finalize();
}

const char *melissa_version(void) {
    return stream_version();
}
