/* How a simulation gets into a study. */
#define _POSIX_C_SOURCE 200809L
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "address.h"
#include "reader.h"
#include "simulation.h"
#include "transport.h"

#define ENVIRONMENT_VARIABLE "STREAM_CONNECTION"
#define ALONE "none"
#define PARAMETERS_VARIABLE "STREAM_PARAMETERS"
#define NEXT_VARIABLE "STREAM_NEXT"

/* The connection file that the caller names, or else the environment; "" if neither does. */
static const char *find(const stream_options *options) {
    const char *connection = options->connection;
    if (connection == NULL)
        connection = getenv(ENVIRONMENT_VARIABLE);
    return connection == NULL ? "" : connection;
}

static int64_t number_in_environment(const char *name) {
    const char *text = getenv(name);
    return text == NULL ? 0 : strtoll(text, NULL, 10);
}

/* The parameters of a program that runs alone: from the caller, or else the environment. */
static int parameters_alone(sc_parameters *parameters, const stream_options *options, sc_error *error) {
    const char *text = getenv(PARAMETERS_VARIABLE);
    if (options->num_parameters > 0 || text == NULL || text[0] == '\0')
        return sc_parameters_copy(parameters, options->num_parameters, options->parameter_names,
                                  options->parameter_values, error);
    sc_json json;
    int status = sc_json_parse(text, strlen(text), &json, STREAM_ERROR_CONNECTION_FILE, error);
    if (status == STREAM_OK) {
        sc_reader reader = {&json, error, STREAM_ERROR_CONNECTION_FILE, PARAMETERS_VARIABLE, STREAM_OK};
        sc_read_parameters(&reader, &json.values[0], parameters);
        sc_json_free(&json);
        status = reader.failed;
    }
    if (status != STREAM_ERROR_CONNECTION_FILE)
        return status;
    return sc_fail(error, status,
                   PARAMETERS_VARIABLE " must be a JSON object such as {\"initial\": 300, \"left\": 100}, but is '%s'",
                   text);
}

static int run_alone(stream_simulation *simulation, const stream_options *options, sc_error *error) {
    simulation->is_alone = true;
    simulation->id = options->simulation_id;
    if (simulation->id < 0)
        simulation->id = number_in_environment("STREAM_SIMULATION_ID");
    simulation->attempt = (uint32_t)number_in_environment("STREAM_ATTEMPT");
    return parameters_alone(&simulation->parameters, options, error);
}

/* The study has ended before this simulation began: it is what it was told, and what the connection file says. */
static int be_late(stream_simulation *simulation, const stream_options *options, sc_error *error) {
    const sc_connection_file *file = &simulation->watch.file;
    const sc_parameters *own = &simulation->greeting.parameters;
    const sc_parameters *known = options->num_parameters == 0 && file->has_parameters ? &file->parameters : own;
    simulation->has_ended = true;
    simulation->id = simulation->greeting.hello.simulation;
    simulation->attempt = file->attempt;
    int code = sc_parameters_copy(&simulation->parameters, known->num, (const char *const *)known->names,
                                  known->values, error);
    return code == STREAM_OK ? STREAM_STOP : code;
}

static int enter(stream_simulation *simulation, const char *path, int rank, int num_ranks,
                 const stream_options *options, sc_error *error) {
    int code = sc_watch_open(&simulation->watch, path, error);
    if (code != STREAM_OK)
        return code;
    simulation->has_watch = true;
    simulation->timeout_s = options->timeout_s;
    simulation->next = options->connection == NULL ? getenv(NEXT_VARIABLE) : NULL;
    code = sc_greeting_begin(&simulation->greeting, &simulation->watch.file, rank, num_ranks, options, error);
    if (code != STREAM_OK)
        return code;
    simulation->process = getpid();
    simulation->pool = sc_pool_new();
    simulation->context = sc_context_new(error);
    if (simulation->context == NULL)
        return error->code;
    if (simulation->pool == NULL)
        return sc_no_memory(error);
    code = sc_simulation_take_part(simulation, error);
    return code == STREAM_STOP ? be_late(simulation, options, error) : code;
}

static int begin(stream_simulation *simulation, int rank, int num_ranks, const stream_options *options,
                 sc_error *error) {
    const char *path = find(options);
    int code = sc_check_options(rank, num_ranks, options, error);
    if (code != STREAM_OK)
        return code;
    if (strcmp(path, ALONE) == 0)
        return run_alone(simulation, options, error);
    if (path[0] == '\0')
        return sc_fail(error, STREAM_ERROR_CONNECTION_FILE,
                       "no study to connect to: " ENVIRONMENT_VARIABLE
                       " is not set, as it is for simulations that a study starts. Pass the path of the study's "
                       "connection.json, or set " ENVIRONMENT_VARIABLE "=" ALONE " to run alone");
    return enter(simulation, path, rank, num_ranks, options, error);
}

int stream_connect_with(stream_simulation **simulation, int rank, int num_ranks, const stream_options *options) {
    static const stream_options defaults = STREAM_OPTIONS_DEFAULT;
    sc_error *error = sc_thread_error();
    *error = (sc_error){.code = STREAM_OK};
    if (simulation == NULL)
        return sc_simulation_null(NULL, "the place for the simulation");
    *simulation = NULL;
    stream_simulation *made = calloc(1, sizeof *made);
    if (made == NULL)
        return sc_no_memory(error);
    int code = begin(made, rank, num_ranks, options == NULL ? &defaults : options, error);
    if (code < 0)
        sc_simulation_free(made);
    else
        *simulation = made;
    return code;
}

int stream_connect(stream_simulation **simulation, int rank, int num_ranks) {
    return stream_connect_with(simulation, rank, num_ranks, NULL);
}

/* The path of the connection file of what this process computes next, in `path`, without its end of line; false if its
 * study has meant no more for it. */
static bool read_next(const stream_simulation *simulation, char *path, size_t num_bytes) {
    int descriptor = simulation->next == NULL ? -1 : sc_open_ordinary(simulation->next);
    FILE *list = descriptor < 0 ? NULL : fdopen(descriptor, "r");
    bool is_there = list != NULL;
    for (int line = 0; is_there && line <= simulation->num_followed; ++line)
        is_there = fgets(path, (int)num_bytes, list) != NULL;
    if (list != NULL)
        fclose(list);
    else if (descriptor >= 0)
        close(descriptor);
    if (is_there)
        path[strcspn(path, "\n")] = '\0';
    return is_there;
}

/* Go over to the connection file at `path`. */
static int follow(stream_simulation *simulation, const char *path) {
    sc_error error;
    sc_watch watch;
    int code = sc_watch_open(&watch, path, &error);
    if (code != STREAM_OK)
        return sc_simulation_fail(simulation, &error);
    sc_watch_close(&simulation->watch);
    simulation->watch = watch;
    simulation->num_followed += 1;
    simulation->greeting.hello.simulation = watch.file.simulation;
    simulation->greeting.hello.attempt = watch.file.attempt;
    return STREAM_OK;
}

/* The next simulation is the study's to choose and to describe. */
static int become_the_next(stream_simulation *simulation) {
    sc_error error;
    simulation->greeting.hello.parameters = NULL;
    int code = sc_simulation_take_part(simulation, &error);
    if (code < 0)
        return sc_simulation_fail(simulation, &error);
    simulation->none_is_left = code == STREAM_STOP;
    return code;
}

static int next(stream_simulation *simulation) {
    int code = sc_simulation_state(simulation);
    if (code < 0)
        return code;
    code = sc_simulation_complete(simulation);
    if (code < 0)
        return code;
    if (simulation->none_is_left || simulation->is_alone || simulation->delivery == NULL) {
        simulation->none_is_left = true;
        return STREAM_STOP;
    }
    /* Of a simulation that was stopped, which may have been that one alone. */
    code = STREAM_OK;
    /* A worker that was started for some simulations, or chose one, is done with the last of them. */
    if (simulation->greeting.hello.simulation >= 0) {
        char path[PATH_MAX];
        simulation->none_is_left = !read_next(simulation, path, sizeof path);
        code = simulation->none_is_left ? STREAM_STOP : follow(simulation, path);
    }
    return code == STREAM_OK ? become_the_next(simulation) : code;
}

int stream_next(stream_simulation *simulation) {
    SC_IN_ONE_THREAD(simulation, next(simulation));
}

/* An inherited one is let go with all its memory: its sockets and threads are the other process's. */
static int leave(stream_simulation **simulation, int code) {
    sc_error *error = sc_thread_error();
    *error = (sc_error){.code = STREAM_OK};
    if (code < 0)
        *error = (*simulation)->error;
    if (!sc_simulation_is_inherited(*simulation))
        sc_simulation_free(*simulation);
    *simulation = NULL;
    return code;
}

/* Of a simulation that is not there. */
static int nothing_to_leave(void) {
    *sc_thread_error() = (sc_error){.code = STREAM_OK};
    return STREAM_OK;
}

/* Another thread is in a call, so that all memory stays. */
static int leave_to_others(stream_simulation **simulation) {
    *simulation = NULL;
    return sc_fail(sc_thread_error(), STREAM_ERROR_ARGUMENT, "%s", sc_shared_text);
}

int stream_finish(stream_simulation **simulation) {
    if (simulation == NULL)
        return sc_simulation_null(NULL, "the place of the simulation");
    if (*simulation == NULL)
        return nothing_to_leave();
    if (sc_simulation_enter(*simulation) != STREAM_OK)
        return leave_to_others(simulation);
    if (sc_simulation_is_inherited(*simulation))
        return leave(simulation, STREAM_ERROR_ARGUMENT);
    int code = sc_simulation_complete(*simulation);
    /* C lets return codes be ignored, those of the calls before this one, too. */
    if (code < 0)
        fprintf(stderr, "stream_client, rank %lu, stream_finish: %s\n",
                (unsigned long)(*simulation)->greeting.hello.rank, (*simulation)->error.text);
    return leave(simulation, code);
}

int stream_abandon(stream_simulation **simulation) {
    if (simulation == NULL)
        return sc_simulation_null(NULL, "the place of the simulation");
    if (*simulation == NULL)
        return nothing_to_leave();
    if (sc_simulation_enter(*simulation) != STREAM_OK)
        return leave_to_others(simulation);
    if ((*simulation)->delivery != NULL && !sc_simulation_is_inherited(*simulation))
        sc_delivery_abandon((*simulation)->delivery);
    return leave(simulation, STREAM_OK);
}
