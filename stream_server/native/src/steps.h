/* Time steps as bytes. */
#ifndef SC_STEPS_H
#define SC_STEPS_H

#include "buffer.h"
#include "wire.h"

/* The sizes of one client rank's blocks. */
typedef struct {
    int num_blocks;
    size_t block_bytes[SC_MAX_FIELDS];
} sc_layout;

sc_layout sc_layout_of(const sc_block *blocks, int num_blocks);

/* What a client rank sends once per simulation: its blocks, and their bytes. */
typedef struct {
    int num;
    const sc_block *blocks;
    const void *const *arrays;
    sc_layout layout;
} sc_statics;

/* Bytes of one step with these blocks; SIZE_MAX if they cannot be counted. */
size_t sc_layout_bytes(const sc_layout *layout, uint64_t present);

/* Neighbouring steps with the same blocks: the first with index `index`, the others `stride` apart. For each block in
 * `present`, in order, the buffer has `num_rows` rows, of which the first `num` are used: one for each step. */
typedef struct {
    sc_buffer *buffer;
    int64_t index;
    int64_t stride;
    uint64_t present;
    uint32_t num;
    uint32_t num_rows;
} sc_steps;

/* Room for `num_rows` steps, of which none is there yet. Owns its buffer. */
int sc_steps_begin(sc_steps *steps, sc_pool *pool, const sc_layout *layout, uint64_t present, uint32_t num_rows,
                   sc_error *error);
void sc_steps_release(sc_steps *steps);

/* Copy the next step; arrays[i] is block i, if that is present. */
void sc_steps_add(sc_steps *steps, const sc_layout *layout, const void *const arrays[]);

/* Where each present block of one step is: the opposite of adding. */
void sc_steps_arrays(const sc_steps *steps, const sc_layout *layout, uint32_t row, const void *arrays[]);

/* The same steps in no more memory than they need. */
int sc_steps_fit(const sc_steps *steps, sc_steps *fitting, sc_pool *pool, const sc_layout *layout, sc_error *error);

#endif
