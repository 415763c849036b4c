! The simulation of tests/study/mpi_study/decomposed.py in Fortran, on two ranks.
!
!     decomposed [kill|wait SIMULATION FILE]
program decomposed
    use, intrinsic :: iso_fortran_env, only: int64, real64, output_unit
    use mpi
    use stream_client
    implicit none

    integer, parameter :: num_steps = 20, step_of_trouble = 10, nx = 7, ny = 5, ni = 5, nj = 4, nk = 3, num_places = 8
    real(real64) :: plane(nx, ny), volume(ni, nj, nk), places(num_places), offset = 0, slope = 0
    integer :: rank, num_ranks, error, step, i, ierr, agreed, x1, x2, i1, i2, p1, p2
    type(stream_simulation) :: simulation

    call mpi_init(error)
    call mpi_comm_rank(mpi_comm_world, rank, error)
    call mpi_comm_size(mpi_comm_world, num_ranks, error)
    call stream_connect(simulation, rank, num_ranks)
    call stream_parameter(simulation, 'offset', offset)
    call stream_parameter(simulation, 'slope', slope)
    call cut(nx, x1, x2)
    call cut(ni, i1, i2)
    call cut(num_places, p1, p2)
    call stream_declare_field(simulation, 'plane', shape=[nx, ny], offset=[x1 - 1, 0])
    call stream_declare_field(simulation, 'volume', shape=[ni, nj, nk], offset=[i1 - 1, 0, 0])
    call stream_declare_field(simulation, 'signal', shape=[num_places], offset=[p1 - 1])
    do step = 0, num_steps - 1
        if (command_argument_count() == 3) call be_troubled()
        places = [(offset + slope * i / num_places + real(step, real64) / num_steps, i = 0, num_places - 1)]
        plane = reshape([(i + places(1) + 1000.0d0 * step, i = 0, nx * ny - 1)], [nx, ny])
        volume = reshape([(i - places(1) - 1000.0d0 * step, i = 0, ni * nj * nk - 1)], [ni, nj, nk])
        call stream_put(simulation, 'plane', plane(x1:x2, :))
        call stream_put(simulation, 'volume', volume(i1:i2, :, :))
        call stream_put(simulation, 'signal', places(p1:p2))
        call stream_send(simulation, step, ierr)
        if (ierr < 0) then
            print '(a)', stream_error(simulation)
            call mpi_abort(mpi_comm_world, 1, error)
        end if
        call mpi_allreduce(ierr, agreed, 1, mpi_integer, mpi_max, mpi_comm_world, error)
        if (agreed == STREAM_STOP) exit
    end do
    call stream_finish(simulation)
    call mpi_finalize(error)

contains

    ! The ranks cut the first axis, which is the last one of the server; rank 0 has the longer part.
    subroutine cut(length, first, last)
        integer, intent(in) :: length
        integer, intent(out) :: first, last

        first = merge(1, (length + 1) / 2 + 1, rank == 0)
        last = merge((length + 1) / 2, length, rank == 0)
    end subroutine cut

    subroutine be_troubled()
        interface
            integer(c_int) function c_raise(signal) bind(c, name='raise')
                use, intrinsic :: iso_c_binding, only: c_int
                integer(c_int), value :: signal
            end function c_raise

            integer(c_int) function c_usleep(microseconds) bind(c, name='usleep')
                use, intrinsic :: iso_c_binding, only: c_int
                integer(c_int), value :: microseconds
            end function c_usleep
        end interface
        integer, parameter :: sigkill = 9
        character(len=8) :: trouble, word
        character(len=1024) :: file
        integer :: victim, unused
        logical :: may_go

        call get_command_argument(1, trouble)
        call get_command_argument(2, word)
        call get_command_argument(3, file)
        read (word, *) victim
        if (step /= step_of_trouble .or. .not. (victim == -1 .or. victim == stream_id(simulation))) return
        if (trouble == 'kill' .and. rank == 1 .and. stream_attempt(simulation) == 0) unused = c_raise(sigkill)
        if (trouble /= 'wait' .or. rank /= 0) return
        print '(a)', 'waiting'
        flush (output_unit)
        may_go = .false.
        do while (.not. may_go)
            unused = c_usleep(10000)
            inquire (file=trim(file), exist=may_go)
        end do
    end subroutine be_troubled
end program decomposed
