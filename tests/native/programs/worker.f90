! Computes one simulation after another on all ranks of MPI, of 20 steps with 8 values in blocks.
program worker
    use mpi
    use stream_client
    implicit none
    type(stream_simulation) :: s
    real(8) :: offset, signal(8)
    integer :: rank, num_ranks, step, ierr, code, width

    call MPI_Init(ierr)
    call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierr)
    call MPI_Comm_size(MPI_COMM_WORLD, num_ranks, ierr)
    width = 8 / num_ranks
    call stream_connect(s, rank, num_ranks, ierr=code)
    do while (code == STREAM_OK)
        call stream_parameter(s, 'offset', offset)
        call stream_declare_field(s, 'signal', shape=[8], offset=[width * rank])
        signal = offset
        if (rank == 0) print '(i0)', stream_id(s)
        do step = 0, 19
            call stream_put(s, 'signal', signal(1:width))
            call stream_send(s, step)
        end do
        call stream_next(s, ierr=code)
    end do
    if (code < 0) print '(a)', stream_error(s)
    call stream_finish(s)
    call MPI_Finalize(ierr)
    if (code < 0) stop 1
end program worker
