// The rows of a map [pixels, n, C] that seeds take and give back, see native_rows.py; included by
// native_convolution.cpp. Each number goes through the roundings that torch gives it, one after the other: these
// loops are compiled without fused multiply-adds.

namespace {

// A call; rows are the k of a segment, of which the blocks are those from `start` to `stop`.
struct RowCall {
    float *host;  // [pixels, n, C], or its gradient
    float *x;     // [pixels, k, C], like s; to_x and to_s are their gradients
    const float *s, *tanh;  // tanh [pixels, stop - start, C]; 0 = the seeds are added
    const float *strength;  // [pixels / alike, k]
    const long long *rows;  // [k]
    const unsigned char *audible;  // [k]
    float *to_x, *to_s;
    float *sums;  // [pixels / alike, stop - start, C], 0 before, or null: the gradient of the strength by channel
    long long pixels, n, k, channels, start, stop, isolated;
    long long alike;  // so many neighbouring pixels have the same strength

    const float *of_host(long p, long j) const { return host + (p * n + rows[j]) * channels; }
    float *of_host(long p, long j) { return host + (p * n + rows[j]) * channels; }
    long place(long p, long j) const { return (p * k + j) * channels; }
    long place_in_part(long p, long j) const { return (p * (stop - start) + j - start) * channels; }
};

// Rows of the host into x. C = 0: any number of channels, as below.
template <int C> void take_rows(RowCall &call) {
    const long channels = C ? C : call.channels;
    for (long p = 0; p < call.pixels; p++)
        for (long j = call.start; j < call.stop; j++) {
            __builtin_prefetch(call.of_host(p, j) + AHEAD_FLOATS);
            memcpy(call.x + call.place(p, j), call.of_host(p, j), sizeof(float) * channels);
        }
}

// Visit each row of each pixel, with which of the strengths the pixel has.
template <typename Visit> void for_strengths(const RowCall &call, Visit visit) {
    for (long p = 0, i = 0; p < call.pixels; i++)
        for (const long end = p + call.alike; p < end; p++)
            for (long j = call.start; j < call.stop; j++) visit(p, j, i);
}

// host += strength * (s - x), or strength * (tanh * x); not where the strength is 0, whatever the rest is.
template <int C> void blend_rows(RowCall &call) {
    const long channels = C ? C : call.channels;
    for_strengths(call, [&](long p, long j, long i) {
        const float by = call.strength[i * call.k + j];
        if (by == 0.0f) return;
        float *const host = call.of_host(p, j);
        const float *const x = call.x + call.place(p, j), *const s = call.s + call.place(p, j);
        if (call.tanh) {
            const float *const t = call.tanh + call.place_in_part(p, j);
            for (long c = 0; c < channels; c++) host[c] += by * (t[c] * x[c]);
        } else {
            for (long c = 0; c < channels; c++) host[c] += by * (s[c] - x[c]);
        }
    });
}

// The gradients of the strengths by channel, the sums of the pixels one after the other.
template <int C> void sum_changes(const RowCall &call) {
    const long channels = C ? C : call.channels;
    for_strengths(call, [&](long p, long j, long i) {
        float *const sums = call.sums + call.place_in_part(i, j);
        const float *const grad = call.of_host(p, j), *const x = call.x + call.place(p, j);
        if (call.tanh) {
            const float *const t = call.tanh + call.place_in_part(p, j);
            for (long c = 0; c < channels; c++) sums[c] += grad[c] * (t[c] * x[c]);
        } else {
            const float *const s = call.s + call.place(p, j);
            for (long c = 0; c < channels; c++) sums[c] += grad[c] * (s[c] - x[c]);
        }
    });
}

// The gradients of x, s and strengths that the host's gives; an isolated seed gets that of the host as it is.
template <int C> void derive_rows(RowCall &call) {
    const long channels = C ? C : call.channels;
    if (call.sums && !call.isolated) sum_changes<C>(call);
    for_strengths(call, [&](long p, long j, long i) {
        const float *const grad = call.of_host(p, j);
        const long at = call.place(p, j);
        float *const to_s = call.to_s + at, *const to_x = call.to_x ? call.to_x + at : nullptr;
        if (call.isolated) {
            memcpy(to_s, grad, sizeof(float) * channels);
            if (to_x) memset(to_x, 0, sizeof(float) * channels);
            return;
        }
        const float by = call.strength[i * call.k + j];
        const float *const x = call.x + at;
        if (call.tanh) {
            const float *const t = call.tanh + call.place_in_part(p, j);
            for (long c = 0; c < channels; c++) {
                const float scaled = by * grad[c];
                to_s[c] = scaled * x[c] * (1.0f - t[c] * t[c]);
                to_x[c] = scaled * t[c] - to_s[c];
            }
        } else {
            for (long c = 0; c < channels; c++) {
                to_s[c] = by * grad[c];
                to_x[c] = -to_s[c];
            }
        }
    });
}

// Rows of x added to the host, those that are audible.
template <int C> void add_rows(RowCall &call) {
    const long channels = C ? C : call.channels;
    for (long p = 0; p < call.pixels; p++)
        for (long j = call.start; j < call.stop; j++) {
            if (call.audible && !call.audible[j]) continue;
            float *const host = call.of_host(p, j);
            const float *const x = call.x + call.place(p, j);
            for (long c = 0; c < channels; c++) host[c] += x[c];
        }
}

// Run one of the loops, of a number of channels that presets use, without Python's lock.
#define ROW_FUNCTION(name)                                                                                   \
    PyObject *py_##name(PyObject *, PyObject *numbers) {                                                     \
        RowCall call;                                                                                        \
        static_assert(sizeof call == ROW_FIELDS * sizeof(long long));                                        \
        if (!PyTuple_Check(numbers) || !read_numbers(numbers, (long long *)&call, ROW_FIELDS)) return nullptr; \
        Py_BEGIN_ALLOW_THREADS                                                                               \
        if (call.channels == 8) name<8>(call);                                                               \
        else if (call.channels == 16) name<16>(call);                                                        \
        else if (call.channels == 32) name<32>(call);                                                        \
        else name<0>(call);                                                                                  \
        Py_END_ALLOW_THREADS                                                                                 \
        Py_RETURN_NONE;                                                                                      \
    }
constexpr int ROW_FIELDS = sizeof(RowCall) / sizeof(long long);
ROW_FUNCTION(take_rows)
ROW_FUNCTION(blend_rows)
ROW_FUNCTION(derive_rows)
ROW_FUNCTION(add_rows)
#undef ROW_FUNCTION

}  // namespace
