! A code that looks at every result.
program heeded
    use stream_client
    implicit none

    type(stream_simulation) :: s
    real :: u(4)
    integer :: ierr

    u = 1
    call stream_put(s, 'u', u, ierr)
    print '(i0, 2a)', ierr, ' ', stream_error(s)
    call stream_connect(s, 0, 1, ierr)
    print '(i0, 2a)', ierr, ' ', stream_error(s)
    call stream_connect(s, 0, 1, ierr)
    print '(i0, 2a)', ierr, ' ', stream_error(s)
    call stream_declare_field(s, 'u', shape=[4], offset=[0, 0], ierr=ierr)
    print '(i0, 2a)', ierr, ' ', stream_error(s)
    call stream_put(s, 'u', u(:3), ierr)
    print '(i0, 2a)', ierr, ' ', stream_error(s)
    call stream_put(s, 'u', u, ierr)
    print '(i0)', ierr
    call stream_send(s, 0, ierr)
    print '(i0)', ierr
    call stream_finish(s, ierr)
    print '(i0)', ierr
    call stream_connect(s, 0, 1, ierr, parameter_names=['a', 'b'], parameter_values=[1d0])
    print '(i0, 2a)', ierr, ' ', stream_error(s)
    call stream_connect(s, 0, 1, ierr, connection='none')
    print '(i0)', ierr
    call stream_finish(s, ierr)
    print '(i0)', ierr
end program heeded
