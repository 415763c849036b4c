/* Calls everything with NULL, with and without a simulation: no call may crash, each says what is missing. */
#include <stdio.h>
#include <string.h>

#include "stream_client.h"

static int num_wrong;

#define EXPECT(condition) \
    do { \
        if (!(condition)) { \
            printf("line %d: %s (%s)\n", __LINE__, #condition, stream_error(NULL)); \
            ++num_wrong; \
        } \
    } while (0)

#define EXPECT_NULL_ERROR(call, simulation) \
    do { \
        EXPECT((call) == STREAM_ERROR_ARGUMENT); \
        EXPECT(strstr(stream_error(simulation), "NULL") != NULL); \
    } while (0)

static void without_simulation(void) {
    int64_t numbers[STREAM_MAX_DIMENSIONS] = {1};
    double value = 0;
    EXPECT_NULL_ERROR(stream_connect(NULL, 0, 1), NULL);
    EXPECT_NULL_ERROR(stream_id(NULL), NULL);
    EXPECT_NULL_ERROR(stream_attempt(NULL), NULL);
    EXPECT_NULL_ERROR(stream_parameter(NULL, "a", &value), NULL);
    EXPECT_NULL_ERROR(stream_time_steps(NULL, numbers, numbers, numbers), NULL);
    EXPECT_NULL_ERROR(stream_num_fields(NULL), NULL);
    EXPECT(stream_field_name(NULL, 0) == NULL);
    EXPECT_NULL_ERROR(stream_field_shape(NULL, "u", numbers), NULL);
    EXPECT_NULL_ERROR(stream_declare_field(NULL, "u", STREAM_FLOAT64, 1, numbers, NULL, NULL), NULL);
    EXPECT_NULL_ERROR(stream_put(NULL, "u", &value), NULL);
    EXPECT_NULL_ERROR(stream_put_strided(NULL, "u", &value, numbers), NULL);
    EXPECT_NULL_ERROR(stream_put_array(NULL, "u", STREAM_FLOAT64, 1, numbers, NULL, &value), NULL);
    EXPECT_NULL_ERROR(stream_send(NULL, 0), NULL);
    EXPECT_NULL_ERROR(stream_next(NULL), NULL);
    EXPECT_NULL_ERROR(stream_invalidate(NULL, "diverged"), NULL);
    EXPECT_NULL_ERROR(stream_finish(NULL), NULL);
    EXPECT_NULL_ERROR(stream_abandon(NULL), NULL);
    EXPECT(strcmp(stream_stop_reason(NULL), "") == 0);
    stream_simulation *none = NULL;
    EXPECT(stream_finish(&none) == STREAM_OK);
    EXPECT(strcmp(stream_error(NULL), "") == 0);
    EXPECT_NULL_ERROR(stream_send(NULL, 0), NULL);
    EXPECT(stream_abandon(&none) == STREAM_OK);
    EXPECT(strcmp(stream_error(NULL), "") == 0);
}

static void with_simulation(stream_simulation *simulation) {
    int64_t numbers[STREAM_MAX_DIMENSIONS] = {4};
    double values[4] = {0};
    EXPECT_NULL_ERROR(stream_parameter(simulation, NULL, values), simulation);
    EXPECT_NULL_ERROR(stream_parameter(simulation, "viscosity", NULL), simulation);
    EXPECT_NULL_ERROR(stream_time_steps(simulation, NULL, numbers, numbers), simulation);
    EXPECT_NULL_ERROR(stream_time_steps(simulation, numbers, NULL, numbers), simulation);
    EXPECT_NULL_ERROR(stream_time_steps(simulation, numbers, numbers, NULL), simulation);
    EXPECT_NULL_ERROR(stream_field_shape(simulation, NULL, numbers), simulation);
    EXPECT_NULL_ERROR(stream_field_shape(simulation, "u", NULL), simulation);
    EXPECT(stream_field_name(simulation, -1) == NULL);
    EXPECT(stream_field_name(simulation, 1) == NULL);
    EXPECT_NULL_ERROR(stream_declare_field(simulation, NULL, STREAM_FLOAT64, 1, numbers, NULL, NULL), simulation);
    EXPECT_NULL_ERROR(stream_declare_field(simulation, "u", STREAM_FLOAT64, 1, NULL, NULL, NULL), simulation);
    EXPECT(stream_declare_field(simulation, "u", STREAM_FLOAT64, 1, numbers, NULL, NULL) == STREAM_OK);
    EXPECT_NULL_ERROR(stream_put(simulation, NULL, values), simulation);
    EXPECT_NULL_ERROR(stream_put(simulation, "u", NULL), simulation);
    EXPECT_NULL_ERROR(stream_put_strided(simulation, "u", values, NULL), simulation);
    EXPECT_NULL_ERROR(stream_put_array(simulation, "u", STREAM_FLOAT64, 1, NULL, NULL, values), simulation);
    EXPECT_NULL_ERROR(stream_invalidate(simulation, NULL), simulation);
    /* None of these mistakes has spoilt anything. */
    EXPECT(stream_put(simulation, "u", values) == STREAM_OK);
    EXPECT(stream_send(simulation, 0) == STREAM_OK);
}

int main(int num_arguments, char *arguments[]) {
    stream_options options = STREAM_OPTIONS_DEFAULT;
    stream_simulation *simulation;
    options.connection = num_arguments > 1 ? arguments[1] : NULL;
    options.num_parameters = 1;
    without_simulation();
    EXPECT(stream_connect_with(&simulation, 0, 1, &options) == STREAM_ERROR_ARGUMENT);
    EXPECT(simulation == NULL);
    options.num_parameters = 0;
    EXPECT(stream_connect_with(&simulation, 0, 1, &options) == STREAM_OK);
    with_simulation(simulation);
    EXPECT(stream_finish(&simulation) == STREAM_OK);
    EXPECT(simulation == NULL);
    EXPECT(strcmp(stream_error(NULL), "") == 0);
    return num_wrong > 0;
}
