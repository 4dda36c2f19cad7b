// Norms behind a convolution, of one network's channels: the loops of native_convolution.cpp that are included
// once for each set of instructions. The lanes of a vector are channels; sums go over pixels, four chains for
// each channel or two for each few pixels, so that the width of a vector changes no bit.

namespace KERNELS {

constexpr int CHAINS = 4;
constexpr int NEAR_PIXELS = 8;  // that are visited for one vector of channels before the next one's

// sums[c] = the sum of term(pixel) over the pixels, by four chains.
template <int L, typename Term> static inline void sum_chains(int pixels, float *sums, int count, Term term) {
    Vector<L> sum[CHAINS] = {};
    int p = 0;
    for (; p + CHAINS <= pixels; p += CHAINS)
        for (int k = 0; k < CHAINS; k++) sum[k] += term(p + k);
    for (; p < pixels; p++) sum[0] += term(p);
    store<L>(sums, (sum[0] + sum[1]) + (sum[2] + sum[3]), count);
}

// take(pixel, chain) for the pixels from an even one on, by two chains; a number that the compiler does not know
// in the place of the chain would keep its sums in memory.
template <typename Take> static inline __attribute__((always_inline)) void take_by_two(int first, int end, Take take) {
    int p = first;
    for (; p + 2 <= end; p += 2) {
        take(p, 0);
        take(p + 1, 1);
    }
    if (p < end) take(p, 0);
}

static void sum_values(const float *y, long step, int pixels, int channels, float *sums) {
    FOR_CHANNELS({
        sum_chains<L>(pixels, sums + c, count, [&](int p) { return load_some<L>(y + p * step + c, count); });
    })
}

static void sum_squares(const float *y, long step, int pixels, int channels, const float *center, float *sums) {
    FOR_CHANNELS({
        const Vector<L> middle = load_some<L>(center + c, count);
        sum_chains<L>(pixels, sums + c, count, [&](int p) {
            const Vector<L> off = load_some<L>(y + p * step + c, count) - middle;
            return off * off;
        });
    })
}

template <int L> static inline Vector<L> positive(Vector<L> v) { return v < 0.0f ? Vector<L>{} : v; }

// out = relu(y * factor + offset), or skip + gain times that.
static void apply_norm(const float *y, long step, int pixels, int channels, const float *factor,
                       const float *offset, const float *skip, float gain, float *out) {
    for (int first = 0; first < pixels; first += NEAR_PIXELS) FOR_CHANNELS({
        const int end = first + NEAR_PIXELS < pixels ? first + NEAR_PIXELS : pixels;
        const Vector<L> a = load_some<L>(factor + c, count);
        const Vector<L> b = load_some<L>(offset + c, count);
        for (int p = first; p < end; p++) {
            const long at = p * step + c;
            __builtin_prefetch(y + at + AHEAD_FLOATS);
            const Vector<L> made = positive<L>(load_some<L>(y + at, count) * a + b);
            store<L>(out + at, skip ? load_some<L>(skip + at, count) + gain * made : made, count);
        }
    })
}

// out = y * factor + offset.
static void apply_affine(const float *y, long step, int pixels, int channels, const float *factor,
                         const float *offset, float *out) {
    FOR_CHANNELS({
        const Vector<L> a = load_some<L>(factor + c, count);
        const Vector<L> b = load_some<L>(offset + c, count);
        for (int p = 0; p < pixels; p++) {
            const long at = p * step + c;
            store<L>(out + at, load_some<L>(y + at, count) * a + b, count);
        }
    })
}

// Sums of a gradient, of it times the normed value, and of it times what the norm changes.
static void sum_changes(const float *grad, const float *y, long step, int pixels, int channels,
                        const NormFactors &by, float *ones, float *normeds, float *changes) {
    FOR_CHANNELS({
        const Vector<L> a = load_some<L>(by.factor + c, count);
        const Vector<L> b = load_some<L>(by.offset + c, count);
        const Vector<L> mean = load_some<L>(by.mean + c, count);
        const Vector<L> inverse = load_some<L>(by.inverse + c, count);
        Vector<L> one[2] = {};
        Vector<L> normed[2] = {};
        Vector<L> change[2] = {};
        take_by_two(0, pixels, [&](int p, int k) {
            const Vector<L> value = load_some<L>(y + p * step + c, count);
            const Vector<L> g = load_some<L>(grad + p * step + c, count);
            one[k] += g;
            normed[k] += g * ((value - mean) * inverse);
            change[k] += g * (value * a + b - value);
        });
        store<L>(ones + c, one[0] + one[1], count);
        store<L>(normeds + c, normed[0] + normed[1], count);
        store<L>(changes + c, change[0] + change[1], count);
    })
}

// The gradient of y: g * direct - less - normed * less_normed.
static void spread_changes(const float *grad, const float *y, long step, int pixels, int channels,
                           const NormFactors &by, const float *direct, const float *less,
                           const float *less_normed, float *out) {
    FOR_CHANNELS({
        const Vector<L> a = load_some<L>(direct + c, count);
        const Vector<L> mean = load_some<L>(by.mean + c, count);
        const Vector<L> inverse = load_some<L>(by.inverse + c, count);
        const Vector<L> less_one = load_some<L>(less + c, count);
        const Vector<L> less_by = load_some<L>(less_normed + c, count);
        for (int p = 0; p < pixels; p++) {
            const long at = p * step + c;
            const Vector<L> normed = (load_some<L>(y + at, count) - mean) * inverse;
            store<L>(out + at, load_some<L>(grad + at, count) * a - less_one - normed * less_by, count);
        }
    })
}

// Sums of the gradient t behind the ReLU: of t, of t times the normed value, and of what the gain multiplies.
static void sum_gradients(const float *grad, const float *y, long step, int pixels, int channels,
                          const NormFactors &by, float gain, float *ones, float *normeds, float *gains) {
    for (float *sums : {ones, normeds, gains})
        if (sums) __builtin_memset(sums, 0, sizeof(float) * channels);
    for (int first = 0; first < pixels; first += NEAR_PIXELS) FOR_CHANNELS({
        const int end = first + NEAR_PIXELS < pixels ? first + NEAR_PIXELS : pixels;
        const Vector<L> a = load_some<L>(by.factor + c, count);
        const Vector<L> b = load_some<L>(by.offset + c, count);
        const Vector<L> mean = load_some<L>(by.mean + c, count);
        const Vector<L> inverse = load_some<L>(by.inverse + c, count);
        Vector<L> one[2] = {};
        Vector<L> normed[2] = {};
        Vector<L> made[2] = {};
        const auto take = [&](int p, int k) {
            __builtin_prefetch(y + p * step + c + AHEAD_FLOATS);
            __builtin_prefetch(grad + p * step + c + AHEAD_FLOATS);
            const Vector<L> value = load_some<L>(y + p * step + c, count);
            const Vector<L> g = load_some<L>(grad + p * step + c, count);
            const Vector<L> out = value * a + b;
            const Vector<L> t = out > 0.0f ? gain * g : Vector<L>{};
            one[k] += t;
            normed[k] += t * ((value - mean) * inverse);
            if (gains) made[k] += g * positive<L>(out);
        };
        take_by_two(first, end, take);
        store<L>(ones + c, load_some<L>(ones + c, count) + (one[0] + one[1]), count);
        store<L>(normeds + c, load_some<L>(normeds + c, count) + (normed[0] + normed[1]), count);
        if (gains) store<L>(gains + c, load_some<L>(gains + c, count) + (made[0] + made[1]), count);
    })
}

// The gradient of y: a t - less - normed * less_normed; written as `at` says, what lies between its rows is 0
// already.
static void spread_gradients(const float *grad, const float *y, long step, int channels, const NormFactors &by,
                             float gain, const float *less, const float *less_normed, const Layout &at, int image,
                             float *out) {
    const int width = at.width;
    const long column = at.column * channels;
    FOR_CHANNELS({
        const Vector<L> a = load_some<L>(by.factor + c, count);
        const Vector<L> b = load_some<L>(by.offset + c, count);
        const Vector<L> mean = load_some<L>(by.mean + c, count);
        const Vector<L> inverse = load_some<L>(by.inverse + c, count);
        const Vector<L> less_one = load_some<L>(less + c, count);
        const Vector<L> less_by = load_some<L>(less_normed + c, count);
        const float *from = y + c;
        const float *of = grad + c;
        for (int h = 0; h < at.height; h++) {
            float *to = out + at.place(image, h, 0) * channels + c;
            for (int w = 0; w < width; w++, from += step, of += step, to += column) {
                __builtin_prefetch(from + AHEAD_FLOATS);
                __builtin_prefetch(of + AHEAD_FLOATS);
                const Vector<L> value = load_some<L>(from, count);
                const Vector<L> t = value * a + b > 0.0f ? gain * load_some<L>(of, count) : Vector<L>{};
                const Vector<L> normed = (value - mean) * inverse;
                store<L>(to, a * t - less_one - normed * less_by, count);
            }
        }
    })
}

}  // namespace KERNELS
