// Sends each type and each form of `put` to the study of test_cpp.py, as the numbers of a step.
#include "other.hpp"

#include <array>
#include <complex>
#include <cstdint>
#include <vector>

template <class T>
static std::vector<T> counted(std::size_t num) {
    std::vector<T> values(num);
    for (std::size_t i = 0; i < num; ++i) values[i] = static_cast<T>(static_cast<float>(i + 1));
    return values;
}

int main() {
    stream::Simulation simulation;
    const std::size_t ny = 2, nx = 3;
    simulation.declare_field<double>("declared", {ny, nx}, {0, 0}, {ny, nx});
    simulation.declare_field("untyped", std::vector<int>{2, 3});

    for (int step = 0; step < 2; ++step) {
        simulation.put("declared", counted<double>(6));
        simulation.put("untyped", counted<float>(6));
        simulation.put("flat", counted<std::int32_t>(6));
        simulation.put("whole", counted<std::uint8_t>(6));
        simulation.put("shaped", counted<std::int16_t>(6), std::array<long, 2>{2, 3});
        simulation.put("array", std::array<std::uint64_t, 3>{1, 2, 3});
        simulation.put("complex", counted<std::complex<double>>(2));
        simulation.put("narrow", counted<std::complex<float>>(2));
        simulation.put("scalar", 1.5);
        simulation.put("one", std::int64_t{step});
        simulation.put("truth", true);
        const std::vector<double> ghosts = counted<double>(4 * 5);
        simulation.put("strided", &ghosts[6], {ny, nx}, {5, 1});
        if (!send_in_other_file(simulation, step)) return 2;
    }
    simulation.finish();
    simulation.finish();
}
