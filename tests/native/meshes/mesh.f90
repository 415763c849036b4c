! A simulation with a mesh of its own, of as many nodes as a parameter says, perhaps none: a line of edges between them.
! The ranks that MPICH's mpirun starts share nodes and edges out.
program mesh
    use stream_client
    implicit none
    integer, parameter :: most = 8
    type(stream_simulation) :: s
    real(8) :: slope, size_of_it, nodes(2, most), u(most)
    integer(4) :: edges(2, most)
    integer :: i, n, step, rank, num_ranks, first, last

    rank = variable('PMI_RANK', 0)
    num_ranks = variable('PMI_SIZE', 1)
    call stream_connect(s, rank, num_ranks)
    call stream_parameter(s, 'slope', slope)
    call stream_parameter(s, 'size', size_of_it)
    n = int(size_of_it)
    do i = 1, n
        nodes(:, i) = [slope * i, real(i, 8)]
        edges(:, i) = [i - 1, i]
    end do
    call share(max(0, n - 1))
    call stream_put(s, 'edges', edges(:, first:last))
    call share(n)
    call stream_put(s, 'nodes', nodes(:, first:last))
    do step = 0, 9
        do i = 1, n
            u(i) = slope * i + step
        end do
        call stream_put(s, 'u', u(first:last))
        call stream_send(s, step)
    end do
    call stream_finish(s)

contains

    subroutine share(num)
        integer, intent(in) :: num

        first = rank * num / num_ranks + 1
        last = (rank + 1) * num / num_ranks
    end subroutine share

    integer function variable(name, otherwise)
        character(*), intent(in) :: name
        integer, intent(in) :: otherwise
        character(8) :: text
        integer :: status

        variable = otherwise
        call get_environment_variable(name, text, status=status)
        if (status == 0) read (text, *) variable
    end function variable
end program mesh
