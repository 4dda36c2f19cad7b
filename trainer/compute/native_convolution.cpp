// Convolutions of n small networks side by side, on maps in channels_last memory: [B, H, W, n, C].
//
// Each network's channels are copied block by block of images into a buffer that stays in the caches, and are
// convolved there; see native_convolution_kernels.h for the order of the additions. A call uses the thread that
// makes it, without Python's lock (the GIL).

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstring>
#include <new>
#include <vector>

namespace {

constexpr int MAX_KERNEL = 3;
constexpr int SPARE_FLOATS = 64;      // behind a buffer, for vectors that begin in it
constexpr int BLOCK_FLOATS = 8192;    // of a buffer with large maps: most of a first cache
constexpr int BLOCK_IMAGES = 16;      // with small ones
constexpr int BLOCK_PIXELS = 256;     // of 1x1 kernels
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

struct Geometry {
    int batch, height, width, kernel;
    long channels;
};

struct Loops {
    int lanes, vectors;
    void (*convolve)(const Layout &, int images, const float *, Filter, float *, const Channels &);
    void (*derive)(const Layout &, int images, const float *, int, const float *, int, int, float *);
    void (*pack)(const Layout &, int images, const float *, const Channels &, float *);

    int width() const { return lanes * vectors; }
    // Outputs rounded up to whole vectors.
    long padded(int outputs) const { return (long)(outputs + width() - 1) / width() * width(); }
};

}  // namespace

#if defined(__x86_64__)
#if defined(__clang__)
#define TARGET_512 _Pragma("clang attribute push(__attribute__((target(\"avx512f,avx512vl,avx2,fma\"))), apply_to = function)")
#define TARGET_256 _Pragma("clang attribute push(__attribute__((target(\"avx2,fma\"))), apply_to = function)")
#define TARGET_END _Pragma("clang attribute pop")
#else
#define TARGET_512 _Pragma("GCC push_options") _Pragma("GCC target(\"avx512f,avx512vl,avx2,fma,prefer-vector-width=512\")")
#define TARGET_256 _Pragma("GCC push_options") _Pragma("GCC target(\"avx2,fma\")")
#define TARGET_END _Pragma("GCC pop_options")
#endif

namespace {
TARGET_512
#define KERNELS avx512
#define WIDE 1
#include "native_convolution_kernels.h"
#undef KERNELS
#undef WIDE
TARGET_END
TARGET_256
#define KERNELS avx2
#define WIDE 0
#include "native_convolution_kernels.h"
#undef KERNELS
#undef WIDE
TARGET_END

struct InstructionSet {
    const char *name;
    Loops (*choose)(int inputs, int outputs);
    void (*convolve_depthwise)(const Geometry &, const float *, const float *, float *);
    void (*derive_depthwise)(const Geometry &, const float *, const float *, float *);
};

constexpr InstructionSet SETS[] = {
    {"avx512", avx512::choose, avx512::convolve_depthwise, avx512::derive_depthwise},
    {"avx2", avx2::choose, avx2::convolve_depthwise, avx2::derive_depthwise},
};

bool has(const InstructionSet &set) {
    __builtin_cpu_init();
    const bool narrow = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (&set == &SETS[1]) return narrow;
    return narrow && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl");
}

// Arguments of a call; `weight` [n, O, I/groups, k, k], a network's `weight_step` numbers behind the one before.
struct Call {
    const InstructionSet *set;
    const float *x, *weight, *bias, *grad;
    float *y, *to_x, *to_weight;
    int batch, height, width, n, inputs, outputs, kernel;
    long weight_step;
    bool shared, depthwise, relu;

    Layout layout() const {
        const int edge = kernel / 2;
        if (width < MIN_ROW) {
            const int images = batch < limit() ? batch : limit();
            return {images, height, width, 0, true, (long)width * images, images};
        }
        const long row = width + 2 * edge;
        const long numbers = height * row * (inputs > outputs ? inputs : outputs);
        const long images = numbers < BLOCK_FLOATS ? BLOCK_FLOATS / numbers : 1;
        return {(int)(images < batch ? images : batch), height, width, edge, false, row, 1};
    }
    int limit() const { return kernel == 1 ? BLOCK_PIXELS : BLOCK_IMAGES; }
    long area() const { return (long)height * width; }
    Channels input(int g, const float *&from) const {
        from = x + (shared ? 0 : (long)g * inputs);
        return {inputs, shared ? inputs : (long)n * inputs};
    }
};

struct Buffers {
    std::vector<float> x, grad, weight, flipped, bias, total;
};
thread_local Buffers buffers;

float *room(std::vector<float> &buffer, size_t count) {
    if (buffer.size() < count + SPARE_FLOATS) buffer.resize(count + SPARE_FLOATS);
    return buffer.data();
}

// A network's weights [O, I, k, k] as [chunk of O, k, k, I, width]; turned round and with O and I changed, for
// the gradient of the inputs.
void arrange(const float *weight, int outputs, int inputs, int kernel, int width, bool turned, float *out) {
    const int taps = kernel * kernel, rows = turned ? outputs : inputs, columns = turned ? inputs : outputs;
    const long of_row = turned ? (long)inputs * taps : taps, of_column = turned ? taps : (long)inputs * taps;
    for (int first = 0; first < columns; first += width)
        for (int t = 0; t < taps; t++) {
            const float *from = weight + (turned ? taps - 1 - t : t) + first * of_column;
            const int count = columns - first < width ? columns - first : width;
            for (int r = 0; r < rows; r++, out += width) {
                for (int c = 0; c < count; c++) out[c] = from[r * of_row + c * of_column];
                for (int c = count; c < width; c++) out[c] = 0.0f;
            }
        }
}

void convolve(const Call &call) {
    const Loops loops = call.set->choose(call.inputs, call.outputs);
    const Layout at = call.layout();
    const long padded = loops.padded(call.outputs), taps = call.kernel * call.kernel;
    const long each = padded * call.inputs * taps;
    float *weight = room(buffers.weight, each * call.n), *bias = nullptr;
    for (int g = 0; g < call.n; g++)
        arrange(call.weight + g * call.weight_step, call.outputs, call.inputs, call.kernel, loops.width(), false,
                weight + g * each);
    if (call.bias) {
        bias = room(buffers.bias, padded * call.n);
        memset(bias, 0, sizeof(float) * padded * call.n);
        for (int g = 0; g < call.n; g++)
            memcpy(bias + g * padded, call.bias + (long)g * call.outputs, sizeof(float) * call.outputs);
    }
    float *packed = room(buffers.x, at.pixels() * call.inputs);
    const Channels to{call.outputs, (long)call.n * call.outputs};
    for (int b = 0; b < call.batch; b += at.images) {
        const int images = call.batch - b < at.images ? call.batch - b : at.images;
        for (int g = 0; g < call.n; g++) {
            const float *x;
            const Channels from = call.input(g, x);
            if (g == 0 || !call.shared)
                loops.pack(at, images, x + b * call.area() * from.step, from, packed);
            const Filter by{weight + g * each, bias ? bias + g * padded : nullptr, call.inputs, call.kernel,
                            call.relu};
            loops.convolve(at, images, packed, by, call.y + b * call.area() * to.step + (long)g * call.outputs, to);
        }
    }
}

void derive(const Call &call) {
    const Loops ahead = call.set->choose(call.inputs, call.outputs);
    const Loops back = call.set->choose(call.outputs, call.inputs);
    const Layout at = call.layout();
    const long taps = call.kernel * call.kernel;
    const long each = back.padded(call.inputs) * call.outputs * taps;
    const long totals = ahead.padded(call.outputs) * call.inputs * taps;
    float *flipped = nullptr, *total = nullptr;
    if (call.to_x) {
        flipped = room(buffers.flipped, each * call.n);
        for (int g = 0; g < call.n; g++)
            arrange(call.weight + g * call.weight_step, call.outputs, call.inputs, call.kernel, back.width(), true,
                    flipped + g * each);
    }
    if (call.to_weight) {
        total = room(buffers.total, totals * call.n);
        memset(total, 0, sizeof(float) * totals * call.n);
    }
    float *packed = room(buffers.x, at.pixels() * call.inputs);
    float *grads = room(buffers.grad, at.pixels() * call.outputs);
    const Channels of_grad{call.outputs, (long)call.n * call.outputs};
    for (int b = 0; b < call.batch; b += at.images) {
        const int images = call.batch - b < at.images ? call.batch - b : at.images;
        for (int g = 0; g < call.n; g++) {
            back.pack(at, images, call.grad + b * call.area() * of_grad.step + (long)g * call.outputs, of_grad,
                      grads);
            const float *x;
            const Channels from = call.input(g, x);
            if (flipped) {
                const Filter by{flipped + g * each, nullptr, call.outputs, call.kernel, false};
                back.convolve(at, images, grads, by,
                              call.to_x + b * call.area() * from.step + (long)g * call.inputs, from);
            }
            if (!total) continue;
            if (g == 0 || !call.shared) ahead.pack(at, images, x + b * call.area() * from.step, from, packed);
            ahead.derive(at, images, packed, call.inputs, grads, call.outputs, call.kernel, total + g * totals);
        }
    }
    if (!total) return;
    const int width = ahead.width();
    for (int g = 0; g < call.n; g++)
        for (int o = 0; o < call.outputs; o++)
            for (int i = 0; i < call.inputs; i++)
                for (int t = 0; t < taps; t++)
                    call.to_weight[(((long)g * call.outputs + o) * call.inputs + i) * taps + t] =
                        total[g * totals + ((long)(o / width * taps + t) * call.inputs + i) * width + o % width];
}

// [n*C, k*k] as [k*k, n*C], turned round or not.
void arrange_depthwise(const Call &call, bool turned, float *out) {
    const int taps = call.kernel * call.kernel;
    const long channels = (long)call.n * call.outputs;
    for (int g = 0; g < call.n; g++)
        for (int c = 0; c < call.outputs; c++)
            for (int t = 0; t < taps; t++)
                out[(turned ? taps - 1 - t : t) * channels + (long)g * call.outputs + c] =
                    call.weight[g * call.weight_step + c * taps + t];
}

void convolve_depthwise(const Call &call) {
    const Geometry at{call.batch, call.height, call.width, call.kernel, (long)call.n * call.outputs};
    float *weight = room(buffers.weight, at.channels * call.kernel * call.kernel);
    arrange_depthwise(call, false, weight);
    call.set->convolve_depthwise(at, call.x, weight, call.y);
}

void derive_depthwise(const Call &call) {
    const Geometry at{call.batch, call.height, call.width, call.kernel, (long)call.n * call.outputs};
    const long taps = call.kernel * call.kernel;
    if (call.to_x) {
        float *flipped = room(buffers.flipped, at.channels * taps);
        arrange_depthwise(call, true, flipped);
        call.set->convolve_depthwise(at, call.grad, flipped, call.to_x);
    }
    if (!call.to_weight) return;
    float *total = room(buffers.total, at.channels * taps);
    memset(total, 0, sizeof(float) * at.channels * taps);
    call.set->derive_depthwise(at, call.x, call.grad, total);
    for (long c = 0; c < at.channels; c++)
        for (long t = 0; t < taps; t++) call.to_weight[c * taps + t] = total[t * at.channels + c];
}

const InstructionSet *find(const char *name) {
    for (const InstructionSet &set : SETS)
        if (strcmp(set.name, name) == 0 && has(set)) return &set;
    PyErr_Format(PyExc_ValueError, "this processor lacks %s", name);
    return nullptr;
}

// Run without Python's lock; a kernel of 1x1 sees every pixel as an image of its own.
PyObject *perform(Call call, void (*dense)(const Call &), void (*depthwise)(const Call &)) {
    bool enough = true;
    Py_BEGIN_ALLOW_THREADS
    try {
        if (call.kernel == 1) {
            call.batch *= call.height * call.width;
            call.height = call.width = 1;
        }
        (call.depthwise ? depthwise : dense)(call);
    } catch (const std::bad_alloc &) {
        enough = false;
    }
    Py_END_ALLOW_THREADS
    if (!enough) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

#define SHAPE "iiiiiiilpp"
#define SHAPE_OF(call, shared, depthwise)                                                                    \
    &call.batch, &call.height, &call.width, &call.n, &call.inputs, &call.outputs, &call.kernel,              \
        &call.weight_step, &shared, &depthwise

PyObject *py_convolve(PyObject *, PyObject *arguments) {
    const char *name;
    unsigned long long x, weight, bias, y;
    int shared, depthwise, relu;
    Call call{};
    if (!PyArg_ParseTuple(arguments, "sKKKK" SHAPE "p", &name, &x, &weight, &bias, &y,
                          SHAPE_OF(call, shared, depthwise), &relu))
        return nullptr;
    if (!(call.set = find(name))) return nullptr;
    call.x = (const float *)x, call.weight = (const float *)weight, call.bias = (const float *)bias;
    call.y = (float *)y, call.shared = shared, call.depthwise = depthwise, call.relu = relu;
    return perform(call, convolve, convolve_depthwise);
}

PyObject *py_derive(PyObject *, PyObject *arguments) {
    const char *name;
    unsigned long long x, weight, grad, to_x, to_weight;
    int shared, depthwise;
    Call call{};
    if (!PyArg_ParseTuple(arguments, "sKKKKK" SHAPE, &name, &x, &weight, &grad, &to_x, &to_weight,
                          SHAPE_OF(call, shared, depthwise)))
        return nullptr;
    if (!(call.set = find(name))) return nullptr;
    call.x = (const float *)x, call.weight = (const float *)weight, call.grad = (const float *)grad;
    call.to_x = (float *)to_x, call.to_weight = (float *)to_weight;
    call.shared = shared, call.depthwise = depthwise;
    return perform(call, derive, derive_depthwise);
}
}  // namespace
#endif

namespace {
PyObject *instruction_sets(PyObject *, PyObject *) {
    PyObject *const names = PyList_New(0);
    if (!names) return nullptr;
#if defined(__x86_64__)
    for (const InstructionSet &set : SETS) {
        if (!has(set)) continue;
        PyObject *const name = PyUnicode_FromString(set.name);
        if (!name || PyList_Append(names, name) < 0) {
            Py_XDECREF(name);
            Py_DECREF(names);
            return nullptr;
        }
        Py_DECREF(name);
    }
#endif
    return names;
}

PyMethodDef METHODS[] = {
#if defined(__x86_64__)
    {"convolve", py_convolve, METH_VARARGS, "Convolve; tensors by their addresses."},
    {"derive", py_derive, METH_VARARGS, "Gradients of `convolve`; tensors by their addresses, 0 = not wanted."},
#endif
    {"instruction_sets", instruction_sets, METH_NOARGS, "Those that this processor has, the best first."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_native_convolution", nullptr, -1, METHODS,
                      nullptr, nullptr, nullptr, nullptr};
}  // namespace

PyMODINIT_FUNC PyInit__native_convolution() { return PyModule_Create(&MODULE); }
