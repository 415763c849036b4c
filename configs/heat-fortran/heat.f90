! The heat equation on a square plate, in parallel: u_t = D (u_xx + u_yy) on [0, 10] x [0, 10] with D = 1.
!
!     mpirun -n 3 ./heat NODES STEPS INITIAL LEFT RIGHT BOTTOM TOP
!
! The plate begins at one temperature, and each of its sides is kept at one. Space: NODES x NODES interior nodes, u(x, y),
! 5-point stencil. Time: backward Euler in steps of 0.01, each solved by conjugate gradients. Every rank has a strip of
! the plate, and around it a frame one node wide for what its neighbours and the sides hold.
program heat
    use, intrinsic :: iso_fortran_env, only: real64, error_unit
    use mpi
    use stream_client
    implicit none

    integer, parameter :: dp = real64
    real(dp), parameter :: side_length = 10, time_step = 0.01_dp, tolerance = 1e-12_dp
    integer :: rank, num_ranks, below, above, nodes, num_steps, first, n1, n2, step, stop_code, ierr
    real(dp) :: initial, left, right, bottom, top, ratio, average
    real(dp), allocatable :: u(:,:), residual(:,:), direction(:,:), image(:,:)
    type(stream_simulation) :: simulation

    call MPI_Init(ierr)
    call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierr)
    call MPI_Comm_size(MPI_COMM_WORLD, num_ranks, ierr)
    call read_arguments()
    call cut_plate()

    call stream_connect(simulation, rank, num_ranks, ierr)
    call check(ierr)
    call stream_declare_field(simulation, 'temperature', shape=[nodes, nodes], offset=[0, first], ierr=ierr)
    call check(ierr)

    do step = 0, num_steps - 1
        call advance()
        call stream_put(simulation, 'temperature', u(1:n1, 1:n2), ierr)
        call check(ierr)
        call stream_send(simulation, step, stop_code)
        call check(stop_code)
        call MPI_Allreduce(MPI_IN_PLACE, stop_code, 1, MPI_INTEGER, MPI_MAX, MPI_COMM_WORLD, ierr)
        if (stop_code == STREAM_STOP) exit
    end do
    call stream_finish(simulation, ierr)
    call check(ierr)

    average = total(u(1:n1, 1:n2)) / nodes**2
    if (rank == 0) print '(a, f0.9, a)', 'mean temperature ', average, ' K'
    call MPI_Finalize(ierr)

contains

    subroutine read_arguments()
        real(dp) :: values(7)
        character(len=64) :: word
        integer :: i

        if (command_argument_count() /= 7) then
            write (error_unit, '(a)') 'usage: heat NODES STEPS INITIAL LEFT RIGHT BOTTOM TOP'
            call MPI_Abort(MPI_COMM_WORLD, 2, ierr)
        end if
        do i = 1, 7
            call get_command_argument(i, word)
            read (word, *) values(i)
        end do
        nodes = nint(values(1))
        num_steps = nint(values(2))
        initial = values(3)
        left = values(4)
        right = values(5)
        bottom = values(6)
        top = values(7)
        ratio = time_step / (side_length / (nodes + 1))**2
    end subroutine

    ! The frame of a strip at the edge of the plate holds what its side is kept at.
    subroutine cut_plate()
        below = merge(rank - 1, MPI_PROC_NULL, rank > 0)
        above = merge(rank + 1, MPI_PROC_NULL, rank < num_ranks - 1)
        first = nodes * rank / num_ranks
        n1 = nodes
        n2 = nodes * (rank + 1) / num_ranks - first
        allocate (u(0:n1+1, 0:n2+1), residual(n1, n2), direction(0:n1+1, 0:n2+1), image(n1, n2))
        u(1:n1, 0) = bottom
        u(1:n1, n2+1) = top
        u(0, 1:n2) = left
        u(n1+1, 1:n2) = right
        u(1:n1, 1:n2) = initial
        direction = 0
    end subroutine

    ! One time step: conjugate gradients from the old temperatures. The sides enter with the first residual, through the
    ! frame of u; the frame of a direction is 0 there.
    subroutine advance()
        real(dp) :: square, last, small, length

        call apply(u, image)
        residual = u(1:n1, 1:n2) - image
        direction(1:n1, 1:n2) = residual
        square = total(residual**2)
        small = tolerance**2 * total(u(1:n1, 1:n2)**2)
        do while (square > small)
            call apply(direction, image)
            length = square / total(direction(1:n1, 1:n2) * image)
            u(1:n1, 1:n2) = u(1:n1, 1:n2) + length * direction(1:n1, 1:n2)
            residual = residual - length * image
            last = square
            square = total(residual**2)
            direction(1:n1, 1:n2) = residual + square / last * direction(1:n1, 1:n2)
        end do
    end subroutine

    ! applied = (1 - dt D Laplace) v
    subroutine apply(v, applied)
        real(dp), intent(inout) :: v(0:, 0:)
        real(dp), intent(out) :: applied(:,:)

        call MPI_Sendrecv(v(1:n1, 1), n1, MPI_DOUBLE_PRECISION, below, 0, v(1:n1, n2+1), n1, MPI_DOUBLE_PRECISION, &
                          above, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE, ierr)
        call MPI_Sendrecv(v(1:n1, n2), n1, MPI_DOUBLE_PRECISION, above, 0, v(1:n1, 0), n1, MPI_DOUBLE_PRECISION, &
                          below, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE, ierr)
        applied = v(1:n1, 1:n2) - ratio * (v(0:n1-1, 1:n2) + v(2:n1+1, 1:n2) + v(1:n1, 0:n2-1) + v(1:n1, 2:n2+1) &
                                           - 4 * v(1:n1, 1:n2))
    end subroutine

    ! The sum over all nodes of the plate.
    function total(v)
        real(dp), intent(in) :: v(:,:)
        real(dp) :: total

        total = sum(v)
        call MPI_Allreduce(MPI_IN_PLACE, total, 1, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, ierr)
    end function

    ! Without the study this attempt is of no use, and it starts another one.
    subroutine check(code)
        integer, intent(in) :: code

        if (code >= 0) return
        write (error_unit, '(a)') stream_error(simulation)
        call MPI_Abort(MPI_COMM_WORLD, 1, ierr)
    end subroutine

end program heat
