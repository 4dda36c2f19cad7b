// What native_convolution.cpp and its loops share: how maps lie in memory, and what a call is told.

#include <cstring>

namespace {

constexpr int MAX_KERNEL = 3;
constexpr int SPARE_FLOATS = 64;      // behind a buffer, for vectors that begin in it
constexpr int BLOCK_FLOATS = 8192;    // of a buffer with large maps: most of a first cache
constexpr int BLOCK_IMAGES = 16;      // with small ones
constexpr int BLOCK_PIXELS = 64;      // of 1x1 kernels
constexpr float EPSILON = 1e-5f;      // of the norms, as torch.nn's
constexpr int AHEAD_FLOATS = 1024;    // how far ahead of a loop that waits for memory it is fetched
constexpr int ROW_PIXELS = 16;        // where rows are so long or twice, a vector may hold pixels of one
constexpr int MAX_PLANES = 8;         // inputs that are taken apart for that; more cost more than is gained
constexpr int MIN_ROW = 7;            // narrower maps are convolved image beside image

// Where a pixel lies in a buffer: row behind row, with zeros at both ends, or pixel behind pixel of all images.
struct Layout {
    int images, height, width, edge;
    bool by_image;
    long row, column;  // how many pixels further the next row and the next column are

    long place(int b, int h, int w) const {
        return by_image ? h * row + w * column + b : ((long)b * height + h) * row + edge + w;
    }
    long pixels() const { return by_image ? (long)height * row : (long)images * height * row; }
};

// One network's channels: how many, and how many numbers further the next pixel's are.
struct Channels {
    int count;
    long step;
};

// The part of a kernel that lies on the map, and how far apart its rows and columns are, in pixels.
struct Taps {
    long row, column;
    int top, bottom, left, right;
};

// Weights [chunk of outputs, kernel, kernel, inputs, outputs], and what is done with their sums.
struct Filter {
    const float *weight, *bias;
    int inputs, kernel;
    bool relu;
};

// A norm as y * factor + offset, and what it was made of.
struct NormFactors {
    const float *factor, *offset, *mean, *inverse;
};

struct Geometry {
    int batch, height, width, kernel;
    long channels;
};

struct Loops {
    int lanes, vectors;
    void (*convolve)(const Layout &, int images, const float *, Filter, float *, const Channels &);
    void (*derive)(const Layout &, int images, const float *, int, const float *, int, int, float *);
    void (*pack)(const Layout &, int images, const float *, const Channels &, float *);
    // Of planes, see native_planes_kernels.h; null where vectors are full without them.
    void (*convolve_planes)(const Layout &, int images, const float *, Filter, float *, const Channels &);
    void (*pack_planes)(const Layout &, int images, const float *, const Channels &, float *);

    int width() const { return lanes * vectors; }
    // Outputs rounded up to whole vectors.
    long padded(int outputs) const { return (long)(outputs + width() - 1) / width() * width(); }
};

enum Norm { NONE, OF_BATCH, OF_GROUPS };

// A call's tensors by the addresses that Python gives, in this order; 0 = there is none.
struct Tensors {
    float *x;
    const float *weight, *bias, *scale, *shift, *gain, *skip, *grad;
    float *raw;             // what the norm is given
    float *mean, *variance;  // of the norm: [n*O], or [B, n*groups]
    float *y, *to_x, *to_weight, *to_scale, *to_shift, *to_gain;
    // With a max pool in front, what it makes of `large` is x, and what it makes of `to_x` is `to_large`.
    const float *large;
    float *to_large;
    unsigned char *places;  // of 2x2 pixels, which is the largest; as x
};
constexpr int NUM_TENSORS = sizeof(Tensors) / sizeof(float *);

// The numbers of a call; weight is [n, O, I/groups, k, k], scale and shift [n, O], gain [n], one network's
// numbers so many `_step`s behind those of the one before. With a norm y = relu(norm(convolution)), or with a
// gain skip + gain * relu(norm(convolution)). `large_` is the size of the map in front of a max pool.
struct Sizes {
    long long batch, height, width, n, inputs, outputs, kernel, weight_step, scale_step, shift_step, gain_step;
    long long large_height, large_width, shared, depthwise, relu, norm;
};
constexpr int NUM_SIZES = sizeof(Sizes) / sizeof(long long);

struct Call : Tensors, Sizes {
    const struct InstructionSet *set;

    long area() const { return height * width; }
    long in_step() const { return shared ? inputs : n * inputs; }
    long out_step() const { return n * outputs; }
    // In images before the pool, whatever `batch` counts.
    int large_images() const { return (int)(batch * area() / ((large_height / 2) * (large_width / 2))); }
    const float *input(long g, long b) const { return x + b * area() * in_step() + (shared ? 0 : g * inputs); }
    long output(long g, long b) const { return b * area() * out_step() + g * outputs; }
    // Channels that are normed together: those of batch norm alone, of group norm eight or all.
    long together() const { return norm == OF_BATCH ? 1 : outputs % 8 == 0 ? 8 : outputs; }
    long norm_groups() const { return outputs / together(); }
    float gain_of(long g) const { return gain ? gain[g * gain_step] : 1.0f; }

    int block_images() const {
        long images = BLOCK_IMAGES;
        if (kernel == 1)
            images = BLOCK_PIXELS / area();
        else if (width >= MIN_ROW)
            images = BLOCK_FLOATS / (height * (width + 2) * (inputs > outputs ? inputs : outputs));
        if (images > batch) images = batch;
        return images < 1 ? 1 : (int)images;
    }
    // How a block of images lies in a buffer; with a 1x1 kernel it is one row of pixels.
    Layout layout(int images) const {
        if (kernel == 1) return {1, 1, images * (int)area(), 0, false, images * area(), 1};
        if (width < MIN_ROW) return {images, (int)height, (int)width, 0, true, width * images, images};
        return {images, (int)height, (int)width, 1, false, width + 2, 1};
    }
};

}  // namespace
