! All that one may put: parts of derived types, parts of complex numbers, expressions, vector subscripts, assumed shapes,
! arrays of size 0.
program arrays
    use, intrinsic :: iso_fortran_env, only: int64, real64
    use stream_client
    implicit none

    type :: particle
        real(real64) :: x, y
        integer(int64) :: id
    end type particle

    type(stream_simulation) :: s
    type(particle) :: particles(4)
    complex(real64) :: z(4)
    real(real64) :: line(4), plane(4, 3)
    integer(int64) :: num, first, every
    integer :: i, j

    particles = [(particle(x=i, y=10*i, id=100*i), i=1, 4)]
    z = [(cmplx(i, -i, real64), i=1, 4)]
    line = [(i, i=1, 4)]
    plane = reshape([((10*i + j, i=1, 4), j=1, 3)], [4, 3])

    call stream_connect(s, 0, 1)
    call stream_time_steps(s, num, first, every)
    if (num /= 8 .or. first /= 5 .or. every /= 2) error stop 'time steps'
    call put(particles%x, 5)
    call put(particles(:)%y, 7)
    call put(z%im, 9)
    call put(2*line, 11)
    call put(line([4, 3, 2, 1]), 13)
    call put(plane(:, 2), 15)
    call stream_put(s, 'line                ', plane(4:1:-1, 3))
    call stream_put(s, 'ids', particles%id)
    call stream_send(s, 17_int64)
    call stream_put(s, 'line', pack(line, line > 0))
    call stream_put(s, 'mean', sum(line) / 4)
    call stream_send(s, 19)
    call stream_finish(s)

contains

    subroutine put(values, step)
        real(real64), intent(in) :: values(:)
        integer, intent(in) :: step

        call stream_put(s, 'line', values)
        call stream_send(s, step)
    end subroutine put
end program arrays
