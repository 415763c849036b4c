! A code instrumented for Melissa: Fortran 90 with the module mpi. One name has no terminator, the other is padded.
program heat
  use mpi
  use iso_c_binding, only: c_char
  implicit none

  include 'melissa_api.f90'

  integer :: ierr, me, np, comm, n, i, first_cell, num_cells, first_row, num_rows
  integer(kind=mpi_address_kind) :: appnum
  logical :: is_set
  real(8) :: initial
  real(8), allocatable :: u(:), flux(:)
  character(len=32) :: argument
  character(len=4) :: name = c_char_'heat'
  character(len=20) :: flux_name = 'heat_flux'

  call mpi_init(ierr)
  call get_command_argument(1, argument)
  read (argument, *) initial

  call mpi_comm_get_attr(mpi_comm_world, mpi_appnum, appnum, is_set, ierr)
  if (.not. is_set) appnum = 0
  call mpi_comm_rank(mpi_comm_world, me, ierr)
  call mpi_comm_split(mpi_comm_world, int(appnum), me, comm, ierr)
  call mpi_comm_rank(comm, me, ierr)
  call mpi_comm_size(comm, np, ierr)

  first_cell = me * 13 / np
  num_cells = (me + 1) * 13 / np - first_cell
  first_row = me * 6 / np
  num_rows = (me + 1) * 6 / np - first_row
  allocate (u(num_cells), flux(num_rows * 4))

  call melissa_init(name, num_cells, comm)
  call melissa_init(flux_name, num_rows * 4, comm)
  do n = 1, 9
    do i = 1, num_cells
      u(i) = initial + 1000d0 * n + (first_cell + i - 1)
    end do
    do i = 1, num_rows * 4
      flux(i) = -(initial + 1000d0 * n + (first_row * 4 + i - 1))
    end do
    call melissa_send(name, u)
    call melissa_send(flux_name, flux)
  end do
  call melissa_finalize()

  call mpi_finalize(ierr)
end program heat
