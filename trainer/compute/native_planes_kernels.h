// Convolutions with eight outputs on maps whose rows are whole vectors, by AVX-512: a vector of outputs would be
// half full, so that the lanes are pixels of a row, and every input channel has rows of its own. Each output is
// the same chain of fused multiply-adds as in native_convolution_kernels.h, bit for bit.

namespace KERNELS {

constexpr int OUTPUTS = 8;

// Copy one network's channels of some images into `out`: row behind row as `at` lays them out, of each row one
// channel behind the other; what lies between rows is 0 already.
static void pack_planes(const Layout &at, int images, const float *x, const Channels &from, float *out) {
    for (int row = 0; row < images * at.height; row++) {
        const float *const s = x + (long)row * at.width * from.step;
        float *const o = out + row * at.row * from.count + at.edge;
        for (int c = 0; c < from.count; c++)
            for (int w = 0; w < at.width; w++) o[c * at.row + w] = s[w * from.step + c];
    }
}

// Write eight outputs of sixteen pixels as pixels of `count` outputs each.
static inline __attribute__((always_inline)) void store_pixels(const __m512 (&sum)[OUTPUTS], float *y, long step,
                                                               int count) {
    __m512 four[2][4];  // of outputs, for each fourth pixel
#pragma GCC unroll 2
    for (int k = 0; k < 2; k++) {
        const __m512d low[2] = {_mm512_castps_pd(_mm512_unpacklo_ps(sum[4 * k], sum[4 * k + 1])),
                                _mm512_castps_pd(_mm512_unpacklo_ps(sum[4 * k + 2], sum[4 * k + 3]))};
        const __m512d high[2] = {_mm512_castps_pd(_mm512_unpackhi_ps(sum[4 * k], sum[4 * k + 1])),
                                 _mm512_castps_pd(_mm512_unpackhi_ps(sum[4 * k + 2], sum[4 * k + 3]))};
        four[k][0] = _mm512_castpd_ps(_mm512_unpacklo_pd(low[0], low[1]));
        four[k][1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low[0], low[1]));
        four[k][2] = _mm512_castpd_ps(_mm512_unpacklo_pd(high[0], high[1]));
        four[k][3] = _mm512_castpd_ps(_mm512_unpackhi_pd(high[0], high[1]));
    }
    const __mmask8 whole = (__mmask8)((1u << count) - 1);
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        const __m512 first = _mm512_shuffle_f32x4(four[0][j], four[1][j], 0x44);
        const __m512 second = _mm512_shuffle_f32x4(four[0][j], four[1][j], 0xee);
        const __m512 pairs[2] = {_mm512_shuffle_f32x4(first, first, 0xd8),
                                 _mm512_shuffle_f32x4(second, second, 0xd8)};
#pragma GCC unroll 2
        for (int k = 0; k < 2; k++) {
            float *const to = y + (8 * k + j) * step;
            const __m256 behind = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(pairs[k]), 1));
            _mm256_mask_storeu_ps(to, whole, _mm512_castps512_ps256(pairs[k]));
            _mm256_mask_storeu_ps(to + 4 * step, whole, behind);
        }
    }
}

// R vectors of neighbouring pixels. CI = 0: any number of inputs.
template <int CI, int R>
static inline void plane_tile(const Taps &taps, const Filter &by, const float *x, float *y, long step, int count) {
    const int channels = CI ? CI : by.inputs;
    __m512 sum[R][OUTPUTS];
#pragma GCC unroll 2
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int o = 0; o < OUTPUTS; o++) sum[r][o] = _mm512_setzero_ps();
    for (int kh = taps.top; kh < taps.bottom; kh++)
        for (int kw = 0; kw < by.kernel; kw++) {
            const float *s = x + kh * taps.row * channels + kw;
            const float *f = by.weight + (long)(kh * by.kernel + kw) * channels * OUTPUTS;
#pragma GCC unroll 3
            for (int c = 0; c < channels; c++, s += taps.row, f += OUTPUTS) {
                __m512 value[R];
#pragma GCC unroll 2
                for (int r = 0; r < R; r++) value[r] = _mm512_loadu_ps(s + ROW_PIXELS * r);
#pragma GCC unroll 8
                for (int o = 0; o < OUTPUTS; o++)
#pragma GCC unroll 2
                    for (int r = 0; r < R; r++)
                        sum[r][o] = _mm512_fmadd_ps(value[r], _mm512_set1_ps(f[o]), sum[r][o]);
            }
        }
#pragma GCC unroll 2
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 8
        for (int o = 0; o < OUTPUTS; o++) {
            if (by.bias) sum[r][o] = _mm512_add_ps(sum[r][o], _mm512_set1_ps(by.bias[o]));
            if (by.relu) {
                const __mmask16 negative = _mm512_cmp_ps_mask(sum[r][o], _mm512_setzero_ps(), _CMP_LT_OQ);
                sum[r][o] = _mm512_mask_mov_ps(sum[r][o], negative, _mm512_setzero_ps());
            }
        }
        store_pixels(sum[r], y + ROW_PIXELS * r * step, step, count);
    }
}

// One network's convolution of what `pack_planes` made.
template <int CI>
static void convolve_planes(const Layout &at, int images, const float *packed, Filter by, float *y,
                            const Channels &to) {
    const int channels = CI ? CI : by.inputs, half = by.kernel / 2;
    for (int first = 0; first < to.count; first += OUTPUTS) {
        const int count = to.count - first < OUTPUTS ? to.count - first : OUTPUTS;
        for (int h = 0; h < at.height; h++) {
            Taps taps{at.row, at.column, half - h, at.height + half - h, 0, by.kernel};
            if (taps.top < 0) taps.top = 0;
            if (taps.bottom > by.kernel) taps.bottom = by.kernel;
            for (int b = 0; b < images; b++) {
                const float *const s = packed + (long)(b * at.height + h - half) * at.row * channels + at.edge - half;
                float *const o = y + (long)(b * at.height + h) * at.width * to.step + first;
                int w = 0;
                for (; w + 2 * ROW_PIXELS <= at.width; w += 2 * ROW_PIXELS)
                    plane_tile<CI, 2>(taps, by, s + w, o + w * to.step, to.step, count);
                for (; w < at.width; w += ROW_PIXELS)
                    plane_tile<CI, 1>(taps, by, s + w, o + w * to.step, to.step, count);
            }
        }
        by.weight += (long)by.kernel * by.kernel * channels * OUTPUTS;
        if (by.bias) by.bias += OUTPUTS;
    }
}

}  // namespace KERNELS
