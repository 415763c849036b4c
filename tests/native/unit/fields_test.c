/* What a C program may declare and put. test_field_tables.py compares put_array with the Python client. */
#include "check.h"
#include "dtype.h"
#include "fields.h"

static sc_field specs[] = {
    {.name = "u", .ndim = 2, .shape = {6, 4}, .dtype = STREAM_FLOAT32},
    {.name = "energy", .ndim = 0, .optional = true},
};
static const int64_t shape[] = {6, 4}, half[] = {3, 4}, begin[] = {3, 0}, nothing[] = {0, 4};
static sc_fields *fields;
static sc_error error;
static uint64_t present;
static sc_slice arrays[SC_MAX_FIELDS];
static double numbers[24], energy = 2.5;

static void begin_table(int num_specs, int rank, int num_ranks) {
    sc_fields_free(fields);
    fields = sc_fields_new(specs, num_specs, rank, num_ranks);
    CHECK(fields != NULL);
    for (int i = 0; i < 24; ++i)
        numbers[i] = i;
}

static int declare(stream_dtype dtype, const int64_t *offset, const int64_t *count) {
    return sc_fields_declare(fields, "u", dtype, 2, shape, offset, count, &error);
}

static int put(const void *data) {
    return sc_fields_put(fields, "u", data, NULL, &error);
}

static int take(void) {
    return sc_fields_take(fields, &present, arrays, &error);
}

static const sc_block *only_block(void) {
    int num;
    const sc_block *blocks = sc_fields_blocks(fields, &num);
    CHECK(num == 1);
    return blocks;
}

static void a_declared_block_is_put_and_taken(void) {
    begin_table(1, 1, 2);
    CHECK(declare(STREAM_FLOAT64, begin, half) == STREAM_OK);
    CHECK(put(numbers) == STREAM_OK);
    CHECK(take() == STREAM_OK);
    CHECK(present == 1 && only_block()->dtype == STREAM_FLOAT32 && only_block()->offset[0] == 3);
    CHECK(((const float *)(const void *)arrays[0].bytes)[11] == 11.0f);
}

static void without_offset_and_count_it_is_the_even_share(void) {
    begin_table(1, 1, 4);
    CHECK(declare(STREAM_FLOAT64, NULL, NULL) == STREAM_OK);
    CHECK(put(numbers) == STREAM_OK && take() == STREAM_OK);
    CHECK(only_block()->offset[0] == 2 && only_block()->count[0] == 2 && only_block()->count[1] == 4);
}

static void without_an_offset_the_count_must_be_the_even_share(void) {
    begin_table(1, 0, 4);
    CHECK(declare(STREAM_FLOAT64, NULL, half) == STREAM_ERROR_ARGUMENT);
    CHECK_TEXT(error.text, "rank 0 of 4 sends (3, 4) of field 'u' (6, 4); without an offset it would be (2, 4)");
}

static void a_mistake_in_a_declaration_is_told_at_once_and_changes_nothing(void) {
    begin_table(1, 0, 2);
    CHECK(declare(STREAM_FLOAT64, begin, shape) == STREAM_ERROR_ARGUMENT);
    CHECK_TEXT(error.text, "the block (6, 4) at (3, 0) of field 'u' reaches out of its shape (6, 4)");
    CHECK(declare(STREAM_COMPLEX64, begin, half) == STREAM_ERROR_ARGUMENT);
    CHECK_TEXT(error.text, "kept as float32, which complex64 cannot become");
    CHECK(declare((stream_dtype)15, begin, half) == STREAM_ERROR_ARGUMENT);
    CHECK(put(numbers) == STREAM_ERROR_ARGUMENT);
    CHECK_TEXT(error.text, "must be declared with its type");
    CHECK(sc_fields_declare(fields, "u", STREAM_FLOAT64, 1, shape, NULL, NULL, &error) == STREAM_ERROR_ARGUMENT);
    CHECK_TEXT(error.text, "has the shape (6, 4) in study.json, but is declared with (6,)");
    CHECK(sc_fields_declare(fields, "u", STREAM_FLOAT64, 9, shape, NULL, NULL, &error) == STREAM_ERROR_ARGUMENT);
    CHECK(sc_fields_declare(fields, "u", STREAM_FLOAT64, 2, NULL, NULL, NULL, &error) == STREAM_ERROR_ARGUMENT);
    CHECK(sc_fields_declare(fields, NULL, STREAM_FLOAT64, 2, shape, NULL, NULL, &error) == STREAM_ERROR_ARGUMENT);
    CHECK(declare(STREAM_FLOAT64, begin, half) == STREAM_OK);
}

static void a_serial_program_declares_whole_fields(void) {
    begin_table(1, 0, 1);
    CHECK(declare(STREAM_FLOAT64, begin, half) == STREAM_ERROR_ARGUMENT);
    CHECK(declare(STREAM_FLOAT64, NULL, nothing) == STREAM_ERROR_ARGUMENT);
    CHECK_TEXT(error.text, "must have the shape (6, 4), but has (0, 4)");
    CHECK(declare(STREAM_FLOAT64, NULL, shape) == STREAM_OK);
}

static void fields_are_declared_before_they_are_put_and_sent(void) {
    begin_table(1, 0, 1);
    CHECK(declare(STREAM_FLOAT64, NULL, NULL) == STREAM_OK && put(numbers) == STREAM_OK);
    CHECK(declare(STREAM_FLOAT32, NULL, NULL) == STREAM_ERROR_ARGUMENT);
    CHECK_TEXT(error.text, "before it is put");
    CHECK(take() == STREAM_OK);
    CHECK(declare(STREAM_FLOAT32, NULL, NULL) == STREAM_ERROR_ARGUMENT);
    CHECK_TEXT(error.text, "before the first send");
}

static void a_rank_that_declares_an_empty_block_need_not_put_it(void) {
    begin_table(1, 1, 2);
    CHECK(declare(STREAM_FLOAT64, NULL, nothing) == STREAM_OK);
    int num;
    CHECK(take() == STREAM_OK && present == 0);
    CHECK(sc_fields_blocks(fields, &num) != NULL && num == 0);
    CHECK(put(NULL) == STREAM_OK && take() == STREAM_OK && present == 0);
    CHECK(sc_fields_put_array(fields, "u", STREAM_FLOAT64, 2, half, NULL, numbers, &error) == STREAM_ERROR_ARGUMENT);
    CHECK_TEXT(error.text, "must have the shape (0, 4), but has (3, 4)");
}

static void what_is_declared_must_be_put_unless_it_is_optional(void) {
    begin_table(2, 0, 2);
    CHECK(declare(STREAM_FLOAT64, NULL, half) == STREAM_OK);
    CHECK(sc_fields_declare(fields, "energy", STREAM_FLOAT64, 0, NULL, NULL, NULL, &error) == STREAM_OK);
    CHECK(take() == STREAM_ERROR_ARGUMENT);
    CHECK_TEXT(error.text, "field 'u' is missing in the first sample");
    CHECK(put(numbers) == STREAM_OK && take() == STREAM_OK && present == 1);
    CHECK(sc_fields_put(fields, "energy", &energy, NULL, &error) == STREAM_OK);
    CHECK(take() == STREAM_ERROR_ARGUMENT);
    CHECK_TEXT(error.text, "field 'u' is missing; only");
    CHECK(put(numbers) == STREAM_OK && sc_fields_put(fields, "energy", &energy, NULL, &error) == STREAM_OK);
    CHECK(take() == STREAM_OK && present == 3 && *(const double *)(const void *)arrays[1].bytes == 2.5);
}

static void an_optional_block_may_come_later_if_all_of_it_is_declared(void) {
    specs[0].optional = true;
    begin_table(2, 1, 2);
    CHECK(declare(STREAM_INT8, begin, half) == STREAM_OK);
    CHECK(sc_fields_put_array(fields, "energy", STREAM_FLOAT64, 0, NULL, NULL, &energy, &error) == STREAM_OK);
    int num;
    CHECK(take() == STREAM_OK && present == 2);
    const sc_block *blocks = sc_fields_blocks(fields, &num);
    CHECK(num == 2 && blocks[0].dtype == STREAM_INT8 && blocks[0].offset[0] == 3);
    CHECK(put("abcdefghijkl") == STREAM_OK && take() == STREAM_OK && present == 1);
    CHECK(memcmp(arrays[0].bytes, "abcdefghijkl", 12) == 0);

    begin_table(2, 1, 2);
    CHECK(declare(STREAM_INT8, begin, NULL) == STREAM_OK);
    CHECK(sc_fields_put_array(fields, "energy", STREAM_FLOAT64, 0, NULL, NULL, &energy, &error) == STREAM_OK);
    CHECK(take() == STREAM_ERROR_ARGUMENT);
    CHECK_TEXT(error.text, "first array must come with the first send");
    specs[0].optional = false;
}

static void the_type_that_was_declared_decides_how_it_travels(void) {
    begin_table(1, 0, 1);
    CHECK(declare(STREAM_INT16, NULL, NULL) == STREAM_OK);
    CHECK(sc_fields_put_array(fields, "u", STREAM_FLOAT64, 2, shape, NULL, numbers, &error) == STREAM_ERROR_ARGUMENT);
    CHECK_TEXT(error.text, "sent as int16, which float64 cannot become without loss");
    int32_t large[24] = {[23] = 65537};
    CHECK(sc_fields_put_array(fields, "u", STREAM_INT32, 2, shape, NULL, large, &error) == STREAM_ERROR_ARGUMENT);
    CHECK_TEXT(error.text, "field 'u' is sent as int16, into which 65537 at (5, 3) does not fit");
    large[23] = -32768;
    CHECK(sc_fields_put_array(fields, "u", STREAM_INT32, 2, shape, NULL, large, &error) == STREAM_OK);
    CHECK(take() == STREAM_OK && only_block()->dtype == STREAM_INT16);
    CHECK(((const int16_t *)(const void *)arrays[0].bytes)[23] == -32768);
}

static void the_later_of_two_puts_counts(void) {
    begin_table(1, 0, 1);
    const int8_t small[24] = {1};
    CHECK(sc_fields_put_array(fields, "u", STREAM_INT8, 2, shape, NULL, small, &error) == STREAM_OK);
    CHECK(sc_fields_put_array(fields, "u", STREAM_FLOAT64, 2, shape, NULL, numbers, &error) == STREAM_OK);
    CHECK(sc_fields_put_array(fields, "u", STREAM_FLOAT64, 2, half, NULL, numbers, &error) == STREAM_ERROR_ARGUMENT);
    CHECK(sc_fields_put_array(fields, "u", STREAM_FLOAT64, 2, shape, NULL, NULL, &error) == STREAM_ERROR_ARGUMENT);
    CHECK(take() == STREAM_OK && only_block()->dtype == STREAM_FLOAT32 && ((const float *)(const void *)arrays[0].bytes)[23] == 23.0f);
    numbers[0] = 7;
    CHECK(put(numbers) == STREAM_ERROR_ARGUMENT);
    CHECK(take() == STREAM_ERROR_ARGUMENT);
}

static void the_memory_of_a_field_stays_the_same(void) {
    begin_table(1, 0, 1);
    CHECK(declare(STREAM_FLOAT64, NULL, NULL) == STREAM_OK && put(numbers) == STREAM_OK && take() == STREAM_OK);
    const void *first = arrays[0].bytes;
    CHECK(put(numbers) == STREAM_OK && take() == STREAM_OK && arrays[0].bytes == first);
}

static void a_block_is_put_from_inside_of_a_larger_array(void) {
    double with_ghosts[8][6];
    for (int i = 0; i < 48; ++i)
        with_ghosts[i / 6][i % 6] = i;
    const int64_t strides[] = {6, 1};
    begin_table(1, 0, 1);
    CHECK(declare(STREAM_FLOAT64, NULL, NULL) == STREAM_OK);
    CHECK(sc_fields_put(fields, "u", &with_ghosts[1][1], strides, &error) == STREAM_OK);
    CHECK(take() == STREAM_OK);
    CHECK(((const float *)(const void *)arrays[0].bytes)[0] == 7.0f && ((const float *)(const void *)arrays[0].bytes)[23] == 40.0f);
}

static void a_sample_that_was_dropped_is_gone(void) {
    begin_table(1, 0, 1);
    CHECK(declare(STREAM_FLOAT64, NULL, NULL) == STREAM_OK && put(numbers) == STREAM_OK);
    sc_fields_drop(fields);
    CHECK(take() == STREAM_ERROR_ARGUMENT);
    CHECK_TEXT(error.text, "missing in the first sample");
}

static void many_long_names_leave_room_for_the_hint(void) {
    static sc_field many[SC_MAX_FIELDS];
    static char names[SC_MAX_FIELDS][81];
    for (int i = 0; i < SC_MAX_FIELDS; ++i) {
        memset(names[i], 'a' + i % 26, 80);
        many[i] = (sc_field){.name = names[i]};
    }
    sc_fields *table = sc_fields_new(many, SC_MAX_FIELDS, 0, 1);
    CHECK(table != NULL);
    static char meant[81];
    memset(meant, 'c', 79);
    CHECK(sc_fields_put(table, meant, numbers, NULL, &error) == STREAM_ERROR_ARGUMENT);
    CHECK_TEXT(error.text, "...; did you mean 'cccccccccc");
    sc_fields_free(table);
}

int main(void) {
    a_declared_block_is_put_and_taken();
    without_offset_and_count_it_is_the_even_share();
    without_an_offset_the_count_must_be_the_even_share();
    a_mistake_in_a_declaration_is_told_at_once_and_changes_nothing();
    a_serial_program_declares_whole_fields();
    fields_are_declared_before_they_are_put_and_sent();
    a_rank_that_declares_an_empty_block_need_not_put_it();
    what_is_declared_must_be_put_unless_it_is_optional();
    an_optional_block_may_come_later_if_all_of_it_is_declared();
    the_type_that_was_declared_decides_how_it_travels();
    the_later_of_two_puts_counts();
    the_memory_of_a_field_stays_the_same();
    a_block_is_put_from_inside_of_a_larger_array();
    a_sample_that_was_dropped_is_gone();
    many_long_names_leave_room_for_the_hint();
    sc_fields_free(fields);
    return 0;
}
