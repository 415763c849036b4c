/* The part of melissa_api.h that needs no MPI, for codes that run as one process. */
#ifndef MELISSA_API_NO_MPI_H
#define MELISSA_API_NO_MPI_H

#include "melissa/config.h"
#include "stream_client.h"

#ifdef __cplusplus
extern "C" {
#endif

STREAM_API void melissa_init_no_mpi(const char *field_name, const int vect_size);
STREAM_API void melissa_init_no_mpi_f(const char *field_name, const int *vect_size);
STREAM_API void melissa_send_no_mpi(const char *field_name, const double *send_vect);

/* Send what is pending, wait until all has arrived, and leave. A second call does nothing. */
STREAM_API void melissa_finalize(void);

/* The version of this library. */
STREAM_API const char *melissa_version(void);

#ifdef __cplusplus
}
#endif

#endif
