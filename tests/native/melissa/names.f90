! The names that Melissa's include file defines.
program names
  implicit none
  include 'melissa/api.f90'

  print '(5(i0, 1x))', MELISSA_COUPLING_NONE, MELISSA_COUPLING_ZMQ, MELISSA_COUPLING_DEFAULT, &
    MELISSA_COUPLING_MPI, MELISSA_COUPLING_FLOWVR
  call melissa_finalize()
end program names
