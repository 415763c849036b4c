! A simulation with a mesh of its own, of as many nodes as a parameter says, perhaps none: a line of edges between them.
program mesh
    use stream_client
    implicit none
    integer, parameter :: most = 8
    type(stream_simulation) :: s
    real(8) :: slope, size_of_it, nodes(2, most), u(most)
    integer(4) :: edges(2, most)
    integer :: i, n, step

    call stream_connect(s, 0, 1)
    call stream_parameter(s, 'slope', slope)
    call stream_parameter(s, 'size', size_of_it)
    n = int(size_of_it)
    do i = 1, n
        nodes(:, i) = [slope * i, real(i, 8)]
        edges(:, i) = [i - 1, i]
    end do
    call stream_put(s, 'nodes', nodes(:, 1:n))
    call stream_put(s, 'edges', edges(:, 1:max(0, n - 1)))
    do step = 0, 9
        do i = 1, n
            u(i) = slope * i + step
        end do
        call stream_put(s, 'u', u(1:n))
        call stream_send(s, step)
    end do
    call stream_finish(s)
end program mesh
