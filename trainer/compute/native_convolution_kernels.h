// The loops of native_convolution.cpp, included once for each set of instructions: KERNELS names the namespace,
// WIDE says whether there are vectors of 16 numbers, and 32 registers for them.
//
// The lanes of a vector are output channels. Every output is one chain of fused multiply-adds, over the rows and
// columns under the kernel and the input channels, in that order; a gradient of a weight is one chain for each
// block of images. Neither the width of a vector nor how many outputs are computed together changes a bit.

namespace KERNELS {

template <int L> struct Lanes {
    typedef float type __attribute__((vector_size(4 * L)));
};
template <int L> using Vector = typename Lanes<L>::type;

template <int L> static inline Vector<L> load(const float *from) {
    Vector<L> v;
    __builtin_memcpy(&v, from, sizeof v);
    return v;
}
// The first `count` lanes.
template <int L> static inline void store(float *to, Vector<L> v, int count) {
    if (count >= L) __builtin_memcpy(to, &v, sizeof v);
    else __builtin_memcpy(to, &v, sizeof(float) * count);
}

template <int L> static inline Vector<L> load_some(const float *from, int count) {
    if (count >= L) return load<L>(from);
    Vector<L> v{};
    __builtin_memcpy(&v, from, sizeof(float) * count);
    return v;
}

// Whole vectors have a loop of their own, which asks for no count.
#define FOR_CHANNELS(...)                                                                                   \
    for (int c = 0; c < channels;) {                                                                         \
        const int left = channels - c;                                                                       \
        if (WIDE && left >= 16) {                                                                            \
            constexpr int L = WIDE ? 16 : 8, count = L;                                                      \
            __VA_ARGS__ c += L;                                                                                     \
        } else if (left >= 8) {                                                                              \
            constexpr int L = 8, count = L;                                                                  \
            __VA_ARGS__ c += L;                                                                                     \
        } else {                                                                                             \
            constexpr int L = 8;                                                                             \
            const int count = left;                                                                          \
            __VA_ARGS__ c += L;                                                                                     \
        }                                                                                                    \
    }

// Copy one network's channels of some images into `out`, as `at` lays them out; what lies between its rows is 0
// already. C = 0: any number of them.
template <int C> static void pack(const Layout &at, int images, const float *x, const Channels &from, float *out) {
    const int channels = C ? C : from.count;
    for (int b = 0; b < images; b++)
        for (int h = 0; h < at.height; h++) {
            const float *s = x + (long)(b * at.height + h) * at.width * from.step;
            float *o = out + at.place(b, h, 0) * channels;
            for (int w = 0; w < at.width; w++, s += from.step, o += at.column * channels)
                __builtin_memcpy(o, s, sizeof(float) * channels);
        }
}

// P outputs whose inputs lie one behind the other, V vectors of channels each. CI = 0: any number of inputs.
template <int L, int V, int CI, int P>
static inline void tile(const Taps &taps, const Filter &by, const float *x, float *y, long step, int count) {
    const int channels = CI ? CI : by.inputs;
    Vector<L> sum[P][V];  // in registers, as each loop over them is unrolled
#pragma GCC unroll 16
    for (int p = 0; p < P; p++)
        for (int v = 0; v < V; v++) sum[p][v] = Vector<L>{};
    for (int kh = taps.top; kh < taps.bottom; kh++)
        for (int kw = taps.left; kw < taps.right; kw++) {
            const float *s = x + (kh * taps.row + kw * taps.column) * channels;
            const float *f = by.weight + (long)(kh * by.kernel + kw) * channels * (V * L);
#pragma GCC unroll 4
            for (int c = 0; c < channels; c++, f += V * L) {
                Vector<L> factor[V];
                for (int v = 0; v < V; v++) factor[v] = load<L>(f + v * L);
#pragma GCC unroll 16
                for (int p = 0; p < P; p++) {
                    const float value = s[p * channels + c];
                    for (int v = 0; v < V; v++) sum[p][v] += value * factor[v];
                }
            }
        }
    if (by.bias)
        for (int v = 0; v < V; v++) {
            const Vector<L> shift = load<L>(by.bias + v * L);
#pragma GCC unroll 16
            for (int p = 0; p < P; p++) sum[p][v] += shift;
        }
    if (by.relu)
#pragma GCC unroll 16
        for (int p = 0; p < P; p++)
            for (int v = 0; v < V; v++) sum[p][v] = sum[p][v] < 0.0f ? Vector<L>{} : sum[p][v];
#pragma GCC unroll 16
    for (int p = 0; p < P; p++)
        for (int v = 0; v < V; v++)
            if (V == 1 || count > v * L) store<L>(y + p * step + v * L, sum[p][v], count - v * L);
}

template <int L, int V, int CI>
static void run(const Taps &taps, const Filter &by, const float *x, float *y, long step, int count, int length) {
    const int channels = CI ? CI : by.inputs;
    int at = 0;
#define TILES(P)                                                                                             \
    for (; at + P <= length; at += P)                                                                        \
        tile<L, V, CI, P>(taps, by, x + (long)at * channels, y + at * step, step, count);
    if constexpr (WIDE && V == 1 && CI) { TILES(16) }
    if constexpr (WIDE || V == 1) {
        if (length % 8 && length % 7 == 0) { TILES(7) }
        TILES(8)
    }
    TILES(4) TILES(2) TILES(1)
#undef TILES
}

// One network's convolution of packed images.
template <int L, int V, int CI>
static void convolve(const Layout &at, int images, const float *packed, Filter by, float *y, const Channels &to) {
    const int channels = CI ? CI : by.inputs, width = V * L, half = by.kernel / 2;
    for (int first = 0; first < to.count; first += width) {
        for (int h = 0; h < at.height; h++) {
            Taps taps{at.row, at.column, half - h, at.height + half - h, 0, by.kernel};
            if (taps.top < 0) taps.top = 0;
            if (taps.bottom > by.kernel) taps.bottom = by.kernel;
            if (!at.by_image) {
                for (int b = 0; b < images; b++) {
                    const float *s = packed + at.place(b, h - half, -half) * channels;
                    float *o = y + (long)(b * at.height + h) * at.width * to.step + first;
                    run<L, V, CI>(taps, by, s, o, to.step, to.count - first, at.width);
                }
                continue;
            }
            for (int w = 0; w < at.width; w++) {
                taps.left = w < half ? half - w : 0;
                taps.right = at.width + half - w < by.kernel ? at.width + half - w : by.kernel;
                const float *s = packed + at.place(0, h - half, w - half) * channels;
                float *o = y + (long)(h * at.width + w) * to.step + first;
                run<L, V, CI>(taps, by, s, o, (long)at.height * at.width * to.step, to.count - first, images);
            }
        }
        by.weight += (long)by.kernel * by.kernel * channels * width;
        if (by.bias) by.bias += width;
    }
}

template <int L, int V, int CB, int K> struct Sums {
    Vector<L> at[K][CB][V];
};

// Add the products of `length` neighbouring pixels: K neighbouring columns of the kernel, CB inputs, V vectors.
template <int L, int V, int CI, int CB, int K>
static inline void add_products(Sums<L, V, CB, K> &sum, const float *x, int inputs, const float *grad,
                                int outputs, int length) {
    const int channels = CI ? CI : inputs;
#pragma GCC unroll 2
    for (int i = 0; i < length; i++, x += channels, grad += outputs) {
        Vector<L> g[V];
        for (int v = 0; v < V; v++) g[v] = load<L>(grad + v * L);
#pragma GCC unroll 3
        for (int k = 0; k < K; k++)
#pragma GCC unroll 8
            for (int c = 0; c < CB; c++)
                for (int v = 0; v < V; v++) sum.at[k][c][v] += x[k * channels + c] * g[v];
    }
}

// The part of a block of images in the gradients of CB inputs' weights at K columns of the kernel.
template <int L, int V, int CI, int CB, int K>
static void weigh(const Layout &at, int images, const float *x, int inputs, const float *grad, int outputs,
                  int kernel, int kh, int kw, float *total) {
    const int channels = CI ? CI : inputs, half = kernel / 2;
    Sums<L, V, CB, K> sum{};
    const int top = kh < half ? half - kh : 0;
    const int bottom = at.height + half - kh < at.height ? at.height + half - kh : at.height;
    if (!at.by_image) {
        for (int b = 0; b < images; b++)
            for (int h = top; h < bottom; h++)
                add_products<L, V, CI, CB, K>(sum, x + at.place(b, h + kh - half, kw - half) * channels, inputs,
                                              grad + at.place(b, h, 0) * outputs, outputs, at.width);
    } else {
        const int left = kw < half ? half - kw : 0;
        const int right = at.width + half - kw < at.width ? at.width + half - kw : at.width;
        for (int h = top; h < bottom; h++)
            for (int w = left; w < right; w++)
                add_products<L, V, CI, CB, K>(sum, x + at.place(0, h + kh - half, w + kw - half) * channels,
                                              inputs, grad + at.place(0, h, w) * outputs, outputs, images);
    }
    for (int k = 0; k < K; k++)
        for (int c = 0; c < CB; c++)
            for (int v = 0; v < V; v++) {
                float *o = total + ((long)k * channels + c) * (V * L) + v * L;
                store<L>(o, load<L>(o) + sum.at[k][c][v], L);
            }
}

// One network's gradients of weights from packed images, added to total [chunk, tap, input, V*L].
template <int L, int V, int CI>
static void derive(const Layout &at, int images, const float *x, int inputs, const float *grad, int outputs,
                   int kernel, float *total) {
    constexpr int FEW = V == 1 || WIDE ? 8 : 4;
    constexpr int CB = CI == 0 ? 1 : CI < FEW ? CI : FEW;
    const int channels = CI ? CI : inputs;
    for (int first = 0; first < outputs; first += V * L)
        for (int kh = 0; kh < kernel; kh++)
            for (int kw = 0; kw < kernel;) {
                const bool three = kernel == 3 && !at.by_image && CB * V <= (WIDE ? 8 : 3);
                for (int c = 0; c < channels; c += CB) {
                    float *o = total + c * (V * L);
                    if constexpr (CB * V <= (WIDE ? 8 : 3)) {
                        if (three) {
                            weigh<L, V, CI, CB, 3>(at, images, x + c, inputs, grad + first, outputs, kernel, kh,
                                                   kw, o);
                            continue;
                        }
                    }
                    weigh<L, V, CI, CB, 1>(at, images, x + c, inputs, grad + first, outputs, kernel, kh, kw, o);
                }
                const int columns = three ? 3 : 1;
                kw += columns;
                total += (long)columns * channels * (V * L);
            }
}

// A pixel's chain over the rows from `top` on and the columns [begin, end) under a kernel of K columns.
template <int L, int K>
static inline __attribute__((always_inline)) Vector<L> sum_taps(const float *x, long row, long step, int top, int bottom,
                                                                int begin, int end, const Vector<L> *factor, int count) {
    Vector<L> sum{};
#pragma GCC unroll 3
    for (int kh = top; kh < bottom; kh++)
#pragma GCC unroll 3
        for (int kw = begin; kw < end; kw++)
            sum += load_some<L>(x + kh * row + kw * step, count) * factor[kh * K + kw];
    return sum;
}

template <int L, int K>
static void convolve_depthwise_channels(const Geometry &at, const float *x, const float *weight, float *y, int count) {
    constexpr int half = K / 2;
    const long step = at.channels, row = step * at.width;
    Vector<L> factor[K * K];
    for (int t = 0; t < K * K; t++) factor[t] = load_some<L>(weight + t * step, count);
    for (int b = 0; b < at.batch; b++)
        for (int h = 0; h < at.height; h++) {
            const long place = (long)(b * at.height + h) * row;
            const int top = h < half ? half - h : 0, bottom = at.height + half - h < K ? at.height + half - h : K;
            const float *const s = x + place - half * (row + step);
            const auto edge = [&](int w) {
                const int begin = w < half ? half - w : 0, end = at.width + half - w < K ? at.width + half - w : K;
                store<L>(y + place + w * step,
                         sum_taps<L, K>(s + w * step, row, step, top, bottom, begin, end, factor, count), count);
            };
            int w = 0;
            for (; w < half; w++) edge(w);
            if (top == 0 && bottom == K)
                for (; w < at.width - half; w++)
                    store<L>(y + place + w * step,
                             sum_taps<L, K>(s + w * step, row, step, 0, K, 0, K, factor, count), count);
            for (; w < at.width; w++) edge(w);
        }
}

// One filter for each of `channels` channels: x, y [B, H, W, channels], weight [k*k, channels].
static void convolve_depthwise(const Geometry &at, const float *x, const float *weight, float *y) {
    const int channels = (int)at.channels;
    FOR_CHANNELS({
        if (at.kernel == 3) convolve_depthwise_channels<L, 3>(at, x + c, weight + c, y + c, count);
        else convolve_depthwise_channels<L, 1>(at, x + c, weight + c, y + c, count);
    })
}

// The columns [begin, end) under a kernel of K, of one row of it and one pixel of the gradient.
template <int L, int K>
static inline __attribute__((always_inline)) void add_taps(const float *grad, const float *x, long step, int begin,
                                                           int end, Vector<L> *sum, int count) {
    const Vector<L> here = load_some<L>(grad, count);
#pragma GCC unroll 3
    for (int kw = begin; kw < end; kw++) sum[kw] += load_some<L>(x + (kw - K / 2) * step, count) * here;
}

template <int L, int K>
static void derive_depthwise_channels(const Geometry &at, const float *x, const float *grad, float *total, int count) {
    constexpr int half = K / 2;
    const long step = at.channels, row = step * at.width;
    for (int b = 0; b < at.batch; b++)
        for (int kh = 0; kh < K; kh++) {
            Vector<L> sum[K] = {};
            for (int h = half > kh ? half - kh : 0; h < at.height && h + kh < at.height + half; h++) {
                const float *const g = grad + (long)(b * at.height + h) * row;
                const float *const s = x + (long)(b * at.height + h + kh - half) * row;
                const auto edge = [&](int w) {
                    const int begin = w < half ? half - w : 0, end = at.width + half - w < K ? at.width + half - w : K;
                    add_taps<L, K>(g + w * step, s + w * step, step, begin, end, sum, count);
                };
                int w = 0;
                for (; w < half; w++) edge(w);
                for (; w < at.width - half; w++) add_taps<L, K>(g + w * step, s + w * step, step, 0, K, sum, count);
                for (; w < at.width; w++) edge(w);
            }
            for (int kw = 0; kw < K; kw++) {
                float *const o = total + (kh * K + kw) * step;
                store<L>(o, load_some<L>(o, count) + sum[kw], count);
            }
        }
}

// Gradients [k*k, channels] of its weights, added to `total`, a chain for each image.
static void derive_depthwise(const Geometry &at, const float *x, const float *grad, float *total) {
    const int channels = (int)at.channels;
    FOR_CHANNELS({
        if (at.kernel == 3) derive_depthwise_channels<L, 3>(at, x + c, grad + c, total + c, count);
        else derive_depthwise_channels<L, 1>(at, x + c, grad + c, total + c, count);
    })
}

// The loops for so many inputs and outputs; the numbers that presets use have loops of their own.
template <int L, int V> static Loops loops_of(int inputs) {
#define CASE(CI)                                                                                             \
    if (inputs == CI || CI == 0) return {L, V, convolve<L, V, CI>, derive<L, V, CI>, pack<CI>, nullptr, nullptr};
    CASE(1) CASE(3) CASE(4) CASE(8) CASE(16) CASE(32) CASE(0)
#undef CASE
}

static Loops choose(int inputs, int outputs) {
#if WIDE
    if (outputs % 32 == 0) return loops_of<16, 2>(inputs);
    if (outputs % 16 == 0) return loops_of<16, 1>(inputs);
    Loops loops = loops_of<8, 1>(inputs);
    loops.convolve_planes = inputs == 3 ? convolve_planes<3> : inputs == 8 ? convolve_planes<8> : convolve_planes<0>;
    loops.pack_planes = pack_planes;
    return loops;
#else
    if (outputs % 16 == 0) return loops_of<8, 2>(inputs);
    return loops_of<8, 1>(inputs);
#endif
}

}  // namespace KERNELS
