! Stream Server's client for Fortran: sends the time steps of a simulation to the study that trains on them.
!
!     use stream_client
!     type(stream_simulation) :: s
!
!     call stream_connect(s, rank, num_ranks)
!     call stream_declare_field(s, 'temperature', shape=[nx, ny], offset=[first_x - 1, first_y - 1])
!     do step = 0, num_steps - 1
!         ...
!         call stream_put(s, 'temperature', u(1:n1, 1:n2))
!         call stream_send(s, step)
!     end do
!     call stream_finish(s)
!
! Compile this file with your own compiler and link libstream_client. There is no MPI in it: it works beside
! mpi_f08, mpi and mpif.h, and in serial codes (rank 0 of 1).
!
! Array order. In Fortran the first index runs fastest, in study.json and on the server the last. The same bytes
! have the reversed shape there, and nothing is transposed:
!
!     here       u(nx, ny, nz)         u(i, j, k)               offset = [ox, oy, oz]
!     server     "u": [nz, ny, nx]     u[k - 1, j - 1, i - 1]   offset   (oz, oy, ox)
!
! Sizes and offsets are given in Fortran's order, and offsets count from 0: the block that begins with global
! element (1, 1, 1) has the offset [0, 0, 0]. Two ranks in x and two in y, each with a block of n1 by n2:
!
!     j, y  ^
!           |  rank 2           |  rank 3
!           |  offset [0, n2]   |  offset [n1, n2]
!           +-------------------+------------------
!           |  rank 0           |  rank 1
!           |  offset [0, 0]    |  offset [n1, 0]
!           +-------------------+------------------> i, x
!
! Without offset the blocks lie in rank order along the last index (the server's first), cut as evenly as it goes,
! the first ranks taking one more. A field that every rank puts whole, or a serial code's, needs no declaration. On
! a rank that has no part of a field, put an array of size 0.
!
! Errors. Each call has an optional last argument `ierr`: STREAM_OK, STREAM_STOP (the study has ended and wants
! nothing more, or no simulation is left) or one of STREAM_ERROR_..., all of them negative; stream_error(s) tells
! what happened. Without `ierr` an error is printed, once, and the program goes on without the study: all later
! calls do nothing, and stream_finish leaves the simulation unfinished, so that the study tries it again. Nothing
! ever stops the program.
!
! With STREAM_CONNECTION=none in the environment every call succeeds and does nothing: the program runs alone.
!
! A stream_simulation is a handle. Do not copy it: both would be the same simulation. It belongs to one thread at a
! time. It is not finished when it goes out of scope; a program that ends without stream_finish leaves the
! simulation unfinished, unless all its time steps have arrived.
module stream_client
    use, intrinsic :: iso_c_binding
    use, intrinsic :: iso_fortran_env, only: error_unit, int32, int64, real32, real64
    implicit none
    private

    public :: stream_simulation
    public :: stream_connect, stream_parameter, stream_time_steps, stream_declare_field
    public :: stream_put, stream_send, stream_next, stream_invalidate, stream_finish, stream_abandon
    public :: stream_id, stream_attempt, stream_error, stream_stop_reason

    integer, parameter, public :: STREAM_OK = 0
    integer, parameter, public :: STREAM_STOP = 1
    integer, parameter, public :: STREAM_ERROR_ARGUMENT = -1
    integer, parameter, public :: STREAM_ERROR_CONNECTION_FILE = -2
    integer, parameter, public :: STREAM_ERROR_REFUSED = -3
    integer, parameter, public :: STREAM_ERROR_STEPS_LOST = -4
    integer, parameter, public :: STREAM_ERROR_UNREACHABLE = -5
    integer, parameter, public :: STREAM_ERROR_MEMORY = -6
    integer, parameter, public :: STREAM_ERROR_SYSTEM = -7

    integer, parameter, public :: STREAM_MAX_DIMENSIONS = 8

    integer(c_int), parameter :: AS_PUT = 0, OF_INT32 = 4, OF_INT64 = 5, OF_REAL32 = 11, OF_REAL64 = 12

    ! Where the elements of an array without elements lie.
    integer(c_int64_t), target, save :: nothing = 0

    ! One run of the solver, as the study sees it. `failure` is the error of a call without ierr.
    type :: stream_simulation
        private
        type(c_ptr) :: handle = c_null_ptr
        integer :: rank = 0
        integer :: failure = STREAM_OK
        character(len=:), allocatable :: message
    end type stream_simulation

    ! Copy this rank's block of a field into the next time step. Array sections are read where they lie.
    !     call stream_put(s, name, values [, ierr])
    interface stream_put
        module procedure put_real32_0, put_real32_1, put_real32_2, put_real32_3, put_real32_4
        module procedure put_real64_0, put_real64_1, put_real64_2, put_real64_3, put_real64_4
        module procedure put_int32_0, put_int32_1, put_int32_2, put_int32_3, put_int32_4
        module procedure put_int64_0, put_int64_1, put_int64_2, put_int64_3, put_int64_4
    end interface stream_put

    ! Send what was put as one sample. Blocks while the server has no room for more.
    !     call stream_send(s, time_step [, ierr])
    ! STREAM_STOP: the study has ended, from then on for ever. Parallel codes learn this at different steps on different
    ! ranks, and must agree before they leave their loop.
    interface stream_send
        module procedure send_int32, send_int64
    end interface stream_send

    ! Say, before the first stream_send, which block of a field this rank sends.
    !     call stream_declare_field(s, name, shape [, offset] [, count] [, ierr])
    ! shape: of the whole field. offset: where the block begins, from 0. count: the block's own shape, needed only for
    ! an optional field that is not in the first time step; otherwise stream_put knows it. All in Fortran's order.
    interface stream_declare_field
        module procedure declare_int32, declare_int64
    end interface stream_declare_field

    ! One parameter of this simulation. `value` stays as it is if the program runs alone.
    !     call stream_parameter(s, name, value [, ierr])
    interface stream_parameter
        module procedure parameter_real32, parameter_real64
    end interface stream_parameter

    type, bind(c) :: connect_options
        type(c_ptr) :: connection = c_null_ptr
        integer(c_int64_t) :: simulation_id = -1
        integer(c_int) :: num_parameters = 0
        type(c_ptr) :: parameter_names = c_null_ptr
        type(c_ptr) :: parameter_values = c_null_ptr
        real(c_double) :: timeout_s = 60
    end type connect_options

    interface
        integer(c_int) function c_connect(simulation, rank, num_ranks, options) bind(c, name='stream_connect_with')
            import :: c_int, c_ptr, connect_options
            type(c_ptr), intent(inout) :: simulation
            integer(c_int), value :: rank, num_ranks
            type(connect_options), intent(in) :: options
        end function c_connect

        integer(c_int64_t) function c_id(simulation) bind(c, name='stream_id')
            import :: c_int64_t, c_ptr
            type(c_ptr), value :: simulation
        end function c_id

        integer(c_int64_t) function c_attempt(simulation) bind(c, name='stream_attempt')
            import :: c_int64_t, c_ptr
            type(c_ptr), value :: simulation
        end function c_attempt

        integer(c_int) function c_parameter(simulation, name, value) bind(c, name='stream_parameter')
            import :: c_char, c_double, c_int, c_ptr
            type(c_ptr), value :: simulation
            character(kind=c_char), intent(in) :: name(*)
            real(c_double), intent(inout) :: value
        end function c_parameter

        integer(c_int) function c_time_steps(simulation, num, first, every) bind(c, name='stream_time_steps')
            import :: c_int, c_int64_t, c_ptr
            type(c_ptr), value :: simulation
            integer(c_int64_t), intent(inout) :: num, first, every
        end function c_time_steps

        integer(c_int) function c_declare_field(simulation, name, dtype, ndim, shape, offset, count) &
            bind(c, name='stream_declare_field')
            import :: c_char, c_int, c_int64_t, c_ptr
            type(c_ptr), value :: simulation
            character(kind=c_char), intent(in) :: name(*)
            integer(c_int), value :: dtype, ndim
            integer(c_int64_t), intent(in) :: shape(*)
            type(c_ptr), value :: offset, count
        end function c_declare_field

        integer(c_int) function c_put_array(simulation, name, dtype, ndim, count, strides, values) &
            bind(c, name='stream_put_array')
            import :: c_char, c_int, c_int64_t, c_ptr
            type(c_ptr), value :: simulation
            character(kind=c_char), intent(in) :: name(*)
            integer(c_int), value :: dtype, ndim
            integer(c_int64_t), intent(in) :: count(*)
            type(c_ptr), value :: strides, values
        end function c_put_array

        integer(c_int) function c_send(simulation, time_step) bind(c, name='stream_send')
            import :: c_int, c_int64_t, c_ptr
            type(c_ptr), value :: simulation
            integer(c_int64_t), value :: time_step
        end function c_send

        integer(c_int) function c_next(simulation) bind(c, name='stream_next')
            import :: c_int, c_ptr
            type(c_ptr), value :: simulation
        end function c_next

        integer(c_int) function c_invalidate(simulation, reason) bind(c, name='stream_invalidate')
            import :: c_char, c_int, c_ptr
            type(c_ptr), value :: simulation
            character(kind=c_char), intent(in) :: reason(*)
        end function c_invalidate

        integer(c_int) function c_finish(simulation) bind(c, name='stream_finish')
            import :: c_int, c_ptr
            type(c_ptr), intent(inout) :: simulation
        end function c_finish

        integer(c_int) function c_abandon(simulation) bind(c, name='stream_abandon')
            import :: c_int, c_ptr
            type(c_ptr), intent(inout) :: simulation
        end function c_abandon

        type(c_ptr) function c_stop_reason(simulation) bind(c, name='stream_stop_reason')
            import :: c_ptr
            type(c_ptr), value :: simulation
        end function c_stop_reason

        type(c_ptr) function c_error(simulation) bind(c, name='stream_error')
            import :: c_ptr
            type(c_ptr), value :: simulation
        end function c_error

        integer(c_size_t) function c_length(text) bind(c, name='strlen')
            import :: c_ptr, c_size_t
            type(c_ptr), value :: text
        end function c_length
    end interface

contains

    ! Take part in a study as rank `rank` of the `num_ranks` of one simulation. Each rank does so for itself.
    !
    ! connection: path of the connection file, or 'none'; otherwise STREAM_CONNECTION names it, as for every simulation
    ! that a study starts. simulation_id, parameter_names and parameter_values: which simulation this is and what it
    ! simulates, when it attaches by itself. timeout_s: how long the server may say nothing while it is waited for.
    ! STREAM_STOP: the study has ended already; every further call gives STREAM_STOP.
    subroutine stream_connect(s, rank, num_ranks, ierr, connection, simulation_id, parameter_names, parameter_values, &
                              timeout_s)
        type(stream_simulation), intent(inout) :: s
        integer, intent(in) :: rank, num_ranks
        integer, intent(out), optional :: ierr
        character(len=*), intent(in), optional :: connection
        integer, intent(in), optional :: simulation_id
        character(len=*), intent(in), optional :: parameter_names(:)
        real(real64), intent(in), optional :: parameter_values(:)
        real, intent(in), optional :: timeout_s
        type(connect_options) :: options
        character(kind=c_char), allocatable, target :: path(:), names(:, :)
        type(c_ptr), allocatable, target :: name_list(:)
        real(c_double), allocatable, target :: value_list(:)
        integer(c_int) :: code
        integer :: i

        if (c_associated(s%handle)) then
            s%message = 'this simulation is connected already: finish or abandon it first'
            if (present(ierr)) then
                ierr = STREAM_ERROR_ARGUMENT
            else
                call print_error(s, 'stream_connect', 'The simulation that is connected goes on.')
            end if
            return
        end if
        s%rank = rank
        s%failure = STREAM_OK
        if (present(connection)) then
            allocate (path, source=letters(connection, len_trim(connection) + 1))
            options%connection = c_loc(path)
        end if
        if (present(simulation_id)) options%simulation_id = simulation_id
        if (present(timeout_s)) options%timeout_s = timeout_s
        if (present(parameter_names) .neqv. present(parameter_values)) then
            call mistake(s, 'stream_connect', 'parameter_names and parameter_values must be given together', ierr)
            return
        end if
        if (present(parameter_names)) then
            if (size(parameter_names) /= size(parameter_values)) then
                call mistake(s, 'stream_connect', 'there must be as many parameter_values as parameter_names', ierr)
                return
            end if
            allocate (names(len(parameter_names) + 1, size(parameter_names)), name_list(size(parameter_names)))
            do i = 1, size(parameter_names)
                names(:, i) = letters(parameter_names(i), size(names, 1))
                name_list(i) = c_loc(names(1, i))
            end do
            allocate (value_list, source=parameter_values)
            options%num_parameters = size(parameter_names, kind=c_int)
            if (size(parameter_names) > 0) then
                options%parameter_names = c_loc(name_list)
                options%parameter_values = c_loc(value_list)
            end if
        end if
        code = c_connect(s%handle, int(rank, c_int), int(num_ranks, c_int), options)
        call conclude(s, 'stream_connect', code, ierr)
    end subroutine stream_connect

    ! The study's number of this simulation, from 0.
    integer(int64) function stream_id(s)
        type(stream_simulation), intent(in) :: s

        stream_id = c_id(s%handle)
    end function stream_id

    ! How often this simulation was started before.
    integer(int64) function stream_attempt(s)
        type(stream_simulation), intent(in) :: s

        stream_attempt = c_attempt(s%handle)
    end function stream_attempt

    ! The labels of the study's time steps: first, first + every, ... `num` of them, -1 if that is not known ahead.
    subroutine stream_time_steps(s, num, first, every, ierr)
        type(stream_simulation), intent(inout) :: s
        integer(int64), intent(out) :: num, first, every
        integer, intent(out), optional :: ierr
        integer(c_int) :: code

        num = -1
        first = 0
        every = 1
        if (has_given_up(s, ierr)) return
        code = c_time_steps(s%handle, num, first, every)
        call conclude(s, 'stream_time_steps', code, ierr)
    end subroutine stream_time_steps

    ! Finish this simulation and become the next one, for a worker that stays. STREAM_STOP: none is left.
    subroutine stream_next(s, ierr)
        type(stream_simulation), intent(inout) :: s
        integer, intent(out), optional :: ierr
        integer(c_int) :: code

        if (has_given_up(s, ierr)) return
        code = c_next(s%handle)
        call conclude(s, 'stream_next', code, ierr)
    end subroutine stream_next

    ! Withdraw what was sent, because the run is not worth learning from; it is not tried again. To be called before the
    ! last time step is sent; once all have arrived, it is refused.
    subroutine stream_invalidate(s, reason, ierr)
        type(stream_simulation), intent(inout) :: s
        character(len=*), intent(in) :: reason
        integer, intent(out), optional :: ierr
        integer(c_int) :: code

        if (has_given_up(s, ierr)) return
        code = c_invalidate(s%handle, trim(reason)//c_null_char)
        call conclude(s, 'stream_invalidate', code, ierr)
    end subroutine stream_invalidate

    ! Wait until all that was sent has arrived, and leave.
    subroutine stream_finish(s, ierr)
        type(stream_simulation), intent(inout) :: s
        integer, intent(out), optional :: ierr
        integer(c_int) :: code

        if (has_given_up(s, ierr)) then
            call stream_abandon(s)
        else
            code = c_finish(s%handle)
            call conclude(s, 'stream_finish', code, ierr)
        end if
    end subroutine stream_finish

    ! Leave without finishing, as after an error of the solver: the study starts a new attempt, unless all its time steps
    ! arrive.
    subroutine stream_abandon(s, ierr)
        type(stream_simulation), intent(inout) :: s
        integer, intent(out), optional :: ierr
        integer(c_int) :: code

        code = c_abandon(s%handle)
        if (has_given_up(s, ierr)) return
        call conclude(s, 'stream_abandon', code, ierr)
    end subroutine stream_abandon

    ! What was wrong at the last error, or ''.
    function stream_error(s) result(text)
        type(stream_simulation), intent(in) :: s
        character(len=:), allocatable :: text

        text = ''
        if (allocated(s%message)) text = s%message
    end function stream_error

    ! Why the study has ended, as far as the server told, or ''.
    function stream_stop_reason(s) result(text)
        type(stream_simulation), intent(in) :: s
        character(len=:), allocatable :: text

        text = text_at(c_stop_reason(s%handle))
    end function stream_stop_reason

    subroutine parameter_real64(s, name, value, ierr)
        type(stream_simulation), intent(inout) :: s
        character(len=*), intent(in) :: name
        real(real64), intent(inout) :: value
        integer, intent(out), optional :: ierr

        if (has_given_up(s, ierr)) return
        call conclude(s, 'stream_parameter', c_parameter(s%handle, trim(name)//c_null_char, value), ierr)
    end subroutine parameter_real64

    subroutine parameter_real32(s, name, value, ierr)
        type(stream_simulation), intent(inout) :: s
        character(len=*), intent(in) :: name
        real(real32), intent(inout) :: value
        integer, intent(out), optional :: ierr
        real(real64) :: precise

        precise = real(value, real64)
        call parameter_real64(s, name, precise, ierr)
        value = real(precise, real32)
    end subroutine parameter_real32

    subroutine declare_int64(s, name, shape, offset, count, ierr)
        type(stream_simulation), intent(inout) :: s
        character(len=*), intent(in) :: name
        integer(int64), intent(in) :: shape(:)
        integer(int64), intent(in), optional :: offset(:), count(:)
        integer, intent(out), optional :: ierr
        integer(c_int64_t), allocatable, target :: c_offset(:), c_count(:)
        type(c_ptr) :: offset_at, count_at

        if (has_given_up(s, ierr)) return
        offset_at = c_null_ptr
        count_at = c_null_ptr
        if (present(offset)) then
            if (size(offset) /= size(shape)) then
                call mistake(s, 'stream_declare_field', "offset and shape of field '"//trim(name)// &
                             "' must have as many numbers as the field has dimensions", ierr)
                return
            end if
            allocate (c_offset, source=in_c_order(offset))
            offset_at = c_loc(c_offset)
        end if
        if (present(count)) then
            if (size(count) /= size(shape)) then
                call mistake(s, 'stream_declare_field', "count and shape of field '"//trim(name)// &
                             "' must have as many numbers as the field has dimensions", ierr)
                return
            end if
            allocate (c_count, source=in_c_order(count))
            count_at = c_loc(c_count)
        end if
        call conclude(s, 'stream_declare_field', &
                      c_declare_field(s%handle, trim(name)//c_null_char, AS_PUT, size(shape, kind=c_int), &
                                      in_c_order(shape), offset_at, count_at), ierr)
    end subroutine declare_int64

    subroutine declare_int32(s, name, shape, offset, count, ierr)
        type(stream_simulation), intent(inout) :: s
        character(len=*), intent(in) :: name
        integer(int32), intent(in) :: shape(:)
        integer(int32), intent(in), optional :: offset(:), count(:)
        integer, intent(out), optional :: ierr
        integer(int64), allocatable :: long_offset(:), long_count(:)

        ! Unallocated, they are absent.
        if (present(offset)) allocate (long_offset, source=int(offset, int64))
        if (present(count)) allocate (long_count, source=int(count, int64))
        call declare_int64(s, name, int(shape, int64), long_offset, long_count, ierr)
    end subroutine declare_int32

    subroutine send_int64(s, time_step, ierr)
        type(stream_simulation), intent(inout) :: s
        integer(int64), intent(in) :: time_step
        integer, intent(out), optional :: ierr

        if (has_given_up(s, ierr)) return
        call conclude(s, 'stream_send', c_send(s%handle, time_step), ierr)
    end subroutine send_int64

    subroutine send_int32(s, time_step, ierr)
        type(stream_simulation), intent(inout) :: s
        integer(int32), intent(in) :: time_step
        integer, intent(out), optional :: ierr

        call send_int64(s, int(time_step, int64), ierr)
    end subroutine send_int32

    subroutine put_real32_0(s, name, values, ierr)
        type(stream_simulation), intent(inout) :: s
        character(len=*), intent(in) :: name
        real(real32), intent(in), target :: values
        integer, intent(out), optional :: ierr

        call put_block(s, name, OF_REAL32, [integer(int64) ::], [c_loc(values)], storage_size(values) / 8, ierr)
    end subroutine put_real32_0

    subroutine put_real32_1(s, name, values, ierr)
        type(stream_simulation), intent(inout) :: s
        character(len=*), intent(in) :: name
        real(real32), intent(in), target :: values(:)
        integer, intent(out), optional :: ierr
        integer(int64) :: n(1)
        type(c_ptr) :: corners(2)

        n = next_in_each(shape(values, int64))
        corners = c_loc(nothing)
        if (all(n > 0)) corners = [c_loc(values(1)), c_loc(values(n(1)))]
        call put_block(s, name, OF_REAL32, shape(values, int64), corners, storage_size(values) / 8, ierr)
    end subroutine put_real32_1

    subroutine put_real32_2(s, name, values, ierr)
        type(stream_simulation), intent(inout) :: s
        character(len=*), intent(in) :: name
        real(real32), intent(in), target :: values(:, :)
        integer, intent(out), optional :: ierr
        integer(int64) :: n(2)
        type(c_ptr) :: corners(3)

        n = next_in_each(shape(values, int64))
        corners = c_loc(nothing)
        if (all(n > 0)) corners = [c_loc(values(1, 1)), c_loc(values(n(1), 1)), c_loc(values(1, n(2)))]
        call put_block(s, name, OF_REAL32, shape(values, int64), corners, storage_size(values) / 8, ierr)
    end subroutine put_real32_2

    subroutine put_real32_3(s, name, values, ierr)
        type(stream_simulation), intent(inout) :: s
        character(len=*), intent(in) :: name
        real(real32), intent(in), target :: values(:, :, :)
        integer, intent(out), optional :: ierr
        integer(int64) :: n(3)
        type(c_ptr) :: corners(4)

        n = next_in_each(shape(values, int64))
        corners = c_loc(nothing)
        if (all(n > 0)) corners = [c_loc(values(1, 1, 1)), c_loc(values(n(1), 1, 1)), &
                                   c_loc(values(1, n(2), 1)), c_loc(values(1, 1, n(3)))]
        call put_block(s, name, OF_REAL32, shape(values, int64), corners, storage_size(values) / 8, ierr)
    end subroutine put_real32_3

    subroutine put_real32_4(s, name, values, ierr)
        type(stream_simulation), intent(inout) :: s
        character(len=*), intent(in) :: name
        real(real32), intent(in), target :: values(:, :, :, :)
        integer, intent(out), optional :: ierr
        integer(int64) :: n(4)
        type(c_ptr) :: corners(5)

        n = next_in_each(shape(values, int64))
        corners = c_loc(nothing)
        if (all(n > 0)) corners = [c_loc(values(1, 1, 1, 1)), c_loc(values(n(1), 1, 1, 1)), &
                                   c_loc(values(1, n(2), 1, 1)), c_loc(values(1, 1, n(3), 1)), &
                                   c_loc(values(1, 1, 1, n(4)))]
        call put_block(s, name, OF_REAL32, shape(values, int64), corners, storage_size(values) / 8, ierr)
    end subroutine put_real32_4

    subroutine put_real64_0(s, name, values, ierr)
        type(stream_simulation), intent(inout) :: s
        character(len=*), intent(in) :: name
        real(real64), intent(in), target :: values
        integer, intent(out), optional :: ierr

        call put_block(s, name, OF_REAL64, [integer(int64) ::], [c_loc(values)], storage_size(values) / 8, ierr)
    end subroutine put_real64_0

    subroutine put_real64_1(s, name, values, ierr)
        type(stream_simulation), intent(inout) :: s
        character(len=*), intent(in) :: name
        real(real64), intent(in), target :: values(:)
        integer, intent(out), optional :: ierr
        integer(int64) :: n(1)
        type(c_ptr) :: corners(2)

        n = next_in_each(shape(values, int64))
        corners = c_loc(nothing)
        if (all(n > 0)) corners = [c_loc(values(1)), c_loc(values(n(1)))]
        call put_block(s, name, OF_REAL64, shape(values, int64), corners, storage_size(values) / 8, ierr)
    end subroutine put_real64_1

    subroutine put_real64_2(s, name, values, ierr)
        type(stream_simulation), intent(inout) :: s
        character(len=*), intent(in) :: name
        real(real64), intent(in), target :: values(:, :)
        integer, intent(out), optional :: ierr
        integer(int64) :: n(2)
        type(c_ptr) :: corners(3)

        n = next_in_each(shape(values, int64))
        corners = c_loc(nothing)
        if (all(n > 0)) corners = [c_loc(values(1, 1)), c_loc(values(n(1), 1)), c_loc(values(1, n(2)))]
        call put_block(s, name, OF_REAL64, shape(values, int64), corners, storage_size(values) / 8, ierr)
    end subroutine put_real64_2

    subroutine put_real64_3(s, name, values, ierr)
        type(stream_simulation), intent(inout) :: s
        character(len=*), intent(in) :: name
        real(real64), intent(in), target :: values(:, :, :)
        integer, intent(out), optional :: ierr
        integer(int64) :: n(3)
        type(c_ptr) :: corners(4)

        n = next_in_each(shape(values, int64))
        corners = c_loc(nothing)
        if (all(n > 0)) corners = [c_loc(values(1, 1, 1)), c_loc(values(n(1), 1, 1)), &
                                   c_loc(values(1, n(2), 1)), c_loc(values(1, 1, n(3)))]
        call put_block(s, name, OF_REAL64, shape(values, int64), corners, storage_size(values) / 8, ierr)
    end subroutine put_real64_3

    subroutine put_real64_4(s, name, values, ierr)
        type(stream_simulation), intent(inout) :: s
        character(len=*), intent(in) :: name
        real(real64), intent(in), target :: values(:, :, :, :)
        integer, intent(out), optional :: ierr
        integer(int64) :: n(4)
        type(c_ptr) :: corners(5)

        n = next_in_each(shape(values, int64))
        corners = c_loc(nothing)
        if (all(n > 0)) corners = [c_loc(values(1, 1, 1, 1)), c_loc(values(n(1), 1, 1, 1)), &
                                   c_loc(values(1, n(2), 1, 1)), c_loc(values(1, 1, n(3), 1)), &
                                   c_loc(values(1, 1, 1, n(4)))]
        call put_block(s, name, OF_REAL64, shape(values, int64), corners, storage_size(values) / 8, ierr)
    end subroutine put_real64_4

    subroutine put_int32_0(s, name, values, ierr)
        type(stream_simulation), intent(inout) :: s
        character(len=*), intent(in) :: name
        integer(int32), intent(in), target :: values
        integer, intent(out), optional :: ierr

        call put_block(s, name, OF_INT32, [integer(int64) ::], [c_loc(values)], storage_size(values) / 8, ierr)
    end subroutine put_int32_0

    subroutine put_int32_1(s, name, values, ierr)
        type(stream_simulation), intent(inout) :: s
        character(len=*), intent(in) :: name
        integer(int32), intent(in), target :: values(:)
        integer, intent(out), optional :: ierr
        integer(int64) :: n(1)
        type(c_ptr) :: corners(2)

        n = next_in_each(shape(values, int64))
        corners = c_loc(nothing)
        if (all(n > 0)) corners = [c_loc(values(1)), c_loc(values(n(1)))]
        call put_block(s, name, OF_INT32, shape(values, int64), corners, storage_size(values) / 8, ierr)
    end subroutine put_int32_1

    subroutine put_int32_2(s, name, values, ierr)
        type(stream_simulation), intent(inout) :: s
        character(len=*), intent(in) :: name
        integer(int32), intent(in), target :: values(:, :)
        integer, intent(out), optional :: ierr
        integer(int64) :: n(2)
        type(c_ptr) :: corners(3)

        n = next_in_each(shape(values, int64))
        corners = c_loc(nothing)
        if (all(n > 0)) corners = [c_loc(values(1, 1)), c_loc(values(n(1), 1)), c_loc(values(1, n(2)))]
        call put_block(s, name, OF_INT32, shape(values, int64), corners, storage_size(values) / 8, ierr)
    end subroutine put_int32_2

    subroutine put_int32_3(s, name, values, ierr)
        type(stream_simulation), intent(inout) :: s
        character(len=*), intent(in) :: name
        integer(int32), intent(in), target :: values(:, :, :)
        integer, intent(out), optional :: ierr
        integer(int64) :: n(3)
        type(c_ptr) :: corners(4)

        n = next_in_each(shape(values, int64))
        corners = c_loc(nothing)
        if (all(n > 0)) corners = [c_loc(values(1, 1, 1)), c_loc(values(n(1), 1, 1)), &
                                   c_loc(values(1, n(2), 1)), c_loc(values(1, 1, n(3)))]
        call put_block(s, name, OF_INT32, shape(values, int64), corners, storage_size(values) / 8, ierr)
    end subroutine put_int32_3

    subroutine put_int32_4(s, name, values, ierr)
        type(stream_simulation), intent(inout) :: s
        character(len=*), intent(in) :: name
        integer(int32), intent(in), target :: values(:, :, :, :)
        integer, intent(out), optional :: ierr
        integer(int64) :: n(4)
        type(c_ptr) :: corners(5)

        n = next_in_each(shape(values, int64))
        corners = c_loc(nothing)
        if (all(n > 0)) corners = [c_loc(values(1, 1, 1, 1)), c_loc(values(n(1), 1, 1, 1)), &
                                   c_loc(values(1, n(2), 1, 1)), c_loc(values(1, 1, n(3), 1)), &
                                   c_loc(values(1, 1, 1, n(4)))]
        call put_block(s, name, OF_INT32, shape(values, int64), corners, storage_size(values) / 8, ierr)
    end subroutine put_int32_4

    subroutine put_int64_0(s, name, values, ierr)
        type(stream_simulation), intent(inout) :: s
        character(len=*), intent(in) :: name
        integer(int64), intent(in), target :: values
        integer, intent(out), optional :: ierr

        call put_block(s, name, OF_INT64, [integer(int64) ::], [c_loc(values)], storage_size(values) / 8, ierr)
    end subroutine put_int64_0

    subroutine put_int64_1(s, name, values, ierr)
        type(stream_simulation), intent(inout) :: s
        character(len=*), intent(in) :: name
        integer(int64), intent(in), target :: values(:)
        integer, intent(out), optional :: ierr
        integer(int64) :: n(1)
        type(c_ptr) :: corners(2)

        n = next_in_each(shape(values, int64))
        corners = c_loc(nothing)
        if (all(n > 0)) corners = [c_loc(values(1)), c_loc(values(n(1)))]
        call put_block(s, name, OF_INT64, shape(values, int64), corners, storage_size(values) / 8, ierr)
    end subroutine put_int64_1

    subroutine put_int64_2(s, name, values, ierr)
        type(stream_simulation), intent(inout) :: s
        character(len=*), intent(in) :: name
        integer(int64), intent(in), target :: values(:, :)
        integer, intent(out), optional :: ierr
        integer(int64) :: n(2)
        type(c_ptr) :: corners(3)

        n = next_in_each(shape(values, int64))
        corners = c_loc(nothing)
        if (all(n > 0)) corners = [c_loc(values(1, 1)), c_loc(values(n(1), 1)), c_loc(values(1, n(2)))]
        call put_block(s, name, OF_INT64, shape(values, int64), corners, storage_size(values) / 8, ierr)
    end subroutine put_int64_2

    subroutine put_int64_3(s, name, values, ierr)
        type(stream_simulation), intent(inout) :: s
        character(len=*), intent(in) :: name
        integer(int64), intent(in), target :: values(:, :, :)
        integer, intent(out), optional :: ierr
        integer(int64) :: n(3)
        type(c_ptr) :: corners(4)

        n = next_in_each(shape(values, int64))
        corners = c_loc(nothing)
        if (all(n > 0)) corners = [c_loc(values(1, 1, 1)), c_loc(values(n(1), 1, 1)), &
                                   c_loc(values(1, n(2), 1)), c_loc(values(1, 1, n(3)))]
        call put_block(s, name, OF_INT64, shape(values, int64), corners, storage_size(values) / 8, ierr)
    end subroutine put_int64_3

    subroutine put_int64_4(s, name, values, ierr)
        type(stream_simulation), intent(inout) :: s
        character(len=*), intent(in) :: name
        integer(int64), intent(in), target :: values(:, :, :, :)
        integer, intent(out), optional :: ierr
        integer(int64) :: n(4)
        type(c_ptr) :: corners(5)

        n = next_in_each(shape(values, int64))
        corners = c_loc(nothing)
        if (all(n > 0)) corners = [c_loc(values(1, 1, 1, 1)), c_loc(values(n(1), 1, 1, 1)), &
                                   c_loc(values(1, n(2), 1, 1)), c_loc(values(1, 1, n(3), 1)), &
                                   c_loc(values(1, 1, 1, n(4)))]
        call put_block(s, name, OF_INT64, shape(values, int64), corners, storage_size(values) / 8, ierr)
    end subroutine put_int64_4

    ! Put the block of these extents. `corners`: where its first element lies, and the next one in each dimension.
    subroutine put_block(s, name, dtype, extents, corners, num_bytes, ierr)
        type(stream_simulation), intent(inout) :: s
        character(len=*), intent(in) :: name
        integer(c_int), intent(in) :: dtype
        integer(int64), intent(in) :: extents(:)
        type(c_ptr), intent(in) :: corners(:)
        integer, intent(in) :: num_bytes
        integer, intent(out), optional :: ierr
        integer(c_int64_t), target :: strides(max(1, size(extents)))
        integer(int64) :: distance, contiguous_stride
        type(c_ptr) :: strides_at
        integer :: d

        if (has_given_up(s, ierr)) return
        strides_at = c_null_ptr
        contiguous_stride = 1
        do d = 1, size(extents)
            distance = contiguous_stride * num_bytes
            if (extents(d) > 1 .and. all(extents > 0)) distance = address(corners(d + 1)) - address(corners(1))
            if (modulo(distance, int(num_bytes, int64)) /= 0) then
                call mistake(s, 'stream_put', "the elements of field '"//trim(name)//"' do not lie at multiples "// &
                             "of their size: put a copy, by parentheses around the array", ierr)
                return
            end if
            strides(size(extents) + 1 - d) = distance / num_bytes
            if (distance /= contiguous_stride * num_bytes) strides_at = c_loc(strides)
            contiguous_stride = contiguous_stride * extents(d)
        end do
        call conclude(s, 'stream_put', &
                      c_put_array(s%handle, trim(name)//c_null_char, dtype, size(extents, kind=c_int), &
                                  in_c_order(extents), strides_at, corners(1)), ierr)
    end subroutine put_block

    ! Whether a call without ierr has failed before: then nothing more is done.
    logical function has_given_up(s, ierr)
        type(stream_simulation), intent(in) :: s
        integer, intent(out), optional :: ierr

        has_given_up = s%failure /= STREAM_OK
        if (present(ierr)) ierr = s%failure
    end function has_given_up

    ! Give the result of a call to the caller, or print an error that the caller does not look at.
    subroutine conclude(s, call_name, code, ierr)
        type(stream_simulation), intent(inout) :: s
        character(len=*), intent(in) :: call_name
        integer(c_int), intent(in) :: code
        integer, intent(out), optional :: ierr

        if (code < 0) s%message = text_at(c_error(s%handle))
        call tell(s, call_name, int(code), ierr)
    end subroutine conclude

    ! The same for what is wrong already here.
    subroutine mistake(s, call_name, text, ierr)
        type(stream_simulation), intent(inout) :: s
        character(len=*), intent(in) :: call_name, text
        integer, intent(out), optional :: ierr

        s%message = text
        call tell(s, call_name, STREAM_ERROR_ARGUMENT, ierr)
    end subroutine mistake

    subroutine tell(s, call_name, code, ierr)
        type(stream_simulation), intent(inout) :: s
        character(len=*), intent(in) :: call_name
        integer, intent(in) :: code
        integer, intent(out), optional :: ierr

        if (present(ierr)) then
            ierr = code
        else if (code < 0 .and. s%failure == STREAM_OK) then
            s%failure = code
            call print_error(s, call_name, 'The program goes on without the study, which will try this simulation '// &
                             'again; other ranks may wait until it does. Pass ierr to handle errors yourself.')
        end if
    end subroutine tell

    subroutine print_error(s, call_name, consequence)
        type(stream_simulation), intent(in) :: s
        character(len=*), intent(in) :: call_name, consequence

        write (error_unit, '(a, i0, 6a)') 'stream_client, rank ', s%rank, ', ', call_name, ': ', s%message, &
            new_line('a'), '    '//consequence
        flush (error_unit)
    end subroutine print_error

    pure function in_c_order(extents) result(reversed)
        integer(int64), intent(in) :: extents(:)
        integer(c_int64_t) :: reversed(size(extents))

        reversed = extents(size(extents):1:-1)
    end function in_c_order

    pure function next_in_each(extents) result(subscripts)
        integer(int64), intent(in) :: extents(:)
        integer(int64) :: subscripts(size(extents))

        subscripts = min(extents, 2_int64)
    end function next_in_each

    integer(int64) function address(pointer)
        type(c_ptr), intent(in) :: pointer

        address = int(transfer(pointer, 0_c_intptr_t), int64)
    end function address

    ! The first `num - 1` letters of a text, filled up with zeros instead of blanks.
    pure function letters(text, num)
        character(len=*), intent(in) :: text
        integer, intent(in) :: num
        character(kind=c_char) :: letters(num)
        integer :: i

        letters = c_null_char
        do i = 1, min(num - 1, len_trim(text))
            letters(i) = text(i:i)
        end do
    end function letters

    function text_at(pointer) result(text)
        type(c_ptr), intent(in) :: pointer
        character(len=:), allocatable :: text
        character(kind=c_char), pointer :: bytes(:)
        integer :: i

        text = ''
        if (.not. c_associated(pointer)) return
        call c_f_pointer(pointer, bytes, [c_length(pointer)])
        text = repeat(' ', size(bytes))
        do i = 1, size(bytes)
            text(i:i) = bytes(i)
        end do
    end function text_at
end module stream_client
