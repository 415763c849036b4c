/* Time steps as bytes. */
#ifndef SC_STEPS_H
#define SC_STEPS_H

#include "buffer.h"
#include "text.h"
#include "wire.h"

/* The sizes of one client rank's blocks, of ragged ones at most. With one of these, steps are kept and sent one by
 * one. */
typedef struct {
    int num_blocks;
    size_t block_bytes[SC_MAX_FIELDS];
    bool has_ragged;
} sc_layout;

sc_layout sc_layout_of(const sc_block *blocks, int num_blocks);

/* What a client rank sends once per simulation: its blocks, and their bytes. */
typedef struct {
    int num;
    const sc_block *blocks;
    const sc_slice *arrays;
    sc_layout layout;
} sc_statics;

/* Bytes of one step with these blocks at most; SIZE_MAX if they cannot be counted. */
size_t sc_layout_bytes(const sc_layout *layout, uint64_t present);

/* Neighbouring steps with the same blocks: the first with index `index`, the others `stride` apart. For each block in
 * `present`, in order, the buffer has `num_rows` rows, of which the first `num` are used: one for each step. If the layout
 * has ragged blocks, it begins with the size of each block of its only step. */
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

/* A single step; arrays[i] is block i, if that is present. Owns its buffer. */
int sc_steps_single(sc_steps *steps, sc_pool *pool, const sc_layout *layout, uint64_t present, const sc_slice arrays[],
                    sc_error *error);

/* The rows of the first block that is present, and how many bytes a row of block i has. */
uint8_t *sc_steps_rows(const sc_steps *steps, const sc_layout *layout);
size_t sc_steps_row_bytes(const sc_steps *steps, const sc_layout *layout, int i);

/* Bytes of one of the steps. */
size_t sc_steps_step_bytes(const sc_steps *steps, const sc_layout *layout);

/* Copy the next step; arrays[i] is block i, if that is present. */
void sc_steps_add(sc_steps *steps, const sc_layout *layout, const sc_slice arrays[]);

/* Where each present block of one step is; the others have no bytes. The opposite of adding. */
void sc_steps_arrays(const sc_steps *steps, const sc_layout *layout, uint32_t row, sc_slice arrays[]);

/* The same steps in no more memory than they need. */
int sc_steps_fit(const sc_steps *steps, sc_steps *fitting, sc_pool *pool, const sc_layout *layout, sc_error *error);

#endif
