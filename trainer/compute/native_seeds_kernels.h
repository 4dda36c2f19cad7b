// Loops of native_seeds.h over the pixels of one seed and its host, included once for each set of instructions by
// native_convolution.cpp. The lanes of a vector are channels; the host's pixels are `step` numbers apart, the
// seed's lie one behind the other.

namespace KERNELS {

// e to the power of v <= 88, to one unit in the last place or two; as Cephes' expf.
template <int L> static inline Vector<L> exponential(Vector<L> v) {
    typedef int Whole __attribute__((vector_size(4 * L)));
    const Vector<L> low = Vector<L>{} - 87.0f;
    v = v < low ? low : v;
    const Vector<L> magic = Vector<L>{} + 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
    const Vector<L> power = (v * 1.44269504f + magic) - magic;
    const Vector<L> rest = (v - power * 0.693359375f) + power * 2.12194440e-4f;
    Vector<L> sum = Vector<L>{} + 1.9875691500e-4f;
    for (const float factor : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 0.5f})
        sum = sum * rest + factor;
    sum = (sum * rest) * rest + (rest + 1.0f);
    const Whole bits = (__builtin_convertvector(power, Whole) + 127) << 23;
    Vector<L> scale;
    __builtin_memcpy(&scale, &bits, sizeof scale);
    return sum * scale;
}

// tanh, by a polynomial near 0 and by `exponential` elsewhere; as Cephes' tanhf. NaN stays NaN.
template <int L> static inline Vector<L> tangent(Vector<L> v) {
    const Vector<L> size = v < 0.0f ? -v : v;
    const Vector<L> capped = size > 10.0f ? Vector<L>{} + 10.0f : size;
    const Vector<L> far = 1.0f - 2.0f / (exponential<L>(capped + capped) + 1.0f);
    const Vector<L> square = v * v;
    Vector<L> sum = Vector<L>{} - 5.70498872745e-3f;
    for (const float factor : {2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f, -3.33332819422e-1f})
        sum = sum * square + factor;
    const Vector<L> near = v + (v * square) * sum;
    return size < 0.625f ? near : v < 0.0f ? -far : far;
}

static void take_pixels(const float *host, long step, int pixels, int channels, float *x) {
    FOR_CHANNELS({
        for (int p = 0; p < pixels; p++) {
            __builtin_prefetch(host + p * step + c + AHEAD_FLOATS);
            store<L>(x + (long)p * channels + c, load_some<L>(host + p * step + c, count), count);
        }
    })
}

// host += x + y.
static void add_pixels(float *host, long step, int pixels, int channels, const float *x, const float *y) {
    FOR_CHANNELS({
        for (int p = 0; p < pixels; p++) {
            float *const to = host + p * step + c;
            const long at = (long)p * channels + c;
            store<L>(to, load_some<L>(to, count) + (load_some<L>(x + at, count) + load_some<L>(y + at, count)), count);
        }
    })
}

// host += by * (s - x), or by * x * tanh(s - x).
static void blend_pixels(float *host, long step, int pixels, int channels, const float *x, const float *s, float by,
                         bool multiply) {
    FOR_CHANNELS({
        for (int p = 0; p < pixels; p++) {
            const long at = (long)p * channels + c;
            const Vector<L> here = load_some<L>(x + at, count);
            Vector<L> change = load_some<L>(s + at, count) - here;
            if (multiply) change = tangent<L>(change) * here;
            store<L>(host + p * step + c, load_some<L>(host + p * step + c, count) + by * change, count);
        }
    })
}

// The gradients of s and x by that of the host: those of the blend alone.
static void derive_pixels(const float *grad, long step, int pixels, int channels, const float *x, const float *s,
                          float by, bool multiply, float *to_s, float *to_x) {
    FOR_CHANNELS({
        for (int p = 0; p < pixels; p++) {
            const long at = (long)p * channels + c;
            const Vector<L> scaled = by * load_some<L>(grad + p * step + c, count);
            Vector<L> of_s = scaled;
            Vector<L> of_x = -scaled;
            if (multiply) {
                const Vector<L> here = load_some<L>(x + at, count);
                const Vector<L> t = tangent<L>(load_some<L>(s + at, count) - here);
                of_s = scaled * here * (1.0f - t * t);
                of_x = scaled * t - of_s;
            }
            store<L>(to_s + at, of_s, count);
            store<L>(to_x + at, of_x, count);
        }
    })
}

// sums[c] = the sum over the pixels of grad * (s - x), or of grad * s where there is no x.
static void sum_products(const float *grad, const float *s, const float *x, int pixels, int channels, float *sums) {
    FOR_CHANNELS({
        sum_chains<L>(pixels, sums + c, count, [&](int p) {
            const long at = (long)p * channels + c;
            const Vector<L> there = load_some<L>(s + at, count);
            return load_some<L>(grad + at, count) * (x ? there - load_some<L>(x + at, count) : there);
        });
    })
}

// out = y * factor. (Where a product may be added to or not, compilers differ in how often it is rounded.)
static void scale_numbers(const float *y, float factor, int channels, float *out) {
    FOR_CHANNELS({ store<L>(out + c, load_some<L>(y + c, count) * factor, count); })
}

// out = x + y * factor.
static void add_scaled(const float *x, const float *y, float factor, int channels, float *out) {
    FOR_CHANNELS({ store<L>(out + c, load_some<L>(x + c, count) + load_some<L>(y + c, count) * factor, count); })
}
#undef FOR_CHANNELS

}  // namespace KERNELS
