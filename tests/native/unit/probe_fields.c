/* A field table that is declared, put into and taken from. */
#include "check.h"
#include "fields.h"
#include "words.h"

static sc_field specs[SC_MAX_FIELDS];
static int num_specs;
static sc_fields *fields;

static void drop_table(void) {
    for (int i = 0; i < num_specs; ++i)
        free(specs[i].name);
    num_specs = 0;
    sc_fields_free(fields);
    fields = NULL;
}

static void new_table(void) {
    drop_table();
    int rank = (int)next_number(), num_ranks = (int)next_number();
    num_specs = (int)next_number();
    for (int i = 0; i < num_specs; ++i) {
        specs[i].name = next_bytes(NULL);
        specs[i].ndim = next_extents(specs[i].shape);
        specs[i].dtype = (stream_dtype)next_number();
        specs[i].optional = next_number();
    }
    fields = sc_fields_new(specs, num_specs, rank, num_ranks);
    CHECK(fields != NULL);
    say_word("ok");
}

static bool failed(int status, const sc_error *error) {
    CHECK(status == STREAM_OK || (status == STREAM_ERROR_ARGUMENT && error->code == status));
    say_word(status == STREAM_OK ? "ok" : "error");
    if (status != STREAM_OK)
        say_text(error->text);
    return status != STREAM_OK;
}

/* -1 dimensions: NULL. */
static const int64_t *next_optional_extents(int64_t extents[]) {
    return next_extents(extents) < 0 ? NULL : extents;
}

static void declare(void) {
    int64_t shape[STREAM_MAX_DIMENSIONS], offset[STREAM_MAX_DIMENSIONS], count[STREAM_MAX_DIMENSIONS];
    sc_error error;
    char *name = next_bytes(NULL);
    stream_dtype dtype = (stream_dtype)next_number();
    int ndim = next_extents(shape);
    const int64_t *given_offset = next_optional_extents(offset);
    const int64_t *given_count = next_optional_extents(count);
    failed(sc_fields_declare(fields, name, dtype, ndim, shape, given_offset, given_count, &error), &error);
    free(name);
}

static void put(void) {
    sc_error error;
    char *name = next_bytes(NULL), *data = next_bytes(NULL);
    failed(sc_fields_put(fields, name, data, NULL, &error), &error);
    free(name);
    free(data);
}

static void put_array(void) {
    int64_t count[STREAM_MAX_DIMENSIONS];
    sc_error error;
    char *name = next_bytes(NULL);
    stream_dtype dtype = (stream_dtype)next_number();
    int ndim = next_extents(count);
    char *data = next_bytes(NULL);
    failed(sc_fields_put_array(fields, name, dtype, ndim, count, NULL, data, &error), &error);
    free(name);
    free(data);
}

static void say_block(const sc_block *block) {
    say_text(block->field);
    say_number(block->dtype);
    say_extents(block->ndim, block->shape);
    say_extents(block->ndim, block->offset);
    say_extents(block->ndim, block->count);
}

static void take(void) {
    sc_error error;
    uint64_t present;
    sc_slice arrays[SC_MAX_FIELDS];
    if (failed(sc_fields_take(fields, &present, arrays, &error), &error))
        return;
    int num;
    const sc_block *blocks = sc_fields_blocks(fields, &num);
    say_natural(present);
    say_number(num);
    for (int i = 0; i < num; ++i) {
        say_block(&blocks[i]);
        CHECK((arrays[i].bytes != NULL) == (present >> i & 1));
        say_bytes(arrays[i].bytes, arrays[i].num_bytes);
    }
}

int main(void) {
    while (next_line()) {
        if (next_word_is("new"))
            new_table();
        else if (next_word_is("declare"))
            declare();
        else if (next_word_is("put"))
            put();
        else if (next_word_is("put_array"))
            put_array();
        else if (next_word_is("take"))
            take();
        else if (next_word_is("drop"))
            sc_fields_drop(fields);
        else
            CHECK(false);
        end_answer();
    }
    drop_table();
    return 0;
}
