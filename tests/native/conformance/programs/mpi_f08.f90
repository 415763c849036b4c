! Blocks along x, which is not how the server stores them, with ghost layers; and even shares along the last index.
program with_mpi_f08
    use mpi_f08
    use stream_client
    implicit none

    integer, parameter :: n1 = 3, ny = 2, nz = 2
    type(stream_simulation) :: s
    double precision :: u(0:n1 + 1, ny, nz)
    real :: v(4, 1)
    integer :: rank, num_ranks, step, i, j, k

    call MPI_Init()
    call MPI_Comm_rank(MPI_COMM_WORLD, rank)
    call MPI_Comm_size(MPI_COMM_WORLD, num_ranks)
    call stream_connect(s, rank, num_ranks)
    call stream_declare_field(s, 'u', shape=[n1*num_ranks, ny, nz], offset=[rank*n1, 0, 0])
    u = -1
    do step = 0, 2
        do concurrent(i=1:n1, j=1:ny, k=1:nz)
            u(i, j, k) = 1000*step + 100*(rank*n1 + i) + 10*j + k
        end do
        v = real(10*step + rank)
        call stream_put(s, 'u', u(1:n1, :, :))
        call stream_put(s, 'v', v)
        call stream_send(s, step)
    end do
    call stream_finish(s)
    call MPI_Finalize()
    print '(a)', 'done'
end program with_mpi_f08
