/* The heat equation on a square plate, in parallel: u_t = D (u_xx + u_yy) on [0, 10] x [0, 10] with D = 1.
 *
 *     mpirun -n 4 ./heat NODES STEPS INITIAL LEFT RIGHT BOTTOM TOP
 *
 * The plate begins at one temperature, and each of its sides is kept at one. Space: NODES x NODES interior nodes, rows
 * from bottom to top, 5-point stencil. Time: backward Euler in steps of 0.01, each solved by conjugate gradients. Every
 * rank has a block of the plate, and around it a frame one node wide for what its neighbours and the sides hold.
 */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <stream_client_mpi.h>

static const double side_length = 10.0, time_step = 0.01, tolerance = 1e-12;

/* This rank's block. Pairs are rows and columns; what there are four of is in the order of the neighbours in the grid:
 * below, above, left, right. */
typedef struct {
    MPI_Comm grid;
    int first[2], num[2];
    int width;                    /* of a row in memory, frame included */
    MPI_Datatype edge[4];         /* the nodes along an edge */
    MPI_Aint inside[4], frame[4]; /* where an edge begins, and the frame beyond it, in bytes */
} block;

static int at(const block *mine, int row, int column) {
    return row * mine->width + column;
}

static void find_edges(block *mine) {
    const int rows = mine->num[0], columns = mine->num[1];
    const int inside[4] = {at(mine, 1, 1), at(mine, rows, 1), at(mine, 1, 1), at(mine, 1, columns)};
    const int frame[4] = {at(mine, 0, 1), at(mine, rows + 1, 1), at(mine, 1, 0), at(mine, 1, columns + 1)};
    for (int edge = 0; edge < 4; ++edge) {
        if (edge < 2)
            MPI_Type_contiguous(columns, MPI_DOUBLE, &mine->edge[edge]);
        else
            MPI_Type_vector(rows, 1, mine->width, MPI_DOUBLE, &mine->edge[edge]);
        MPI_Type_commit(&mine->edge[edge]);
        mine->inside[edge] = inside[edge] * (MPI_Aint)sizeof(double);
        mine->frame[edge] = frame[edge] * (MPI_Aint)sizeof(double);
    }
}

static block cut(int nodes) {
    int num_ranks, rank, ranks[2] = {0, 0}, place[2];
    const int periodic[2] = {0, 0};
    block mine;
    MPI_Comm_size(MPI_COMM_WORLD, &num_ranks);
    MPI_Dims_create(num_ranks, 2, ranks);
    MPI_Cart_create(MPI_COMM_WORLD, 2, ranks, periodic, 0, &mine.grid);
    MPI_Comm_rank(mine.grid, &rank);
    MPI_Cart_coords(mine.grid, rank, 2, place);
    for (int axis = 0; axis < 2; ++axis) {
        mine.first[axis] = nodes * place[axis] / ranks[axis];
        mine.num[axis] = nodes * (place[axis] + 1) / ranks[axis] - mine.first[axis];
    }
    mine.width = mine.num[1] + 2;
    find_edges(&mine);
    return mine;
}

static double *zeros(const block *mine) {
    double *nodes = calloc((size_t)(mine->num[0] + 2) * mine->width, sizeof *nodes);
    if (nodes == NULL) {
        fprintf(stderr, "no memory for %d x %d nodes\n", mine->num[0], mine->num[1]);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return nodes;
}

/* The initial temperature inside; the frame of a block at the edge of the plate holds what its side is kept at. */
static void warm(const block *mine, double *u, double initial, const double sides[4]) {
    const int rows = mine->num[0], columns = mine->num[1];
    for (int i = 1; i <= rows; ++i) {
        for (int j = 1; j <= columns; ++j)
            u[at(mine, i, j)] = initial;
        u[at(mine, i, 0)] = sides[2];
        u[at(mine, i, columns + 1)] = sides[3];
    }
    for (int j = 1; j <= columns; ++j) {
        u[at(mine, 0, j)] = sides[0];
        u[at(mine, rows + 1, j)] = sides[1];
    }
}

/* Fill the frame with the neighbours' nodes; where there is no neighbour it stays as it is. */
static void exchange(const block *mine, double *u) {
    static const int one[4] = {1, 1, 1, 1};
    MPI_Neighbor_alltoallw(u, one, mine->inside, mine->edge, u, one, mine->frame, mine->edge, mine->grid);
}

/* result = (1 - dt D Laplace) u */
static void apply(const block *mine, double ratio, double *u, double *result) {
    const int width = mine->width;
    exchange(mine, u);
    for (int i = 1; i <= mine->num[0]; ++i)
        for (int k = at(mine, i, 1); k <= at(mine, i, mine->num[1]); ++k)
            result[k] = u[k] - ratio * (u[k - width] + u[k - 1] - 4 * u[k] + u[k + 1] + u[k + width]);
}

/* a = a_factor a + b_factor b */
static void combine(const block *mine, double a_factor, double *a, double b_factor, const double *b) {
    for (int i = 1; i <= mine->num[0]; ++i)
        for (int k = at(mine, i, 1); k <= at(mine, i, mine->num[1]); ++k)
            a[k] = a_factor * a[k] + b_factor * b[k];
}

static double dot(const block *mine, const double *a, const double *b) {
    double sum = 0;
    for (int i = 1; i <= mine->num[0]; ++i)
        for (int k = at(mine, i, 1); k <= at(mine, i, mine->num[1]); ++k)
            sum += a[k] * b[k];
    MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_DOUBLE, MPI_SUM, mine->grid);
    return sum;
}

/* One time step: conjugate gradients from the old temperatures. The sides enter with the first residual, through the
 * frame of u; the frame of a direction is 0 there. */
static void advance(const block *mine, double ratio, double *u, double *residual, double *direction, double *image) {
    apply(mine, ratio, u, image);
    combine(mine, 0, residual, 1, u);
    combine(mine, 1, residual, -1, image);
    combine(mine, 0, direction, 1, residual);
    double square = dot(mine, residual, residual);
    const double small = tolerance * tolerance * dot(mine, u, u);
    while (square > small) {
        apply(mine, ratio, direction, image);
        const double length = square / dot(mine, direction, image);
        combine(mine, 1, u, length, direction);
        combine(mine, 1, residual, -length, image);
        const double last = square;
        square = dot(mine, residual, residual);
        combine(mine, square / last, direction, 1, residual);
    }
}

static double mean(const block *mine, int nodes, const double *u) {
    double sum = 0;
    for (int i = 1; i <= mine->num[0]; ++i)
        for (int j = 1; j <= mine->num[1]; ++j)
            sum += u[at(mine, i, j)];
    MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_DOUBLE, MPI_SUM, mine->grid);
    return sum / nodes / nodes;
}

/* Without the study this attempt is of no use, and it starts another one. */
static void check(int code, stream_simulation *const *simulation) {
    if (code < 0) {
        fprintf(stderr, "%s\n", stream_error(*simulation));
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    if (argc != 8) {
        fprintf(stderr, "usage: heat NODES STEPS INITIAL LEFT RIGHT BOTTOM TOP\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    const int nodes = atoi(argv[1]), num_steps = atoi(argv[2]);
    const double sides[4] = {atof(argv[6]), atof(argv[7]), atof(argv[4]), atof(argv[5])};
    const double spacing = side_length / (nodes + 1), ratio = time_step / (spacing * spacing);
    block mine = cut(nodes);
    double *u = zeros(&mine), *residual = zeros(&mine), *direction = zeros(&mine), *image = zeros(&mine);
    warm(&mine, u, atof(argv[3]), sides);

    const int64_t shape[2] = {nodes, nodes}, offset[2] = {mine.first[0], mine.first[1]};
    const int64_t count[2] = {mine.num[0], mine.num[1]}, strides[2] = {mine.width, 1};
    stream_simulation *simulation;
    check(stream_connect_mpi(&simulation, mine.grid), &simulation);
    check(stream_declare_field(simulation, "temperature", STREAM_FLOAT64, 2, shape, offset, count), &simulation);

    for (int step = 0; step < num_steps; ++step) {
        advance(&mine, ratio, u, residual, direction, image);
        check(stream_put_strided(simulation, "temperature", &u[at(&mine, 1, 1)], strides), &simulation);
        int stop = stream_send(simulation, step);
        check(stop, &simulation);
        MPI_Allreduce(MPI_IN_PLACE, &stop, 1, MPI_INT, MPI_MAX, mine.grid);
        if (stop == STREAM_STOP)
            break;
    }
    check(stream_finish(&simulation), &simulation);

    const double average = mean(&mine, nodes, u);
    if (mine.first[0] == 0 && mine.first[1] == 0)
        printf("mean temperature %.9f K\n", average);
    free(u), free(residual), free(direction), free(image);
    for (int edge = 0; edge < 4; ++edge)
        MPI_Type_free(&mine.edge[edge]);
    MPI_Comm_free(&mine.grid);
    MPI_Finalize();
    return 0;
}
