/* The questions of a simulation about itself and its study. */
#include <stdio.h>
#include <string.h>

#include "simulation.h"

/* The study's Welcome, or NULL. */
static const sc_welcome *study_of(const stream_simulation *simulation) {
    return simulation->delivery == NULL ? NULL : &simulation->delivery->welcome;
}

/* The result of a question: that the simulation came too late, or has failed. */
static int answer_of(stream_simulation *simulation) {
    if (simulation->has_failed)
        return simulation->error.code;
    return simulation->has_ended && simulation->delivery == NULL ? STREAM_STOP : STREAM_OK;
}

int64_t stream_id(const stream_simulation *simulation) {
    return simulation == NULL ? sc_simulation_null(NULL, "the simulation") : simulation->id;
}

int64_t stream_attempt(const stream_simulation *simulation) {
    if (simulation == NULL)
        return sc_simulation_null(NULL, "the simulation");
    return simulation->delivery == NULL ? simulation->attempt : sc_delivery_welcome(simulation->delivery)->attempt;
}

static int no_parameter(stream_simulation *simulation, const sc_parameters *parameters, const char *name) {
    sc_error error;
    char names[SC_ERROR_BYTES / 2] = "";
    size_t at = 0;
    for (int i = 0; i < parameters->num && at < sizeof names; ++i) {
        int num = snprintf(names + at, sizeof names - at, "%s'%s'", i == 0 ? "" : ", ", parameters->names[i]);
        at += num < 0 ? 0 : (size_t)num;
    }
    sc_fail(&error, STREAM_ERROR_ARGUMENT, "the study has no parameter '%.200s', only %s", name, names);
    /* C lets return codes be ignored: the program would compute with what stood in its place. */
    fprintf(stderr, "stream_client, rank %lu, stream_parameter: %s\n",
            (unsigned long)simulation->greeting.hello.rank, error.text);
    return sc_simulation_mistake(simulation, &error);
}

int stream_parameter(stream_simulation *simulation, const char *name, double *value) {
    if (simulation == NULL)
        return sc_simulation_null(NULL, "the simulation");
    if (simulation->has_failed)
        return simulation->error.code;
    if (name == NULL || value == NULL)
        return sc_simulation_null(simulation, name == NULL ? "the name of a parameter" : "the place for the value");
    const sc_welcome *study = study_of(simulation);
    const sc_parameters *parameters = study == NULL ? &simulation->parameters : &study->parameters;
    for (int i = 0; i < parameters->num; ++i)
        if (strcmp(parameters->names[i], name) == 0) {
            *value = parameters->values[i];
            return answer_of(simulation);
        }
    return study == NULL ? answer_of(simulation) : no_parameter(simulation, parameters, name);
}

int stream_time_steps(stream_simulation *simulation, int64_t *num, int64_t *first, int64_t *every) {
    if (simulation == NULL)
        return sc_simulation_null(NULL, "the simulation");
    if (num == NULL || first == NULL || every == NULL)
        return sc_simulation_null(simulation, "the place for a number");
    const sc_welcome *study = study_of(simulation);
    *num = study == NULL ? -1 : study->num_steps;
    *first = study == NULL ? 0 : study->first;
    *every = study == NULL ? 1 : study->every;
    return answer_of(simulation);
}

int stream_num_fields(const stream_simulation *simulation) {
    if (simulation == NULL)
        return sc_simulation_null(NULL, "the simulation");
    const sc_welcome *study = study_of(simulation);
    return study == NULL ? 0 : study->num_fields;
}

const char *stream_field_name(const stream_simulation *simulation, int i) {
    const sc_welcome *study = simulation == NULL ? NULL : study_of(simulation);
    return study != NULL && i >= 0 && i < study->num_fields ? study->fields[i].name : NULL;
}

int stream_field_shape(stream_simulation *simulation, const char *name, int64_t shape[STREAM_MAX_DIMENSIONS]) {
    if (simulation == NULL)
        return sc_simulation_null(NULL, "the simulation");
    if (simulation->has_failed)
        return simulation->error.code;
    if (name == NULL || shape == NULL)
        return sc_simulation_null(simulation, name == NULL ? "the name of a field" : "the place for the shape");
    const sc_welcome *study = study_of(simulation);
    sc_error error;
    if (study == NULL)
        return 0;
    for (int i = 0; i < study->num_fields; ++i)
        if (strcmp(study->fields[i].name, name) == 0) {
            memcpy(shape, study->fields[i].shape, sizeof study->fields[i].shape);
            return study->fields[i].ndim;
        }
    sc_unknown_field(name, study->fields, study->num_fields, &error);
    return sc_simulation_mistake(simulation, &error);
}

const char *stream_stop_reason(const stream_simulation *simulation) {
    if (simulation == NULL)
        return "";
    const char *reason = simulation->stop_reason;
    if (reason == NULL && simulation->delivery != NULL)
        reason = sc_delivery_stop_reason(simulation->delivery);
    return reason == NULL ? "" : reason;
}

const char *stream_error(const stream_simulation *simulation) {
    if (simulation == NULL)
        return sc_thread_error()->text;
    /* The thread that was there first may be about to write its own. */
    return atomic_load((atomic_bool *)&simulation->is_shared) ? sc_shared_text : simulation->error.text;
}

const char *stream_version(void) {
    return STREAM_CLIENT_VERSION;
}
