// The heat equation on a square plate: u_t = D (u_xx + u_yy) on [0, 10] x [0, 10] with D = 1.
//
//     ./heat NODES STEPS INITIAL LEFT RIGHT BOTTOM TOP
//
// The plate begins at one temperature, and each of its sides is kept at one. Space: NODES x NODES interior nodes, rows
// from bottom to top, 5-point stencil. Time: backward Euler in steps of 0.01, each solved by conjugate gradients.
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <numeric>
#include <string>
#include <vector>

#include <stream_client.hpp>

namespace {

constexpr double side_length = 10.0, time_step = 0.01, tolerance = 1e-12;

using Vector = std::vector<double>;

struct Sides {
    double left, right, bottom, top;
};

double dot(const Vector &a, const Vector &b) {
    return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

class Plate {
public:
    Plate(std::size_t nodes, double initial, const Sides &sides)
        : nodes_(nodes), sides_(sides), u_(nodes * nodes, initial), residual_(u_), direction_(u_), image_(u_) {
        const double spacing = side_length / static_cast<double>(nodes + 1);
        ratio_ = time_step / (spacing * spacing);
    }

    const Vector &temperature() const { return u_; }

    double mean() const { return std::accumulate(u_.begin(), u_.end(), 0.0) / static_cast<double>(u_.size()); }

    // One time step: conjugate gradients from the old temperatures. The sides enter with the first residual.
    void advance() {
        apply(u_, sides_);
        for (std::size_t k = 0; k < u_.size(); ++k)
            residual_[k] = direction_[k] = u_[k] - image_[k];
        double square = dot(residual_, residual_);
        const double small = tolerance * tolerance * dot(u_, u_);
        while (square > small) {
            apply(direction_, Sides{0, 0, 0, 0});
            const double length = square / dot(direction_, image_);
            for (std::size_t k = 0; k < u_.size(); ++k) {
                u_[k] += length * direction_[k];
                residual_[k] -= length * image_[k];
            }
            const double last = square;
            square = dot(residual_, residual_);
            for (std::size_t k = 0; k < u_.size(); ++k)
                direction_[k] = residual_[k] + square / last * direction_[k];
        }
    }

private:
    // image = (1 - dt D Laplace) v, with what is beyond the nodes at the edge
    void apply(const Vector &v, const Sides &beyond) {
        const std::size_t last = nodes_ - 1;
        for (std::size_t row = 0, k = 0; row < nodes_; ++row)
            for (std::size_t column = 0; column < nodes_; ++column, ++k) {
                const double left = column > 0 ? v[k - 1] : beyond.left;
                const double right = column < last ? v[k + 1] : beyond.right;
                const double below = row > 0 ? v[k - nodes_] : beyond.bottom;
                const double above = row < last ? v[k + nodes_] : beyond.top;
                image_[k] = v[k] - ratio_ * (left + right + below + above - 4 * v[k]);
            }
    }

    std::size_t nodes_;
    double ratio_;
    Sides sides_;
    Vector u_, residual_, direction_, image_;
};

void run(std::size_t nodes, int num_steps, double initial, const Sides &sides) {
    Plate plate(nodes, initial, sides);
    stream::Simulation simulation;
    for (int step = 0; step < num_steps; ++step) {
        plate.advance();
        simulation.put("temperature", plate.temperature());
        if (!simulation.send(step))
            break;
    }
    simulation.finish();
    std::printf("mean temperature %.9f K\n", plate.mean());
}

}  // namespace

int main(int argc, char **argv) {
    if (argc != 8) {
        std::fprintf(stderr, "usage: heat NODES STEPS INITIAL LEFT RIGHT BOTTOM TOP\n");
        return 2;
    }
    try {
        const Sides sides{std::stod(argv[4]), std::stod(argv[5]), std::stod(argv[6]), std::stod(argv[7])};
        run(std::stoul(argv[1]), std::stoi(argv[2]), std::stod(argv[3]), sides);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "heat: %s\n", error.what());
        return 1;
    }
    return 0;
}
