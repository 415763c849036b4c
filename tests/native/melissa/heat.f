C A code instrumented for Melissa: fixed form with mpif.h. One name is
C null-terminated, the other one is not.
      PROGRAM HEAT
      USE ISO_C_BINDING, ONLY: C_NULL_CHAR
      IMPLICIT NONE
      INCLUDE 'mpif.h'
      INCLUDE 'melissa_api.f'

      INTEGER IERR, ME, NP, N, I, FIRST, NCELL, FROW, NROW
      DOUBLE PRECISION INITIAL, U(13), FLUX(24)
      CHARACTER*32 ARGUMENT
      CHARACTER*5 NAME
      CHARACTER*9 FNAME

      NAME = 'heat'//C_NULL_CHAR
      FNAME = 'heat_flux'
      CALL MPI_INIT(IERR)
      CALL GETARG(1, ARGUMENT)
      READ (ARGUMENT, *) INITIAL
      CALL MPI_COMM_RANK(MPI_COMM_WORLD, ME, IERR)
      CALL MPI_COMM_SIZE(MPI_COMM_WORLD, NP, IERR)

      FIRST = ME * 13 / NP
      NCELL = (ME + 1) * 13 / NP - FIRST
      FROW = ME * 6 / NP
      NROW = (ME + 1) * 6 / NP - FROW

      CALL MELISSA_INIT(NAME, NCELL, MPI_COMM_WORLD)
      CALL MELISSA_INIT(FNAME, NROW * 4, MPI_COMM_WORLD)
      DO 30 N = 1, 9
        DO 10 I = 1, NCELL
          U(I) = INITIAL + 1000D0 * N + (FIRST + I - 1)
10      CONTINUE
        DO 20 I = 1, NROW * 4
          FLUX(I) = -(INITIAL + 1000D0 * N + (FROW * 4 + I - 1))
20      CONTINUE
        CALL MELISSA_SEND(NAME, U)
        CALL MELISSA_SEND(FNAME, FLUX)
30    CONTINUE
      CALL MELISSA_FINALIZE()

      CALL MPI_FINALIZE(IERR)
      END
