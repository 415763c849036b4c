#pragma once
#include "stream_client.hpp"

bool send_in_other_file(stream::Simulation &simulation, int step);
