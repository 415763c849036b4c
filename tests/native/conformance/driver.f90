! Drives the Fortran client by a script on standard input, one result for each line: see script.py.
program driver
    use, intrinsic :: iso_fortran_env, only: input_unit, int32, int64, output_unit, real32, real64
    use stream_client
    implicit none

    integer, parameter :: max_words = 32

    ! A block in Fortran's order, inside a larger array: elements first, first + step, ... last of each dimension.
    type :: placement
        integer :: num_dimensions = 0
        integer :: count(4) = 1, room(4) = 1, first(4) = 1, last(4) = 1, step(4) = 1
    end type placement

    type(stream_simulation) :: s
    character(len=4096) :: line
    character(len=256) :: words(max_words)
    character(len=2048) :: failed_put
    integer :: status, num_words

    failed_put = ''
    do
        read (input_unit, '(a)', iostat=status) line
        if (status /= 0) exit
        call split(line)
        if (num_words > 0) call obey()
        flush (output_unit)
    end do
    call stream_abandon(s)

contains

    subroutine obey()
        integer :: ierr

        select case (words(1))
        case ('connect')
            call connect(integer_of(words(2)), integer_of(words(3)), 4)
            return
        case ('work')
            call connect(0, 1, 2)
            return
        case ('declare')
            call declare(ierr)
        case ('put')
            call put()
            return
        case ('send')
            call send()
            return
        case ('next')
            call stream_next(s, ierr)
        case ('invalidate')
            call stream_invalidate(s, line(index(line, ' ') + 1:), ierr)
        case ('finish')
            call stream_finish(s, ierr)
        case ('abandon')
            call stream_abandon(s, ierr)
        case default
            call tell()
            return
        end select
        call print_result(ierr, '')
    end subroutine obey

    subroutine connect(rank, num_ranks, first_option)
        integer, intent(in) :: rank, num_ranks, first_option
        character(len=256), allocatable :: connection
        character(len=64) :: names(max_words)
        real(real64) :: values(max_words)
        integer, allocatable :: simulation_id
        real, allocatable :: timeout_s
        integer :: i, at, num, ierr

        num = 0
        failed_put = ''
        do i = first_option, num_words
            at = scan(words(i), '=:')
            select case (words(i) (:at))
            case ('connection=')
                if (words(i) /= 'connection=-') then
                    allocate (connection)
                    connection = words(i) (at + 1:)
                end if
            case ('simulation=')
                allocate (simulation_id, source=integer_of(words(i) (at + 1:)))
            case ('timeout=')
                allocate (timeout_s, source=real(real_of(words(i) (at + 1:))))
            case default
                num = num + 1
                names(num) = words(i) (:at - 1)
                values(num) = real_of(words(i) (at + 1:))
            end select
        end do
        if (num > 0) then
            call stream_connect(s, rank, num_ranks, ierr, connection, simulation_id, names(:num), values(:num), &
                                timeout_s)
        else
            call stream_connect(s, rank, num_ranks, ierr, connection, simulation_id, timeout_s=timeout_s)
        end if
        call print_result(ierr, '')
    end subroutine connect

    subroutine declare(ierr)
        integer, intent(out) :: ierr
        integer(int64), allocatable :: offset(:), count(:)

        if (words(4) /= '-') allocate (offset, source=extents(words(4)))
        if (words(6) /= '-') allocate (count, source=extents(words(6)))
        call stream_declare_field(s, words(2), extents(words(3)), offset, count, ierr)
    end subroutine declare

    subroutine put()
        type(placement) :: place
        integer(int64), allocatable :: count(:)
        integer :: d, ierr

        allocate (count, source=extents(words(4)))
        place%num_dimensions = size(count)
        place%count(:size(count)) = int(count)
        do d = 1, size(count)
            associate (n => place%count(d))
                place%room(d) = n
                place%last(d) = n
                select case (words(6))
                case ('ghost')
                    place%room(d) = n + 2
                    place%first(d) = 2
                    place%last(d) = n + 1
                case ('reversed')
                    place%first(d) = n
                    place%last(d) = 1
                    place%step(d) = -1
                case ('spread')
                    place%room(d) = 2 * n
                    place%last(d) = 2 * n - 1
                    place%step(d) = 2
                end select
            end associate
        end do
        select case (words(3))
        case ('float32')
            call put_real32(place, integer64_of(words(5)), ierr)
        case ('float64')
            call put_real64(place, integer64_of(words(5)), ierr)
        case ('int32')
            call put_int32(place, integer64_of(words(5)), ierr)
        case ('int64')
            call put_int64(place, integer64_of(words(5)), ierr)
        case default
            print '(a)', 'unsupported'
            return
        end select
        if (ierr < 0 .and. failed_put == '') failed_put = 'error '//code_name(ierr)//': '//stream_error(s)
        print '(a)', 'staged'
    end subroutine put

    subroutine send()
        integer :: ierr

        if (failed_put == '') then
            call stream_send(s, integer_of(words(2)), ierr)
            call print_result(ierr, '')
        else
            print '(a)', trim(failed_put)
        end if
        failed_put = ''
    end subroutine send

    subroutine tell()
        character(len=64) :: text
        integer(int64) :: num, first, every
        real(real64) :: value
        integer :: ierr

        ierr = STREAM_OK
        select case (words(1))
        case ('id')
            write (text, '(i0)') stream_id(s)
        case ('attempt')
            write (text, '(i0)') stream_attempt(s)
        case ('stop_reason')
            call print_result(ierr, stream_stop_reason(s))
            return
        case ('parameter')
            value = -1
            call stream_parameter(s, words(2), value, ierr)
            write (text, '(f24.3)') value
        case default
            call stream_time_steps(s, num, first, every, ierr)
            write (text, '(i0, 1x, i0, 1x, i0)') num, first, every
            if (num < 0) text = '-1'
        end select
        call print_result(ierr, trim(adjustl(text)))
    end subroutine tell

    subroutine put_real32(place, seed, ierr)
        type(placement), intent(in) :: place
        integer(int64), intent(in) :: seed
        integer, intent(out) :: ierr
        integer(int64) :: i
        real(real32), allocatable, target :: values(:)
        real(real32), pointer :: b1(:), b2(:, :), b3(:, :, :), b4(:, :, :, :)

        allocate (values(product(place%room)), source=-99.0_real32)
        do i = 0, product(int(place%count, int64)) - 1
            values(position(place, i)) = real(real(value_at(seed, i), real64) / 3.0_real64, real32)
        end do
        associate (r => place%room, f => place%first, l => place%last, t => place%step)
            select case (place%num_dimensions)
            case (0)
                call stream_put(s, words(2), values(1), ierr)
            case (1)
                b1 => values
                call stream_put(s, words(2), b1(f(1):l(1):t(1)), ierr)
            case (2)
                b2(1:r(1), 1:r(2)) => values
                call stream_put(s, words(2), b2(f(1):l(1):t(1), f(2):l(2):t(2)), ierr)
            case (3)
                b3(1:r(1), 1:r(2), 1:r(3)) => values
                call stream_put(s, words(2), b3(f(1):l(1):t(1), f(2):l(2):t(2), f(3):l(3):t(3)), ierr)
            case (4)
                b4(1:r(1), 1:r(2), 1:r(3), 1:r(4)) => values
                call stream_put(s, words(2), b4(f(1):l(1):t(1), f(2):l(2):t(2), f(3):l(3):t(3), f(4):l(4):t(4)), ierr)
            end select
        end associate
    end subroutine put_real32

    subroutine put_real64(place, seed, ierr)
        type(placement), intent(in) :: place
        integer(int64), intent(in) :: seed
        integer, intent(out) :: ierr
        integer(int64) :: i
        real(real64), allocatable, target :: values(:)
        real(real64), pointer :: b1(:), b2(:, :), b3(:, :, :), b4(:, :, :, :)

        allocate (values(product(place%room)), source=-99.0_real64)
        do i = 0, product(int(place%count, int64)) - 1
            values(position(place, i)) = real(value_at(seed, i), real64) / 3.0_real64
        end do
        associate (r => place%room, f => place%first, l => place%last, t => place%step)
            select case (place%num_dimensions)
            case (0)
                call stream_put(s, words(2), values(1), ierr)
            case (1)
                b1 => values
                call stream_put(s, words(2), b1(f(1):l(1):t(1)), ierr)
            case (2)
                b2(1:r(1), 1:r(2)) => values
                call stream_put(s, words(2), b2(f(1):l(1):t(1), f(2):l(2):t(2)), ierr)
            case (3)
                b3(1:r(1), 1:r(2), 1:r(3)) => values
                call stream_put(s, words(2), b3(f(1):l(1):t(1), f(2):l(2):t(2), f(3):l(3):t(3)), ierr)
            case (4)
                b4(1:r(1), 1:r(2), 1:r(3), 1:r(4)) => values
                call stream_put(s, words(2), b4(f(1):l(1):t(1), f(2):l(2):t(2), f(3):l(3):t(3), f(4):l(4):t(4)), ierr)
            end select
        end associate
    end subroutine put_real64

    subroutine put_int32(place, seed, ierr)
        type(placement), intent(in) :: place
        integer(int64), intent(in) :: seed
        integer, intent(out) :: ierr
        integer(int64) :: i
        integer(int32), allocatable, target :: values(:)
        integer(int32), pointer :: b1(:), b2(:, :), b3(:, :, :), b4(:, :, :, :)

        allocate (values(product(place%room)), source=-99_int32)
        do i = 0, product(int(place%count, int64)) - 1
            values(position(place, i)) = int(value_at(seed, i) * 1000003, int32)
        end do
        associate (r => place%room, f => place%first, l => place%last, t => place%step)
            select case (place%num_dimensions)
            case (0)
                call stream_put(s, words(2), values(1), ierr)
            case (1)
                b1 => values
                call stream_put(s, words(2), b1(f(1):l(1):t(1)), ierr)
            case (2)
                b2(1:r(1), 1:r(2)) => values
                call stream_put(s, words(2), b2(f(1):l(1):t(1), f(2):l(2):t(2)), ierr)
            case (3)
                b3(1:r(1), 1:r(2), 1:r(3)) => values
                call stream_put(s, words(2), b3(f(1):l(1):t(1), f(2):l(2):t(2), f(3):l(3):t(3)), ierr)
            case (4)
                b4(1:r(1), 1:r(2), 1:r(3), 1:r(4)) => values
                call stream_put(s, words(2), b4(f(1):l(1):t(1), f(2):l(2):t(2), f(3):l(3):t(3), f(4):l(4):t(4)), ierr)
            end select
        end associate
    end subroutine put_int32

    subroutine put_int64(place, seed, ierr)
        type(placement), intent(in) :: place
        integer(int64), intent(in) :: seed
        integer, intent(out) :: ierr
        integer(int64) :: i
        integer(int64), allocatable, target :: values(:)
        integer(int64), pointer :: b1(:), b2(:, :), b3(:, :, :), b4(:, :, :, :)

        allocate (values(product(place%room)), source=-99_int64)
        do i = 0, product(int(place%count, int64)) - 1
            values(position(place, i)) = value_at(seed, i) * 1000000000039_int64
        end do
        associate (r => place%room, f => place%first, l => place%last, t => place%step)
            select case (place%num_dimensions)
            case (0)
                call stream_put(s, words(2), values(1), ierr)
            case (1)
                b1 => values
                call stream_put(s, words(2), b1(f(1):l(1):t(1)), ierr)
            case (2)
                b2(1:r(1), 1:r(2)) => values
                call stream_put(s, words(2), b2(f(1):l(1):t(1), f(2):l(2):t(2)), ierr)
            case (3)
                b3(1:r(1), 1:r(2), 1:r(3)) => values
                call stream_put(s, words(2), b3(f(1):l(1):t(1), f(2):l(2):t(2), f(3):l(3):t(3)), ierr)
            case (4)
                b4(1:r(1), 1:r(2), 1:r(3), 1:r(4)) => values
                call stream_put(s, words(2), b4(f(1):l(1):t(1), f(2):l(2):t(2), f(3):l(3):t(3), f(4):l(4):t(4)), ierr)
            end select
        end associate
    end subroutine put_int64

    ! Where the block's element number `i`, counted from 0 in memory order, lies in the larger array.
    integer(int64) function position(place, i)
        type(placement), intent(in) :: place
        integer(int64), intent(in) :: i
        integer(int64) :: rest, stride, at
        integer :: d

        position = 1
        rest = i
        stride = 1
        do d = 1, 4
            at = place%first(d) - 1 + modulo(rest, int(place%count(d), int64)) * place%step(d)
            position = position + at * stride
            rest = rest / place%count(d)
            stride = stride * place%room(d)
        end do
    end function position

    integer(int64) function value_at(seed, i)
        integer(int64), intent(in) :: seed, i

        value_at = modulo(7 * seed + 3 * i, 61_int64) - 20
    end function value_at

    subroutine print_result(ierr, values)
        integer, intent(in) :: ierr
        character(len=*), intent(in) :: values

        if (ierr == STREAM_OK) then
            print '(a)', trim('ok '//values)
        else if (ierr == STREAM_STOP) then
            print '(a)', 'stop'
        else
            print '(a)', 'error '//code_name(ierr)//': '//stream_error(s)
        end if
    end subroutine print_result

    function code_name(code) result(name)
        integer, intent(in) :: code
        character(len=:), allocatable :: name

        select case (code)
        case (STREAM_ERROR_ARGUMENT); name = 'ARGUMENT'
        case (STREAM_ERROR_CONNECTION_FILE); name = 'CONNECTION_FILE'
        case (STREAM_ERROR_REFUSED); name = 'REFUSED'
        case (STREAM_ERROR_STEPS_LOST); name = 'STEPS_LOST'
        case (STREAM_ERROR_UNREACHABLE); name = 'UNREACHABLE'
        case (STREAM_ERROR_MEMORY); name = 'MEMORY'
        case (STREAM_ERROR_SYSTEM); name = 'SYSTEM'
        case default; name = 'UNKNOWN'
        end select
    end function code_name

    ! The sizes of the script, which are in C order, in Fortran's.
    function extents(word) result(sizes)
        character(len=*), intent(in) :: word
        integer(int64), allocatable :: sizes(:)
        integer :: i, num

        num = 0
        if (word /= '.') num = 1 + count([(word(i:i) == ',', i=1, len_trim(word))])
        allocate (sizes(num))
        if (num > 0) read (word, *) sizes
        sizes = sizes(num:1:-1)
    end function extents

    subroutine split(text)
        character(len=*), intent(in) :: text
        integer :: at, length

        words = ''
        num_words = 0
        at = 1
        do while (at <= len_trim(text))
            length = scan(text(at:)//' ', ' ') - 1
            if (length > 0) then
                num_words = num_words + 1
                words(num_words) = text(at:at + length - 1)
            end if
            at = at + length + 1
        end do
    end subroutine split

    integer function integer_of(word)
        character(len=*), intent(in) :: word

        read (word, *) integer_of
    end function integer_of

    integer(int64) function integer64_of(word)
        character(len=*), intent(in) :: word

        read (word, *) integer64_of
    end function integer64_of

    real(real64) function real_of(word)
        character(len=*), intent(in) :: word

        read (word, *) real_of
    end function real_of
end program driver
