/* The names that Melissa's headers define. */
#include <melissa/api.h>
#include <melissa/config.h>
#include <stdio.h>

#if MELISSA_MAJOR_NUM < 0 || MELISSA_MINOR_NUM < 0 || MELISSA_RELEASE_NUM < 0
#error "no version"
#endif

int main(void) {
    printf("%d %d %d %d %d\n", MELISSA_COUPLING_NONE, MELISSA_COUPLING_ZMQ, MELISSA_COUPLING_DEFAULT,
           MELISSA_COUPLING_MPI, MELISSA_COUPLING_FLOWVR);
    melissa_finalize();
    return MELISSA_VERSION[0] == 0;
}
