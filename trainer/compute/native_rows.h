// Some hosts' channels of a map, see native_rows.py; included by native_convolution.cpp.

namespace {

struct RowCall {
    const float *from;      // [pixels, n, C]
    const long long *rows;  // [count], which of the n
    float *to;              // [pixels, count, C]
    long long pixels, n, count, channels;
};

template <int C> void take_rows(const RowCall &call) {
    const long long channels = C ? C : call.channels;
    long long first = 0;  // hosts at the beginning that stay where they are go in one piece
    while (first < call.count && call.rows[first] == first) first++;
    float *to = call.to;
    for (const float *from = call.from, *end = from + call.pixels * call.n * channels; from != end;
         from += call.n * channels) {
        memcpy(to, from, sizeof(float) * first * channels);
        to += first * channels;
        for (long long i = first; i < call.count; i++, to += channels)
            memcpy(to, from + call.rows[i] * channels, sizeof(float) * channels);
    }
}

PyObject *py_take_rows(PyObject *, PyObject *numbers) {
    constexpr int FIELDS = sizeof(RowCall) / sizeof(long long);
    RowCall call;
    static_assert(sizeof call == FIELDS * sizeof(long long));
    if (!PyTuple_Check(numbers) || !read_numbers(numbers, (long long *)&call, FIELDS)) return nullptr;
    Py_BEGIN_ALLOW_THREADS
    if (call.channels == 8) take_rows<8>(call);
    else if (call.channels == 16) take_rows<16>(call);
    else if (call.channels == 32) take_rows<32>(call);
    else take_rows<0>(call);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

}  // namespace
