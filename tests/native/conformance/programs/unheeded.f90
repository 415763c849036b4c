! A code that looks at no error: it goes on, whatever happens.
program unheeded
    use stream_client
    implicit none

    type(stream_simulation) :: s
    real :: viscosity, u(4)
    integer :: step

    viscosity = 0.125
    u = 1
    call stream_connect(s, 0, 1)
    call stream_parameter(s, 'viscosity', viscosity)
    do step = 0, 4
        call stream_put(s, 'u', u)
        if (step >= 2) call stream_put(s, 'v', u)
        call stream_send(s, step)
    end do
    call stream_finish(s)
    call stream_finish(s)
    print '(a, f0.3)', 'viscosity ', viscosity
end program unheeded
