/* Stream Server's client for C++17: stream_client.h with objects, types and exceptions. Header only.
 *
 *     stream::Simulation simulation(rank, num_ranks);
 *     simulation.declare_field<double>("temperature", {ny, nx}, {y0, x0}, {my, mx});
 *     for (int step = 0; step < num_steps; ++step) {
 *         ...
 *         simulation.put("temperature", u);
 *         if (!simulation.send(step)) break;
 *     }
 *     simulation.finish();
 *
 * A Simulation that is destroyed before finish(), as when an exception leaves the block, is abandoned: the study starts
 * a new attempt, unless all its time steps arrive. What goes wrong is a stream::Error; the end of the study is none.
 * Threads: as in stream_client.h.
 */
#ifndef STREAM_CLIENT_HPP
#define STREAM_CLIENT_HPP

#include <array>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "stream_client.h"

namespace stream {

/* What a call that failed has to say; code() is one of STREAM_ERROR_... */
class Error : public std::runtime_error {
public:
    Error(int code, const std::string &text) : std::runtime_error(text), code_(code) {}
    int code() const noexcept { return code_; }

private:
    int code_;
};

/* Sizes, offsets or strides, one for each dimension: {ny, nx}. Empty: not given. */
class Extents {
public:
    template <class... Size, class = std::enable_if_t<(std::is_integral_v<Size> && ...)>>
    Extents(Size... sizes) : num_(static_cast<int>(sizeof...(sizes))), sizes_{{static_cast<std::int64_t>(sizes)...}} {
        static_assert(sizeof...(sizes) <= STREAM_MAX_DIMENSIONS, "a field has at most 8 dimensions");
    }

    template <class Size, class = std::enable_if_t<std::is_integral_v<Size>>>
    Extents(const std::vector<Size> &sizes) : Extents(sizes.data(), sizes.size()) {}

    template <class Size, std::size_t num, class = std::enable_if_t<std::is_integral_v<Size>>>
    Extents(const std::array<Size, num> &sizes) : Extents(sizes.data(), num) {}

    int num() const noexcept { return num_; }
    bool is_given() const noexcept { return num_ > 0; }
    const std::int64_t *data() const noexcept { return num_ > 0 ? sizes_.data() : nullptr; }

    std::int64_t product() const noexcept {
        std::int64_t product = 1;
        for (int d = 0; d < num_; ++d) product *= sizes_[static_cast<std::size_t>(d)];
        return product;
    }

private:
    template <class Size>
    Extents(const Size *sizes, std::size_t num) : num_(static_cast<int>(num)) {
        if (num > STREAM_MAX_DIMENSIONS) throw Error(STREAM_ERROR_ARGUMENT, "a field has at most 8 dimensions");
        for (std::size_t d = 0; d < num; ++d) sizes_[d] = static_cast<std::int64_t>(sizes[d]);
    }

    int num_ = 0;
    std::array<std::int64_t, STREAM_MAX_DIMENSIONS> sizes_{};
};

template <class T, std::size_t num_bytes>
inline constexpr bool is_integer = std::is_integral_v<T> && sizeof(T) == num_bytes;

/* The stream_dtype of a C++ type: bool, integers, float, double and their std::complex. */
template <class T>
constexpr stream_dtype dtype_of() {
    static_assert(sizeof(bool) == 1, "a bool is one byte in the protocol");
    if constexpr (std::is_same_v<T, bool>) return STREAM_BOOL;
    else if constexpr (std::is_same_v<T, float>) return STREAM_FLOAT32;
    else if constexpr (std::is_same_v<T, double>) return STREAM_FLOAT64;
    else if constexpr (std::is_same_v<T, std::complex<float>>) return STREAM_COMPLEX64;
    else if constexpr (std::is_same_v<T, std::complex<double>>) return STREAM_COMPLEX128;
    else if constexpr (is_integer<T, 1>) return std::is_signed_v<T> ? STREAM_INT8 : STREAM_UINT8;
    else if constexpr (is_integer<T, 2>) return std::is_signed_v<T> ? STREAM_INT16 : STREAM_UINT16;
    else if constexpr (is_integer<T, 4>) return std::is_signed_v<T> ? STREAM_INT32 : STREAM_UINT32;
    else if constexpr (is_integer<T, 8>) return std::is_signed_v<T> ? STREAM_INT64 : STREAM_UINT64;
    else static_assert(!sizeof(T), "there is no such type: use bool, an integer, float, double or std::complex");
}

template <class T>
inline constexpr bool is_scalar = std::is_arithmetic_v<T> || std::is_same_v<T, std::complex<float>> ||
                                  std::is_same_v<T, std::complex<double>>;

/* How a simulation that nobody launched finds its study, and what it simulates. */
struct Options {
    std::string connection;                                   /* empty: STREAM_CONNECTION names the file */
    std::optional<std::int64_t> simulation_id;                /* none: the server chooses */
    std::vector<std::pair<std::string, double>> parameters;   /* empty: what the server says */
    double timeout_s = 60;
};

/* The labels of the study's time steps; num is none if it is not known ahead. */
struct TimeSteps {
    std::optional<std::int64_t> num;
    std::int64_t first;
    std::int64_t every;
};

/* One run of the solver, as the study sees it; this process is rank `rank` of `num_ranks`. */
class Simulation {
public:
    explicit Simulation(int rank = 0, int num_ranks = 1) { check(stream_connect(&handle_, rank, num_ranks), nullptr); }

    explicit Simulation(const Options &options, int rank = 0, int num_ranks = 1) {
        std::vector<const char *> names;
        std::vector<double> values;
        for (const auto &[name, value] : options.parameters) {
            names.push_back(name.c_str());
            values.push_back(value);
        }
        stream_options it = STREAM_OPTIONS_DEFAULT;
        if (!options.connection.empty()) it.connection = options.connection.c_str();
        it.simulation_id = options.simulation_id.value_or(-1);
        it.num_parameters = static_cast<int>(names.size());
        it.parameter_names = names.data();
        it.parameter_values = values.data();
        it.timeout_s = options.timeout_s;
        check(stream_connect_with(&handle_, rank, num_ranks, &it), nullptr);
    }

    ~Simulation() { stream_abandon(&handle_); }

    Simulation(const Simulation &) = delete;
    Simulation &operator=(const Simulation &) = delete;
    Simulation(Simulation &&other) noexcept
        : handle_(std::exchange(other.handle_, nullptr)), declared_(std::move(other.declared_)) {}
    Simulation &operator=(Simulation &&other) noexcept {
        /* The simulation that was here is abandoned now, not when `other` dies. */
        Simulation moved(std::move(other));
        std::swap(handle_, moved.handle_);
        std::swap(declared_, moved.declared_);
        return *this;
    }

    std::int64_t id() const { return stream_id(handle_); }
    std::int64_t attempt() const { return stream_attempt(handle_); }

    /* A parameter of the study; `alone` is what a program that runs alone gets. */
    double parameter(const std::string &name, double alone = 0) const {
        check(stream_parameter(handle_, name.c_str(), &alone), handle_);
        return alone;
    }

    TimeSteps time_steps() const {
        std::int64_t num = -1, first = 0, every = 1;
        check(stream_time_steps(handle_, &num, &first, &every), handle_);
        return {num >= 0 ? std::optional(num) : std::nullopt, first, every};
    }

    /* Say, before the first send, which block of a field this rank sends; see stream_declare_field. */
    template <class T>
    void declare_field(const std::string &name, const Extents &shape, const Extents &offset = {},
                       const Extents &count = {}) {
        declare(name, dtype_of<T>(), shape, offset, count);
    }

    /* The same, of the type of the first array that is put. */
    void declare_field(const std::string &name, const Extents &shape, const Extents &offset = {},
                       const Extents &count = {}) {
        declare(name, STREAM_AS_PUT, shape, offset, count);
    }

    /* Copy a block of `count` values into the next time step. `strides`: how many elements further the next one in each
     * dimension lies, for a block inside a larger array. */
    template <class T>
    void put(const std::string &name, const T *data, const Extents &count, const Extents &strides = {}) {
        if (strides.is_given() && strides.num() != count.num()) refuse(name, "strides and count", strides, count);
        const int num = count.num();
        check(stream_put_array(handle_, name.c_str(), dtype_of<T>(), num, count.data(), strides.data(), data), handle_);
    }

    /* A contiguous array. Without `count` it is the declared block, or the whole field. */
    template <class T>
    void put(const std::string &name, const std::vector<T> &values, const Extents &count = {}) {
        static_assert(!std::is_same_v<T, bool>, "a std::vector<bool> holds bits: use a std::vector<unsigned char>");
        put_values(name, values.data(), values.size(), count);
    }

    template <class T, std::size_t num>
    void put(const std::string &name, const std::array<T, num> &values, const Extents &count = {}) {
        put_values(name, values.data(), num, count);
    }

    /* A field that is one number: of the shape [] or [1]. */
    template <class T, class = std::enable_if_t<is_scalar<T>>>
    void put(const std::string &name, const T &value) {
        put_values(name, &value, 1, {});
    }

    /* Send what was put as one sample. Blocks while the server has no room. false: the study has ended and wants
     * nothing more; parallel codes learn this at different steps, and must agree before they leave their loop. */
    bool send(std::int64_t time_step) { return check(stream_send(handle_, time_step), handle_) != STREAM_STOP; }

    /* Finish this simulation and become the next one; false: none is left. */
    bool next() {
        declared_.clear();
        return check(stream_next(handle_), handle_) != STREAM_STOP;
    }

    /* Withdraw what was sent, because the run is not worth learning from; it is not tried again. To be called before
     * the last time step is sent; once all have arrived, it is refused. */
    void invalidate(const std::string &reason) { check(stream_invalidate(handle_, reason.c_str()), handle_); }

    /* Wait until all that was sent has arrived, and leave. A second call does nothing. */
    void finish() { check(stream_finish(&handle_), nullptr); }

    /* Leave without finishing. */
    void abandon() { check(stream_abandon(&handle_), nullptr); }

    /* Why the study has ended, or "". */
    std::string stop_reason() const { return handle_ ? stream_stop_reason(handle_) : ""; }

    /* For calls of stream_client.h; nullptr after finish. */
    stream_simulation *handle() const noexcept { return handle_; }

private:
    static int check(int result, const stream_simulation *handle) {
        if (result < 0) throw Error(result, stream_error(handle));
        return result;
    }

    [[noreturn]] static void refuse(const std::string &name, const char *what, const Extents &a, const Extents &b) {
        const std::string numbers = std::to_string(a.num()) + " and " + std::to_string(b.num());
        throw Error(STREAM_ERROR_ARGUMENT, "field '" + name + "': " + what + " differ in their dimensions: " + numbers);
    }

    void declare(const std::string &name, stream_dtype dtype, const Extents &shape, const Extents &offset,
                 const Extents &count) {
        if (offset.is_given() && offset.num() != shape.num()) refuse(name, "shape and offset", shape, offset);
        if (count.is_given() && count.num() != shape.num()) refuse(name, "shape and count", shape, count);
        const int num = shape.num();
        check(stream_declare_field(handle_, name.c_str(), dtype, num, shape.data(), offset.data(), count.data()),
              handle_);
        if (count.is_given()) declared_[name] = count;
    }

    template <class T>
    void put_values(const std::string &name, const T *values, std::size_t num, const Extents &count) {
        const Extents block = count.is_given() ? count : block_of(name, static_cast<std::int64_t>(num));
        if (block.product() != static_cast<std::int64_t>(num)) {
            const std::string numbers = std::to_string(num) + " values, where " + std::to_string(block.product());
            throw Error(STREAM_ERROR_ARGUMENT, "field '" + name + "': " + numbers + " are needed");
        }
        put(name, values, block);
    }

    /* The dimensions of an array of which only the number of values is known. */
    Extents block_of(const std::string &name, std::int64_t num) const {
        const auto found = declared_.find(name);
        if (found != declared_.end()) return found->second;
        std::array<std::int64_t, STREAM_MAX_DIMENSIONS> shape{};
        const int ndim = stream_field_shape(handle_, name.c_str(), shape.data());
        if (ndim >= 0) {
            const Extents whole(std::vector<std::int64_t>(shape.begin(), shape.begin() + ndim));
            if (whole.product() == num) return whole;
        }
        return num;
    }

    stream_simulation *handle_ = nullptr;
    std::map<std::string, Extents> declared_;
};

}  // namespace stream

#endif
