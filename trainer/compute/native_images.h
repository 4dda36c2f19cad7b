// Images as the inputs of hosts side by side, see native_images.py; included by native_convolution.cpp.

namespace {

struct ImageCall {
    const unsigned char *images;  // [M, pixels, C]
    const long long *index;       // [batch, n], which image
    const float *table;           // [C, 256], what a byte becomes
    float *out;                   // [batch, pixels, n, C]
    long long batch, n, pixels, channels;
};

constexpr long long BYTES = 256;

template <int C> void scale_images(const ImageCall &call) {
    const long long channels = C ? C : call.channels, row = call.n * channels;
    for (long long b = 0; b < call.batch; b++)
        for (long long i = 0; i < call.n; i++) {
            const unsigned char *image = call.images + call.index[b * call.n + i] * call.pixels * channels;
            float *out = call.out + b * call.pixels * row + i * channels;
            for (long long p = 0; p < call.pixels; p++, out += row, image += channels)
                for (long long c = 0; c < channels; c++) out[c] = call.table[c * BYTES + image[c]];
        }
}

PyObject *py_scale_images(PyObject *, PyObject *numbers) {
    constexpr int FIELDS = sizeof(ImageCall) / sizeof(long long);
    ImageCall call;
    static_assert(sizeof call == FIELDS * sizeof(long long));
    if (!PyTuple_Check(numbers) || !read_numbers(numbers, (long long *)&call, FIELDS)) return nullptr;
    Py_BEGIN_ALLOW_THREADS
    if (call.channels == 1) scale_images<1>(call);
    else if (call.channels == 3) scale_images<3>(call);
    else scale_images<0>(call);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

}  // namespace
