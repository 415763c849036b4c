! One simulation of the study. `STREAM_CONNECTION=none build/simulation` runs it alone.
program main
    use stream_client
    implicit none
    integer, parameter :: num_steps = 50, num_nodes = 64
    type(stream_simulation) :: simulation
    real(8) :: u(num_nodes), amplitude, rate
    integer :: step

    ! They stay as they are without a study.
    amplitude = 1.0d0
    rate = 1.0d0
    ! Rank 0 of 1: a parallel code says here which of its ranks this is.
    call stream_connect(simulation, 0, 1)
    call stream_parameter(simulation, 'amplitude', amplitude)
    call stream_parameter(simulation, 'rate', rate)
    do step = 0, num_steps - 1
        call solve(u, step)
        call stream_put(simulation, 'u', u)
        call stream_send(simulation, step)
    end do
    call stream_finish(simulation)

contains

    ! The field after a time step. This is the place of your solver.
    subroutine solve(u, step)
        real(8), intent(out) :: u(:)
        integer, intent(in) :: step
        integer :: i

        do i = 1, size(u)
            u(i) = amplitude * exp(-rate * step / num_steps) * sin(6.283185307179586d0 * (i - 1) / (size(u) - 1))
        end do
    end subroutine solve
end program main
