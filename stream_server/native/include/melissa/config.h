/* The version of Melissa whose interface this is, and the names of couplings, which have no effect here. */
#ifndef MELISSA_CONFIG_H
#define MELISSA_CONFIG_H

#define MELISSA_MAJOR_NUM 0
#define MELISSA_MINOR_NUM 7
#define MELISSA_RELEASE_NUM 0
#define MELISSA_VERSION "0.7.0"

/* How the simulations of a Sobol group were to exchange data. */
#define MELISSA_COUPLING_NONE 0
#define MELISSA_COUPLING_ZMQ 0
#define MELISSA_COUPLING_DEFAULT MELISSA_COUPLING_ZMQ
#define MELISSA_COUPLING_MPI 1
#define MELISSA_COUPLING_FLOWVR 2

#endif
