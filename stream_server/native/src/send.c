/* The functions with which a simulation sends its time steps. */
#include <stdio.h>

#include "simulation.h"

static const sc_welcome *study_of(const stream_simulation *simulation) {
    return &simulation->delivery->welcome;
}

/* Whether there is a study that wants something; *code is what the call gives otherwise. */
static bool is_wanted(stream_simulation *simulation, int *code) {
    *code = sc_simulation_state(simulation);
    return *code == STREAM_OK && !simulation->is_alone;
}

static int note(stream_simulation *simulation, int code, const sc_error *error) {
    if (code == STREAM_ERROR_ARGUMENT && simulation->mistake.code == STREAM_OK)
        simulation->mistake = *error;
    return code;
}

static int done(stream_simulation *simulation, int code, const sc_error *error) {
    return note(simulation, code, error) < 0 ? sc_simulation_mistake(simulation, error) : code;
}

static int declare_field(stream_simulation *simulation, const char *name, stream_dtype dtype, int ndim,
                         const int64_t shape[], const int64_t offset[], const int64_t count[]) {
    int code;
    sc_error error;
    if (!is_wanted(simulation, &code))
        return code;
    code = sc_fields_declare(simulation->delivery->fields, name, dtype, ndim, shape, offset, count, &error);
    return done(simulation, code, &error);
}

static int put(stream_simulation *simulation, const char *name, const void *data) {
    int code;
    sc_error error;
    if (!is_wanted(simulation, &code))
        return code;
    return done(simulation, sc_fields_put(simulation->delivery->fields, name, data, NULL, &error), &error);
}

static int put_strided(stream_simulation *simulation, const char *name, const void *data, const int64_t strides[]) {
    int code;
    sc_error error;
    if (!is_wanted(simulation, &code))
        return code;
    if (strides == NULL)
        return sc_simulation_null(simulation, "strides");
    return done(simulation, sc_fields_put(simulation->delivery->fields, name, data, strides, &error), &error);
}

static int put_array(stream_simulation *simulation, const char *name, stream_dtype dtype, int ndim,
                     const int64_t count[], const int64_t strides[], const void *data) {
    int code;
    sc_error error;
    if (!is_wanted(simulation, &code))
        return code;
    code = sc_fields_put_array(simulation->delivery->fields, name, dtype, ndim, count, strides, data, &error);
    return done(simulation, code, &error);
}

static int no_such_step(const sc_welcome *study, uint64_t num, int64_t time_step, sc_error *error) {
    int64_t last = (int64_t)((uint64_t)study->first + (num - 1) * (uint64_t)study->every);
    char every[40] = "";
    if (study->every > 1)
        snprintf(every, sizeof every, ", every %lld", (long long)study->every);
    return sc_fail(error, STREAM_ERROR_ARGUMENT, "the study has the time steps %lld to %lld%s, but not %lld",
                   (long long)study->first, (long long)last, every, (long long)time_step);
}

/* The index of a time step's label. */
static int find_index(const sc_welcome *study, int64_t time_step, int64_t *index, sc_error *error) {
    uint64_t num = study->num_steps < 0 ? SC_MAX_UNKNOWN_STEPS : (uint64_t)study->num_steps;
    /* The difference of two labels may be too large for a signed number. */
    uint64_t distance = (uint64_t)time_step - (uint64_t)study->first, every = (uint64_t)study->every;
    if (time_step < study->first || distance % every != 0 || distance / every >= num)
        return no_such_step(study, num, time_step, error);
    *index = (int64_t)(distance / every);
    return STREAM_OK;
}

static int send_step(stream_simulation *simulation, int64_t time_step) {
    int code;
    int64_t index = 0;
    sc_error error;
    if (!is_wanted(simulation, &code))
        return code;
    sc_delivery *delivery = simulation->delivery;
    code = find_index(study_of(simulation), time_step, &index, &error);
    if (code == STREAM_OK)
        code = sc_delivery_send(delivery, index, &error);
    else
        sc_fields_drop(delivery->fields);
    simulation->has_refused |= note(simulation, code, &error) == STREAM_ERROR_ARGUMENT;
    if (code != STREAM_OK)
        return sc_simulation_fail(simulation, &error);
    simulation->has_sent = true;
    if (!sc_delivery_has_stopped(delivery))
        return STREAM_OK;
    simulation->has_ended = true;
    sc_delivery_close(delivery);
    return STREAM_STOP;
}

static int invalidate(stream_simulation *simulation, const char *reason) {
    sc_error error;
    if (simulation != NULL && simulation->is_invalidated && !simulation->has_failed &&
        !sc_simulation_is_inherited(simulation))
        return STREAM_OK;
    int code;
    if (!is_wanted(simulation, &code))
        return code;
    if (reason == NULL)
        return sc_simulation_null(simulation, "the reason");
    code = sc_delivery_invalidate(simulation->delivery, reason, &error);
    if (code != STREAM_OK)
        return sc_simulation_fail(simulation, &error);
    simulation->is_invalidated = true;
    return STREAM_OK;
}

int stream_declare_field(stream_simulation *simulation, const char *name, stream_dtype dtype, int ndim,
                         const int64_t shape[], const int64_t offset[], const int64_t count[]) {
    SC_IN_ONE_THREAD(simulation, declare_field(simulation, name, dtype, ndim, shape, offset, count));
}

int stream_put(stream_simulation *simulation, const char *name, const void *data) {
    SC_IN_ONE_THREAD(simulation, put(simulation, name, data));
}

int stream_put_strided(stream_simulation *simulation, const char *name, const void *data, const int64_t strides[]) {
    SC_IN_ONE_THREAD(simulation, put_strided(simulation, name, data, strides));
}

int stream_put_array(stream_simulation *simulation, const char *name, stream_dtype dtype, int ndim,
                     const int64_t count[], const int64_t strides[], const void *data) {
    SC_IN_ONE_THREAD(simulation, put_array(simulation, name, dtype, ndim, count, strides, data));
}

int stream_send(stream_simulation *simulation, int64_t time_step) {
    SC_IN_ONE_THREAD(simulation, send_step(simulation, time_step));
}

int stream_invalidate(stream_simulation *simulation, const char *reason) {
    SC_IN_ONE_THREAD(simulation, invalidate(simulation, reason));
}
