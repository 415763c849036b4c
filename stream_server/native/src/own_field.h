/* One field of the study in the hands of this rank: what is declared of it, what was put, and the memory for that. */
#ifndef SC_OWN_FIELD_H
#define SC_OWN_FIELD_H

#include "wire.h"

typedef struct {
    const sc_field *field;
    int rank, num_ranks;
    bool is_declared, has_offset, has_count;
    stream_dtype dtype; /* as declared */
    int64_t offset[STREAM_MAX_DIMENSIONS];
    int64_t count[STREAM_MAX_DIMENSIONS];
    bool is_fixed; /* by the first sample */
    bool has_block;  /* `block` is that of all samples or, before the first one, of what was put */
    bool has_vanished; /* at some time nothing was left of it, which was told */
    bool is_put;     /* in the next sample, if only as an empty block */
    sc_block block;
    size_t num_bytes; /* of what was put */
    void *memory;
    size_t capacity;
} sc_own_field;

/* As the functions of fields.h, for a field that is found. */
int sc_own_declare(sc_own_field *own, stream_dtype dtype, int ndim, const int64_t shape[], const int64_t offset[],
                   const int64_t count[], sc_error *error);
int sc_own_put(sc_own_field *own, const void *data, const int64_t strides[], sc_error *error);
int sc_own_put_array(sc_own_field *own, stream_dtype dtype, int ndim, const int64_t count[], const int64_t strides[],
                     const void *data, sc_error *error);

/* Decide whether the field has a block on this rank when the first sample leaves it out. */
int sc_own_fix_unseen(sc_own_field *own, sc_error *error);

/* Checks that declaring and putting share. */
int sc_check_extents(const char *name, int ndim, const int64_t extents[], sc_error *error);
int sc_check_rows(const sc_field *field, int ndim, const int64_t count[], sc_error *error);
int sc_check_type(const char *name, stream_dtype dtype, sc_error *error);
bool sc_is_empty(const sc_own_field *own, int ndim, const int64_t count[]);
int sc_place_own(const sc_own_field *own, int ndim, const int64_t count[], sc_block *block, sc_error *error);

#endif
