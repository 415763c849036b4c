#define _POSIX_C_SOURCE 200809L
#include "simulation.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "control.h"
#include "text.h"
#include "transport.h"

sc_error *sc_thread_error(void) {
    static _Thread_local sc_error error;
    return &error;
}

const char *const sc_shared_text = "a simulation was used by two threads at once: call its functions in one thread, or "
                                   "hold a lock of yours around them";

int sc_simulation_enter(stream_simulation *simulation) {
    if (simulation == NULL)
        return STREAM_OK;
    if (atomic_exchange(&simulation->is_in_call, true)) {
        /* What is inherited was perhaps in a call of a thread that is not. */
        if (simulation->process != getpid())
            return STREAM_OK;
        atomic_store(&simulation->is_shared, true);
        return STREAM_ERROR_ARGUMENT;
    }
    if (atomic_load(&simulation->is_shared) && !simulation->has_failed) {
        sc_fail(&simulation->error, STREAM_ERROR_ARGUMENT, "%s", sc_shared_text);
        simulation->has_failed = true;
        sc_delivery_close(simulation->delivery);
    }
    return STREAM_OK;
}

void sc_simulation_leave(stream_simulation *simulation) {
    if (simulation != NULL)
        atomic_store(&simulation->is_in_call, false);
}

bool sc_simulation_is_inherited(stream_simulation *simulation) {
    if (simulation->context == NULL || simulation->process == getpid())
        return false;
    sc_fail(&simulation->error, STREAM_ERROR_ARGUMENT,
            "a simulation belongs to the process that connected it, and not to its children: this one can only leave");
    return true;
}

int sc_simulation_state(stream_simulation *simulation) {
    if (simulation == NULL)
        return sc_simulation_null(NULL, "the simulation");
    if (sc_simulation_is_inherited(simulation) || simulation->has_failed)
        return simulation->error.code;
    bool is_done = simulation->has_ended || simulation->none_is_left || simulation->is_invalidated;
    return is_done ? STREAM_STOP : STREAM_OK;
}

int sc_simulation_mistake(stream_simulation *simulation, const sc_error *error) {
    if (!simulation->has_failed)
        simulation->error = *error;
    return error->code;
}

int sc_simulation_fail(stream_simulation *simulation, const sc_error *error) {
    sc_simulation_mistake(simulation, error);
    if (error->code == STREAM_ERROR_ARGUMENT)
        return error->code;
    simulation->has_failed = true;
    sc_delivery_close(simulation->delivery);
    return error->code;
}

int sc_simulation_null(stream_simulation *simulation, const char *what) {
    sc_error error;
    sc_fail(&error, STREAM_ERROR_ARGUMENT, "%s is NULL", what);
    if (simulation != NULL)
        return sc_simulation_mistake(simulation, &error);
    *sc_thread_error() = error;
    return error.code;
}

static bool is_none_left(const sc_reply *answer) {
    return answer->kind == SC_REFUSAL && answer->refusal.reason == SC_NO_SIMULATION_LEFT;
}

static int begin(stream_simulation *simulation, sc_reply *answer, sc_error *error) {
    sc_welcome *welcome = &answer->welcome;
    sc_participant participant = {simulation->context, simulation->pool, &simulation->watch,
                                  &simulation->greeting.hello, simulation->timeout_s};
    sc_delivery *delivery = sc_delivery_new(&participant, welcome);
    if (delivery == NULL)
        return sc_no_memory(error);
    *welcome = (sc_welcome){.num_steps = -1};
    sc_delivery_free(simulation->delivery);
    simulation->delivery = delivery;
    simulation->id = delivery->welcome.simulation;
    simulation->is_invalidated = simulation->has_ended = false;
    simulation->has_sent = simulation->has_refused = false;
    simulation->mistake.code = STREAM_OK;
    return STREAM_OK;
}

/* Keep why nothing is wanted. */
static int stop(stream_simulation *simulation, const sc_reply *answer) {
    free(simulation->stop_reason);
    simulation->stop_reason = sc_copy_text(sc_answer_text(answer));
    return STREAM_STOP;
}

static int take_answer(stream_simulation *simulation, sc_reply *answer, const char *who, sc_error *error) {
    const sc_hello *hello = &simulation->greeting.hello;
    if (answer->kind == SC_WELCOME)
        return begin(simulation, answer, error);
    if (answer->kind == SC_STOPPED || (is_none_left(answer) && hello->simulation < 0))
        return stop(simulation, answer);
    return sc_fail(error, STREAM_ERROR_REFUSED, "%s cannot take part in study %.200s: %s", who, hello->study,
                   sc_answer_text(answer));
}

int sc_simulation_take_part(stream_simulation *simulation, sc_error *error) {
    char who[64];
    sc_greeting_who(&simulation->greeting, who, sizeof who);
    sc_asker asker = {simulation->context, &simulation->watch, who, simulation->timeout_s};
    sc_message hello = sc_encode_hello(&simulation->greeting.hello);
    sc_reply answer;
    int code = sc_ask(&asker, &hello, &answer, error);
    sc_message_free(&hello);
    if (code != STREAM_OK)
        return code;
    code = take_answer(simulation, &answer, who, error);
    sc_reply_free(&answer);
    return code;
}

int sc_simulation_complete(stream_simulation *simulation) {
    sc_error error;
    if (simulation->has_failed)
        return simulation->error.code;
    if (simulation->is_alone || simulation->none_is_left || simulation->is_invalidated)
        return STREAM_OK;
    if (simulation->has_ended)
        return STREAM_STOP;
    /* A program that looks at no result has not simulated nothing. */
    if (!simulation->has_sent && simulation->has_refused)
        return sc_simulation_mistake(simulation, &simulation->mistake);
    int code = sc_delivery_finish(simulation->delivery, &error);
    sc_delivery_close(simulation->delivery);
    if (code != STREAM_OK)
        return sc_simulation_fail(simulation, &error);
    simulation->has_ended = sc_delivery_has_stopped(simulation->delivery);
    return simulation->has_ended ? STREAM_STOP : STREAM_OK;
}

void sc_simulation_free(stream_simulation *simulation) {
    if (simulation == NULL)
        return;
    sc_delivery_free(simulation->delivery);
    sc_context_close(simulation->context);
    sc_pool_close(simulation->pool);
    if (simulation->has_watch)
        sc_watch_close(&simulation->watch);
    sc_greeting_free(&simulation->greeting);
    sc_parameters_free(&simulation->parameters);
    free(simulation->stop_reason);
    free(simulation);
}
