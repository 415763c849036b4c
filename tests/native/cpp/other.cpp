// The header is included in two files of one program.
#include "other.hpp"

bool send_in_other_file(stream::Simulation &simulation, int step) {
    stream::Simulation moved(std::move(simulation));
    const bool wanted = moved.send(step);
    simulation = std::move(moved);
    return wanted;
}
