#include "../melissa_api_no_mpi.h"
