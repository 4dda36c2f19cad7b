// The max pool in front of a convolution: the loops of native_convolution.cpp that are included once for each set
// of instructions. The lanes of a vector are channels, of all networks side by side.

namespace KERNELS {

template <int L> struct Whole {
    typedef int type __attribute__((vector_size(4 * L)));
    typedef unsigned char bytes __attribute__((vector_size(L)));
};

// The first `count` lanes of the largest of 2x2 pixels, NaN before all, and which it is; of equal ones the first.
template <int L>
static inline void pool_pixel(const float *x, long column, long row, int count, float *y, unsigned char *place) {
    Vector<L> most = load_some<L>(x, count);
    typename Whole<L>::type which{};
    const long others[3] = {column, row, row + column};
    for (long place : {0L, column, row, row + column}) __builtin_prefetch(x + 2 * row + place);
#pragma GCC unroll 3
    for (int k = 0; k < 3; k++) {
        const Vector<L> value = load_some<L>(x + others[k], count);
        const typename Whole<L>::type taken = (value > most) | (value != value);
        most = taken ? value : most;
        which = taken ? typename Whole<L>::type{} + (k + 1) : which;
    }
    store<L>(y, most, count);
    if (!place) return;
    const auto bytes = __builtin_convertvector(which, typename Whole<L>::bytes);
    __builtin_memcpy(place, &bytes, count >= L ? L : count);
}

// `grad` where the largest pixel was, and 0 at the three others.
template <int L>
static inline void spread_pixel(const float *grad, const unsigned char *place, int count, long column, long row,
                                float *out) {
    typename Whole<L>::bytes bytes{};
    __builtin_memcpy(&bytes, place, count >= L ? L : count);
    const auto which = __builtin_convertvector(bytes, typename Whole<L>::type);
    const Vector<L> value = load_some<L>(grad, count);
    const long all[4] = {0, column, row, row + column};
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) store<L>(out + all[k], which == k ? value : Vector<L>{}, count);
}

// The largest of each 2x2 pixels of x [B, height, width, channels], odd edges left out; places may be null.
static void pool(const float *x, int batch, int height, int width, long channels, float *y, unsigned char *places) {
    constexpr int L = WIDE ? 16 : 8;
    const long row = width * channels, whole = channels / L * L;
    const int rest = (int)(channels - whole);
    for (int b = 0; b < batch; b++)
        for (int h = 0; h < height / 2; h++) {
            const float *s = x + (long)(b * height + 2 * h) * row;
            for (int w = 0; w < width / 2; w++, s += 2 * channels, y += channels) {
                for (long c = 0; c < whole; c += L)
                    pool_pixel<L>(s + c, channels, row, L, y + c, places ? places + c : nullptr);
                if (rest)
                    pool_pixel<L>(s + whole, channels, row, rest, y + whole, places ? places + whole : nullptr);
                if (places) places += channels;
            }
        }
}

// The gradient of `pool`: `out` is as x there.
static void unpool(const float *grad, const unsigned char *places, int batch, int height, int width, long channels,
                   float *out) {
    constexpr int L = WIDE ? 16 : 8;
    const long row = width * channels, whole = channels / L * L;
    const int rest = (int)(channels - whole);
    for (int b = 0; b < batch; b++, out += height * row) {
        for (int h = 0; h < height / 2; h++) {
            float *o = out + 2 * h * row;
            for (int w = 0; w < width / 2; w++, o += 2 * channels, grad += channels, places += channels) {
                for (long c = 0; c < whole; c += L) spread_pixel<L>(grad + c, places + c, L, channels, row, o + c);
                if (rest) spread_pixel<L>(grad + whole, places + whole, rest, channels, row, o + whole);
            }
            if (width % 2)
                for (int k = 0; k < 2; k++) __builtin_memset(o + k * row, 0, sizeof(float) * channels);
        }
        if (height % 2) __builtin_memset(out + (height - 1) * row, 0, sizeof(float) * row);
    }
}

}  // namespace KERNELS
