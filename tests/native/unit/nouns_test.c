/* The small parts: errors, bits, and what conversions and locales must not do to a program. */
#define _GNU_SOURCE

#include <fenv.h>
#include <locale.h>

#include "bits.h"
#include "check.h"
#include "connection_file.h"
#include "dtype.h"
#include "error.h"
#include "flow_control.h"

static void an_error_may_be_put_into_another_sentence(void) {
    sc_error error;
    CHECK(sc_fail(&error, STREAM_ERROR_SYSTEM, "no %s", "luck") == STREAM_ERROR_SYSTEM);
    CHECK(sc_fail(&error, STREAM_ERROR_REFUSED, "there was %s", error.text) == STREAM_ERROR_REFUSED);
    CHECK(error.code == STREAM_ERROR_REFUSED && strcmp(error.text, "there was no luck") == 0);
    CHECK(sc_no_memory(NULL) == STREAM_ERROR_MEMORY);
}

static void a_long_error_is_cut(void) {
    static char much[4000];
    sc_error error;
    memset(much, 'x', sizeof much - 1);
    sc_fail(&error, STREAM_ERROR_SYSTEM, "%s", much);
    CHECK(strlen(error.text) == SC_ERROR_BYTES - 1);
}

static void bits_are_a_growing_set(void) {
    sc_bits bits = {NULL, 0};
    CHECK(!sc_bits_has(&bits, 0) && !sc_bits_has(&bits, -1) && !sc_bits_has(&bits, INT64_MAX));
    CHECK(sc_bits_add(&bits, 9) == 1 && sc_bits_add(&bits, 9) == 0 && sc_bits_add(&bits, 1000000) == 1);
    CHECK(sc_bits_has(&bits, 9) && !sc_bits_has(&bits, 8));
    CHECK(sc_bits_has(&bits, 1000000) && !sc_bits_has(&bits, 999999));
    CHECK(sc_bits_add(&bits, -1) == -1);
    CHECK(sc_bits_load(&bits, (const uint8_t *)"\x05", 1));
    CHECK(sc_bits_has(&bits, 0) && !sc_bits_has(&bits, 1) && sc_bits_has(&bits, 2) && !sc_bits_has(&bits, 9));
    CHECK(sc_bits_load(&bits, NULL, 0) && !sc_bits_has(&bits, 0) && sc_bits_add(&bits, 3) == 1);
    sc_bits_free(&bits);
    CHECK(!sc_bits_has(&bits, 3));
}

static void all_credit_comes_back_however_many_messages_are_on_the_way(void) {
    sc_flow_control flow = sc_flow_control_begin(200);
    sc_error error;
    for (int64_t i = 0; i < 10; ++i)
        CHECK(sc_flow_control_sent(&flow, 2, 1, &error) == STREAM_OK);
    sc_flow_control_received(&flow, 5);
    CHECK(flow.num == 5 && flow.room == 190);
    for (int64_t i = 0; i < 40; ++i)
        CHECK(sc_flow_control_sent(&flow, 2, 1, &error) == STREAM_OK);
    CHECK(flow.num == 45 && flow.room == 110);
    sc_flow_control_received(&flow, 49);
    CHECK(flow.num == 1 && flow.room == 198);
    sc_flow_control_received(&flow, 50);
    CHECK(flow.num == 0 && flow.room == 200);
    sc_flow_control_free(&flow);
}

/* As gfortran's -ffpe-trap makes them do. */
static void programs_that_trap_overflow_are_not_ended_by_a_conversion(void) {
    const double values[] = {1e300, 1e-300, 1.0 / 3.0};
    const int64_t count[] = {3};
    float to[3];
    feclearexcept(FE_ALL_EXCEPT);
    CHECK(feenableexcept(FE_OVERFLOW | FE_UNDERFLOW | FE_INVALID | FE_INEXACT) != -1);
    CHECK(!sc_copy_block(to, STREAM_FLOAT32, values, STREAM_FLOAT64, 1, count, NULL, NULL));
    CHECK(fegetexcept() == (FE_OVERFLOW | FE_UNDERFLOW | FE_INVALID | FE_INEXACT));
    CHECK(fetestexcept(FE_ALL_EXCEPT) == 0);
    fedisableexcept(FE_ALL_EXCEPT);
    CHECK(to[0] > 1e38f && to[1] == 0.0f);
}

static void copies_of_one_type_are_exact(void) {
    const unsigned char bits[8] = {1, 0, 0, 0, 0, 0, 0xf0, 0x7f};
    const int64_t count[] = {1};
    unsigned char to[8];
    CHECK(sc_copy_block(to, STREAM_FLOAT64, bits, STREAM_FLOAT64, 1, count, NULL, NULL));
    CHECK(memcmp(to, bits, 8) == 0);
}

static void only_what_becomes_zero_has_underflowed(void) {
    const double zero[] = {0.0, 1.0}, small[] = {1e-300, 1.0};
    const int64_t count[] = {2};
    float to[2];
    bool underflows = true;
    CHECK(sc_copy_block(to, STREAM_FLOAT32, zero, STREAM_FLOAT64, 1, count, NULL, &underflows) && !underflows);
    CHECK(sc_copy_block(to, STREAM_FLOAT32, small, STREAM_FLOAT64, 1, count, NULL, &underflows) && underflows);
}

/* In the locale that LOCALE names, which has a decimal comma. */
static void numbers_are_read_the_same_in_every_locale(void) {
    static const char text[] =
        "{\"study\": \"s\", \"incarnation\": 1, \"host\": \"h\", \"control\": [\"tcp://h:1\"], \"parameters\": {\"a\": 0.5}}";
    sc_connection_file file;
    sc_error error;
    const char *name = getenv("LOCALE");
    CHECK(name != NULL && setlocale(LC_ALL, name) != NULL && strcmp(localeconv()->decimal_point, ",") == 0);
    CHECK(sc_connection_file_parse(text, strlen(text), "FILE", &file, &error) == STREAM_OK);
    CHECK(file.parameters.values[0] == 0.5 && strcmp(localeconv()->decimal_point, ",") == 0);
    sc_connection_file_free(&file);
}

int main(void) {
    an_error_may_be_put_into_another_sentence();
    a_long_error_is_cut();
    bits_are_a_growing_set();
    all_credit_comes_back_however_many_messages_are_on_the_way();
    programs_that_trap_overflow_are_not_ended_by_a_conversion();
    copies_of_one_type_are_exact();
    only_what_becomes_zero_has_underflowed();
    numbers_are_read_the_same_in_every_locale();
    return 0;
}
