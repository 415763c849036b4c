! The interface of Melissa's client for Fortran, free form: include it after `implicit none`. See melissa_api.h.

interface

  subroutine melissa_init(field_name, local_vect_size, comm) bind(c, name='melissa_init_f')
    use, intrinsic :: iso_c_binding, only: c_char, c_int
    character(kind=c_char), intent(in) :: field_name(*)
    integer(c_int), intent(in) :: local_vect_size
    integer(c_int), intent(in) :: comm
  end subroutine melissa_init

  subroutine melissa_init_no_mpi(field_name, vect_size) bind(c, name='melissa_init_no_mpi_f')
    use, intrinsic :: iso_c_binding, only: c_char, c_int
    character(kind=c_char), intent(in) :: field_name(*)
    integer(c_int), intent(in) :: vect_size
  end subroutine melissa_init_no_mpi

  subroutine melissa_send(field_name, send_vect) bind(c, name='melissa_send')
    use, intrinsic :: iso_c_binding, only: c_char, c_double
    character(kind=c_char), intent(in) :: field_name(*)
    real(c_double), intent(in) :: send_vect(*)
  end subroutine melissa_send

  subroutine melissa_send_no_mpi(field_name, send_vect) bind(c, name='melissa_send_no_mpi')
    use, intrinsic :: iso_c_binding, only: c_char, c_double
    character(kind=c_char), intent(in) :: field_name(*)
    real(c_double), intent(in) :: send_vect(*)
  end subroutine melissa_send_no_mpi

  subroutine melissa_finalize() bind(c, name='melissa_finalize')
  end subroutine melissa_finalize

end interface

! Names of couplings, which have no effect here.
integer, parameter :: melissa_coupling_none = 0
integer, parameter :: melissa_coupling_zmq = 0
integer, parameter :: melissa_coupling_default = 0
integer, parameter :: melissa_coupling_mpi = 1
integer, parameter :: melissa_coupling_flowvr = 2
