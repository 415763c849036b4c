/* The fields of a study as one client rank sends them: checks what is declared and put, and holds the next sample.
 *
 * The rules are those of stream_server/client_api/fields.py. The first sample fixes the blocks: which part of which
 * field this rank sends, and in which type. A field that is sent once per simulation is put once, before it. */
#ifndef SC_FIELDS_H
#define SC_FIELDS_H

#include "steps.h"
#include "text.h"

typedef struct sc_fields sc_fields;

/* `specs` must outlive it. NULL: no memory. */
sc_fields *sc_fields_new(const sc_field *specs, int num_specs, int rank, int num_ranks);
void sc_fields_free(sc_fields *fields);

/* stream_declare_field, stream_put, stream_put_strided and stream_put_array; all STREAM_OK or STREAM_ERROR_ARGUMENT (or
 * _MEMORY). */
int sc_fields_declare(sc_fields *fields, const char *name, stream_dtype dtype, int ndim, const int64_t shape[],
                      const int64_t offset[], const int64_t count[], sc_error *error);
int sc_fields_put(sc_fields *fields, const char *name, const void *data, const int64_t strides[], sc_error *error);
int sc_fields_put_array(sc_fields *fields, const char *name, stream_dtype dtype, int ndim, const int64_t count[],
                        const int64_t strides[], const void *data, sc_error *error);

/* Fix the blocks if this is the first sample, and see whether the sample is complete. Afterwards `present` has bit i
 * for block i, and arrays[i] is that block's contiguous bytes, in the type of the block, until the next put (none if it
 * is not present). On a rank that has no part of any field there are no blocks, and present is 0. On an error the
 * sample is dropped. */
int sc_fields_take(sc_fields *fields, uint64_t *present, sc_slice arrays[SC_MAX_FIELDS], sc_error *error);

/* What is sent once per simulation, once the blocks are fixed. It belongs to the fields, but for the
 * layout, which is left to the sender. */
sc_statics sc_fields_statics(const sc_fields *fields);

/* Nothing is put any more, but what is sent once per simulation. */
void sc_fields_drop(sc_fields *fields);

/* The blocks, once they are fixed; `num` -1 before. */
const sc_block *sc_fields_blocks(const sc_fields *fields, int *num);

/* "the study has no field 'x', only 'y'; did you mean 'y'?", as STREAM_ERROR_ARGUMENT. */
int sc_unknown_field(const char *name, const sc_field *fields, int num_fields, sc_error *error);

#endif
