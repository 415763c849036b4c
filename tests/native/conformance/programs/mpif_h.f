c     The same in fixed form with mpif.h.
      program mpifh
      use stream_client
      implicit none
      include 'mpif.h'
      integer n1, ny, nz
      parameter (n1 = 3, ny = 2, nz = 2)
      type(stream_simulation) s
      double precision u(0:n1 + 1, ny, nz)
      real v(4, 1)
      integer rank, ranks, step, i, j, k, ierr

      call MPI_INIT(ierr)
      call MPI_COMM_RANK(MPI_COMM_WORLD, rank, ierr)
      call MPI_COMM_SIZE(MPI_COMM_WORLD, ranks, ierr)
      call stream_connect(s, rank, ranks)
      call stream_declare_field(s, 'u', [n1 * ranks, ny, nz],
     &                          [rank * n1, 0, 0])
      u = -1
      do 20 step = 0, 2
         do 10 k = 1, nz
            do 10 j = 1, ny
               do 10 i = 1, n1
                  u(i, j, k) = 1000 * step + 100 * (rank * n1 + i)
     &                         + 10 * j + k
   10    continue
         v = 10 * step + rank
         call stream_put(s, 'u', u(1:n1, :, :))
         call stream_put(s, 'v', v)
         call stream_send(s, step)
   20 continue
      call stream_finish(s)
      call MPI_FINALIZE(ierr)
      print '(a)', 'done'
      end program mpifh
