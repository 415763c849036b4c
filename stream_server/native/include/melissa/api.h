#include "../melissa_api.h"
