! Sends numbers that are too small for the study, also every second one of a larger array.
program vanishing
    use stream_client
    implicit none
    type(stream_simulation) :: s
    real(8) :: u(4), wide(8)

    u = 0
    u(3) = 1d-60
    wide = 1
    wide(1:7:2) = 1d-60
    call stream_connect(s, 0, 1)
    call stream_put(s, 'u', u)
    call stream_send(s, 0)
    call stream_put(s, 'u', wide(1:7:2))
    call stream_send(s, 1)
    call stream_finish(s)
end program vanishing
