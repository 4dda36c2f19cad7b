// The rows of a map [pixels, n, C] that seeds take and give back, see native_rows.py; included by
// native_convolution.cpp. Each number goes through the roundings that torch gives it, one after the other: these
// loops are compiled without fused multiply-adds.

namespace {

// A call; rows are the k of a segment, of which the blocks are those from `start` to `stop`.
struct RowCall {
    float *host;  // [pixels, n, C], or its gradient
    float *x;     // [pixels, k, C], like s; to_x and to_s are their gradients
    const float *s, *tanh;  // tanh [pixels, stop - start, C]; 0 = the seeds are added
    const float *strength;  // [k]
    const long long *rows;  // [k]
    const unsigned char *audible;  // [k]
    float *to_x, *to_s;
    long long pixels, n, k, channels, start, stop, isolated;

    const float *of_host(long p, long j) const { return host + (p * n + rows[j]) * channels; }
    float *of_host(long p, long j) { return host + (p * n + rows[j]) * channels; }
    long place(long p, long j) const { return (p * k + j) * channels; }
    const float *of_tanh(long p, long j) const {
        return tanh + (p * (stop - start) + j - start) * channels;
    }
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

// host += strength * (s - x), or strength * (tanh * x); not where the strength is 0, whatever the rest is.
template <int C> void blend_rows(RowCall &call) {
    const long channels = C ? C : call.channels;
    for (long p = 0; p < call.pixels; p++)
        for (long j = call.start; j < call.stop; j++) {
            const float by = call.strength[j];
            if (by == 0.0f) continue;
            float *const host = call.of_host(p, j);
            const float *const x = call.x + call.place(p, j), *const s = call.s + call.place(p, j);
            if (call.tanh) {
                const float *const t = call.of_tanh(p, j);
                for (long c = 0; c < channels; c++) host[c] += by * (t[c] * x[c]);
            } else {
                for (long c = 0; c < channels; c++) host[c] += by * (s[c] - x[c]);
            }
        }
}

// The gradients of x and s that the host's gives; an isolated seed gets that of the host as it is.
template <int C> void derive_rows(RowCall &call) {
    const long channels = C ? C : call.channels;
    for (long p = 0; p < call.pixels; p++)
        for (long j = call.start; j < call.stop; j++) {
            const float *const grad = call.of_host(p, j);
            const long at = call.place(p, j);
            float *const to_s = call.to_s + at, *const to_x = call.to_x ? call.to_x + at : nullptr;
            if (call.isolated) {
                memcpy(to_s, grad, sizeof(float) * channels);
                if (to_x) memset(to_x, 0, sizeof(float) * channels);
                continue;
            }
            const float by = call.strength[j];
            const float *const x = call.x + at;
            if (call.tanh) {
                const float *const t = call.of_tanh(p, j);
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
        }
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
