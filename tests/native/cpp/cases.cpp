// One case of test_cpp.py, named on the command line; prints what it saw.
#include <cstdio>
#include <iostream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "stream_client.hpp"

static const std::vector<double> values(4, 1.0);

static void print_error(const std::string &what, const stream::Error &error) {
    std::cout << what << " " << error.code() << " " << error.what() << "\n";
}

template <class Call>
static void attempt(const std::string &what, Call call) {
    try {
        call();
        std::cout << what << " done\n";
    } catch (const stream::Error &error) {
        print_error(what, error);
    }
}

static void exception_leaves_the_block() {
    try {
        stream::Simulation simulation;
        simulation.put("u", values);
        simulation.send(0);
        throw std::runtime_error("the solver diverged");
    } catch (const std::runtime_error &error) {
        std::cout << error.what() << "\n";
    }
}

static void end_of_the_study() {
    stream::Simulation simulation;
    int step = 0;
    do {
        simulation.put("u", values);
    } while (step < 1000000 && simulation.send(step++));
    std::cout << (step < 1000000 ? "stopped: " : "went on: ") << simulation.stop_reason() << "\n";
    simulation.finish();
}

static void mistakes() {
    stream::Simulation simulation;
    attempt("dimensions", [&] { simulation.declare_field<double>("u", {4}, {0, 0}); });
    attempt("values", [&] { simulation.put("u", values, {2}); });
    attempt("name", [&] { simulation.put("v", values); });
    attempt("step", [&] {
        simulation.put("u", values);
        simulation.send(-1);
    });
    attempt("extents", [] { stream::Extents(std::vector<int>(9, 1)); });
    simulation.put("u", values);
    std::cout << "sent " << simulation.send(0) << "\n";
    simulation.finish();
    attempt("finished", [&] { simulation.send(1); });
}

static void facts() {
    stream::Simulation simulation;
    const stream::TimeSteps steps = simulation.time_steps();
    std::cout << simulation.id() << " " << simulation.attempt() << " " << simulation.parameter("viscosity", 9) << " "
              << steps.num.value_or(-1) << " " << steps.first << " " << steps.every << "\n";
    attempt("parameter", [&] { simulation.parameter("viscocity"); });
    simulation.invalidate("not worth it");
    std::cout << "sent " << simulation.send(0) << "\n";
}

static void attaching(const char *connection) {
    stream::Options options;
    options.connection = connection;
    options.simulation_id = 12;
    options.parameters = {{"viscosity", 0.25}, {"speed", 2}};
    stream::Simulation simulation(options);
    std::cout << "simulation " << simulation.id() << "\n";
    simulation.put("u", values);
    simulation.send(0);
    simulation.finish();
}

static void moves() {
    stream::Simulation first, second;
    first.put("u", values);
    first.send(0);
    stream_simulation *const kept = second.handle();
    first = std::move(second);
    std::cout << (first.handle() == kept) << " " << (second.handle() == nullptr) << "\n";
    stream::Simulation &same = first;
    first = std::move(same);
    std::cout << (first.handle() == kept) << "\n";
    first.finish();
}

int main(int, char **arguments) {
    const std::string name = arguments[1];
    try {
        if (name == "exception") exception_leaves_the_block();
        if (name == "end") end_of_the_study();
        if (name == "mistakes") mistakes();
        if (name == "facts") facts();
        if (name == "moves") moves();
        if (name == "attaching") attaching(arguments[2]);
        if (name == "unfinished") {
            stream::Simulation simulation;
            simulation.put("u", values);
            simulation.send(0);
        }
    } catch (const stream::Error &error) {
        print_error("error", error);
        return 1;
    }
}
