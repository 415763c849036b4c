#include "rows.h"

int64_t sc_num_values(int ndim, const int64_t shape[]) {
    int64_t num = 1;
    for (int d = 0; d < ndim; ++d) num *= shape[d];
    return num;
}

bool sc_rows(int ndim, const int64_t shape[], int64_t before, int64_t size, int64_t offset[], int64_t count[]) {
    if (ndim == 0) return true;
    const int64_t row = sc_num_values(ndim - 1, shape + 1);
    if (before % row || size % row) return false;
    for (int d = 0; d < ndim; ++d) {
        offset[d] = 0;
        count[d] = size > 0 ? shape[d] : 0;
    }
    offset[0] = size > 0 ? before / row : 0;
    count[0] = size / row;
    return true;
}
