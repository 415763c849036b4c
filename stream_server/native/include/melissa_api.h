/* The interface of Melissa's client (2021), over Stream Server: codes instrumented for Melissa run without a change.
 *
 * All ranks of `comm` call melissa_init for each field, in the same order: their blocks lie one after the other in rank
 * order, and together are one field of the study. Then each time step is one melissa_send per field. melissa_finalize
 * comes before MPI_Finalize. Nothing here ends the process: what is wrong is printed once, and the simulation goes on
 * alone.
 * One thread at a time. docs/guide/clients.md tells what becomes of Melissa's configuration.
 */
#ifndef MELISSA_API_H
#define MELISSA_API_H

#include <mpi.h>

#include "melissa_api_no_mpi.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Take part with a field of which this rank has `vect_size` values, perhaps 0. */
STREAM_API void melissa_init(const char *field_name, const int vect_size, MPI_Comm comm);
STREAM_API void melissa_init_f(const char *field_name, int *local_vect_size, MPI_Fint *comm_fortran);

/* This rank's values of a field at the next time step; they are copied. */
STREAM_API void melissa_send(const char *field_name, const double *send_vect);

#ifdef __cplusplus
}
#endif

#endif
