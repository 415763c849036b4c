C The names that Melissa's include file defines, fixed form.
      PROGRAM NAMES
      IMPLICIT NONE
      INCLUDE 'melissa/api.f'

      PRINT '(5(I0, 1X))', MELISSA_COUPLING_NONE, MELISSA_COUPLING_ZMQ,
     &    MELISSA_COUPLING_DEFAULT, MELISSA_COUPLING_MPI,
     &    MELISSA_COUPLING_FLOWVR
      CALL MELISSA_FINALIZE()
      END
