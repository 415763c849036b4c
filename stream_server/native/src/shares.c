#include "shares.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void sc_even_share(const sc_field *field, int rank, int num_ranks, int64_t offset[], int64_t count[]) {
    sc_copy_extents(field->ndim, count, field->shape);
    memset(offset, 0, (size_t)field->ndim * sizeof *offset);
    if (field->ndim == 0)
        return;
    int64_t each = field->shape[0] / num_ranks, surplus = field->shape[0] % num_ranks;
    offset[0] = rank * each + (rank < surplus ? rank : surplus);
    count[0] = each + (rank < surplus);
}

bool sc_has_zero(int ndim, const int64_t extents[]) {
    for (int d = 0; d < ndim; ++d)
        if (extents[d] == 0)
            return true;
    return false;
}

bool sc_equal_extents(int ndim, const int64_t one[], int other_ndim, const int64_t other[]) {
    if (ndim != other_ndim)
        return false;
    for (int d = 0; d < ndim; ++d)
        if (one[d] != other[d])
            return false;
    return true;
}

void sc_copy_extents(int ndim, int64_t to[], const int64_t from[]) {
    for (int d = 0; d < ndim; ++d)
        to[d] = from[d];
}

const char *sc_extents_text(char to[SC_EXTENTS_BYTES], int ndim, const int64_t extents[]) {
    int num = snprintf(to, SC_EXTENTS_BYTES, "(");
    for (int d = 0; d < ndim; ++d)
        num += snprintf(to + num, SC_EXTENTS_BYTES - (size_t)num, d == 0 ? "%" PRId64 : ", %" PRId64, extents[d]);
    snprintf(to + num, SC_EXTENTS_BYTES - (size_t)num, ndim == 1 ? ",)" : ")");
    return to;
}
