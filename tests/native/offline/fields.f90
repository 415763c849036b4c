! The simulation of fields.c in Fortran, on one rank; its arrays have their axes in the other order.
!
!     fields FOLDER
program fields
    use, intrinsic :: iso_fortran_env, only: int32, real32, real64
    use stream_client
    implicit none

    integer, parameter :: num_steps = 12, first = 5, every = 10, ni = 2, nj = 5, nk = 3, nx = 7, ny = 2, num_cells = 4
    real(real32) :: pressure(ni, nj, nk)
    real(real64) :: velocity(nx, ny), energy, offset = 0, slope = 0
    integer(int32) :: cells(num_cells)
    integer :: step, i, file
    character(len=1024) :: folder
    character(len=16) :: name
    type(stream_simulation) :: simulation

    call get_command_argument(1, folder)
    call stream_connect(simulation, 0, 1)
    call stream_parameter(simulation, 'offset', offset)
    call stream_parameter(simulation, 'slope', slope)
    call stream_declare_field(simulation, 'pressure', shape=[ni, nj, nk])
    call stream_declare_field(simulation, 'velocity', shape=[nx, ny])
    call stream_declare_field(simulation, 'cells', shape=[num_cells])
    write (name, '(i0, ".0.raw")') stream_id(simulation)
    open (newunit=file, file=trim(folder)//'/'//trim(name), access='stream', form='unformatted', status='new')
    do step = 0, num_steps - 1
        pressure = reshape([(real(sin(offset + slope * i + 0.1d0 * step), real32), i = 0, ni * nj * nk - 1)], [ni, nj, nk])
        velocity = reshape([(exp(offset * i - slope * step), i = 0, nx * ny - 1)], [nx, ny])
        cells = [(1000 * int(stream_id(simulation), int32) + 10 * step + i, i = 0, num_cells - 1)]
        energy = cos(offset + slope * step)
        pressure(1, mod(step, nj) + 1, 1) = -0.0
        pressure(2, mod(step, nj) + 1, 2) = 1e-40
        velocity(mod(step, nx) + 1, 2) = 5d-324
        write (file) pressure, velocity, cells, energy
        call stream_put(simulation, 'pressure', pressure)
        call stream_put(simulation, 'velocity', velocity)
        call stream_put(simulation, 'cells', cells)
        call stream_put(simulation, 'energy', energy)
        call stream_send(simulation, first + every * step)
    end do
    close (file)
    call stream_finish(simulation)
end program fields
