#define _POSIX_C_SOURCE 200809L
#include "greeting.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text.h"

int sc_check_options(int rank, int num_ranks, const stream_options *options, sc_error *error) {
    int num = options->num_parameters;
    if (rank < 0 || rank >= num_ranks)
        return sc_fail(error, STREAM_ERROR_ARGUMENT, "rank must be between 0 and num_ranks - 1, but is %d of %d",
                       rank, num_ranks);
    if (options->simulation_id < -1)
        return sc_fail(error, STREAM_ERROR_ARGUMENT,
                       "simulation_id must be a number from 0, or -1 for the server to choose, but is %lld",
                       (long long)options->simulation_id);
    if (!(options->timeout_s >= 0))
        return sc_fail(error, STREAM_ERROR_ARGUMENT, "timeout_s must be at least 0, but is %g", options->timeout_s);
    if (num < 0 || (num > 0 && (options->parameter_names == NULL || options->parameter_values == NULL)))
        return sc_fail(error, STREAM_ERROR_ARGUMENT, "num_parameters is %d, which needs as many names and values", num);
    for (int i = 0; i < num; ++i)
        if (options->parameter_names[i] == NULL)
            return sc_fail(error, STREAM_ERROR_ARGUMENT, "parameter_names[%d] is NULL", i);
    return STREAM_OK;
}

int sc_parameters_copy(sc_parameters *parameters, int num, const char *const names[], const double values[],
                       sc_error *error) {
    *parameters = (sc_parameters){.num = 0};
    if (num == 0)
        return STREAM_OK;
    parameters->names = calloc((size_t)num, sizeof *parameters->names);
    parameters->values = calloc((size_t)num, sizeof *parameters->values);
    for (int i = 0; i < num && parameters->names != NULL && parameters->values != NULL; ++i) {
        parameters->names[i] = sc_copy_text(names[i]);
        if (parameters->names[i] == NULL)
            break;
        parameters->values[i] = values[i];
        parameters->num = i + 1;
    }
    if (parameters->num == num)
        return STREAM_OK;
    sc_parameters_free(parameters);
    return sc_no_memory(error);
}

int sc_greeting_begin(sc_greeting *greeting, const sc_connection_file *file, int rank, int num_ranks,
                      const stream_options *options, sc_error *error) {
    bool is_launched = file->simulation >= 0;
    if (is_launched && options->simulation_id >= 0 && options->simulation_id != file->simulation)
        return sc_fail(error, STREAM_ERROR_ARGUMENT, "this process was started as simulation %lld, not %lld",
                       (long long)file->simulation, (long long)options->simulation_id);
    if (!is_launched && options->simulation_id < 0 && num_ranks > 1)
        return sc_fail(error, STREAM_ERROR_ARGUMENT,
                       "a parallel simulation that attaches by itself must pass the same simulation_id on all ranks");
    *greeting = (sc_greeting){.study = sc_copy_text(file->study)};
    int code = greeting->study == NULL ? sc_no_memory(error) : STREAM_OK;
    if (code == STREAM_OK)
        code = sc_parameters_copy(&greeting->parameters, options->num_parameters, options->parameter_names,
                                  options->parameter_values, error);
    if (code == STREAM_OK)
        code = sc_check_parameters(&greeting->parameters, error);
    greeting->hello = (sc_hello){
        .study = greeting->study,
        .simulation = is_launched ? file->simulation : options->simulation_id,
        .attempt = is_launched ? file->attempt : SC_ATTACHING,
        .rank = (uint32_t)rank,
        .num_ranks = (uint32_t)num_ranks,
        .parameters = options->num_parameters > 0 ? &greeting->parameters : NULL,
    };
    return code;
}

void sc_greeting_free(sc_greeting *greeting) {
    free(greeting->study);
    sc_parameters_free(&greeting->parameters);
    *greeting = (sc_greeting){.study = NULL};
}

void sc_greeting_who(const sc_greeting *greeting, char *text, size_t num_bytes) {
    const sc_hello *hello = &greeting->hello;
    if (hello->simulation < 0)
        snprintf(text, num_bytes, "a simulation rank %lu", (unsigned long)hello->rank);
    else
        snprintf(text, num_bytes, "simulation %lld rank %lu", (long long)hello->simulation,
                 (unsigned long)hello->rank);
}
