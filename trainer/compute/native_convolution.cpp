// Convolutions of n small networks side by side, on maps in channels_last memory: [B, H, W, n, C], alone or with
// a norm and a ReLU behind them.
//
// Each network's channels are copied block by block of images into a buffer that stays in the caches, and are
// convolved there; see native_convolution_kernels.h for the order of the additions. A call uses the thread that
// makes it, without Python's lock (the GIL).

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <algorithm>
#include <cmath>
#include <new>
#include <utility>
#include <vector>

#include "native_convolution.h"

#if defined(__x86_64__)
#include <immintrin.h>
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
#include "native_planes_kernels.h"
#include "native_convolution_kernels.h"
#include "native_norm_kernels.h"
#include "native_pool_kernels.h"
#include "native_seeds_kernels.h"
#undef KERNELS
#undef WIDE
TARGET_END
TARGET_256
#define KERNELS avx2
#define WIDE 0
#include "native_convolution_kernels.h"
#include "native_norm_kernels.h"
#include "native_pool_kernels.h"
#include "native_seeds_kernels.h"
#undef KERNELS
#undef WIDE
TARGET_END

struct InstructionSet {
    const char *name;
    Loops (*choose)(int inputs, int outputs);
    void (*convolve_depthwise)(const Geometry &, const float *, const float *, float *);
    void (*derive_depthwise)(const Geometry &, const float *, const float *, float *);
    decltype(&avx2::sum_values) sum_values;
    decltype(&avx2::sum_squares) sum_squares;
    decltype(&avx2::apply_norm) apply_norm;
    decltype(&avx2::sum_gradients) sum_gradients;
    decltype(&avx2::spread_gradients) spread_gradients;
    decltype(&avx2::apply_affine) apply_affine;
    decltype(&avx2::sum_changes) sum_changes;
    decltype(&avx2::spread_changes) spread_changes;
    decltype(&avx2::pool) pool;
    decltype(&avx2::unpool) unpool;
    decltype(&avx2::take_pixels) take_pixels;
    decltype(&avx2::add_pixels) add_pixels;
    decltype(&avx2::blend_pixels) blend_pixels;
    decltype(&avx2::derive_pixels) derive_pixels;
    decltype(&avx2::sum_products) sum_products;
    decltype(&avx2::scale_numbers) scale_numbers;
    decltype(&avx2::add_scaled) add_scaled;
};

#define SET(name)                                                                                            \
    {#name, name::choose, name::convolve_depthwise, name::derive_depthwise, name::sum_values,                \
     name::sum_squares, name::apply_norm, name::sum_gradients, name::spread_gradients,                       \
     name::apply_affine, name::sum_changes, name::spread_changes, name::pool, name::unpool,   \
     name::take_pixels, name::add_pixels, name::blend_pixels, name::derive_pixels, name::sum_products,       \
     name::scale_numbers, name::add_scaled}
constexpr InstructionSet SETS[] = {SET(avx512), SET(avx2)};

bool has(const InstructionSet &set) {
    __builtin_cpu_init();
    const bool narrow = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (&set == &SETS[1]) return narrow;
    return narrow && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl");
}

#include "native_norm.h"

// A network's weights [O, I, k, k] as [chunk of O, k, k, I, width]; turned round and with O and I changed, for
// the gradient of the inputs.
void arrange(const Call &call, long g, int width, bool turned, float *out) {
    const float *const weight = call.weight + g * call.weight_step;
    const long taps = call.kernel * call.kernel, of_output = call.inputs * taps;
    const long rows = turned ? call.outputs : call.inputs, columns = turned ? call.inputs : call.outputs;
    const long of_row = turned ? of_output : taps, of_column = turned ? taps : of_output;
    for (long first = 0; first < columns; first += width)
        for (long t = 0; t < taps; t++) {
            const float *from = weight + (turned ? taps - 1 - t : t) + first * of_column;
            const long count = columns - first < width ? columns - first : width;
            for (long r = 0; r < rows; r++, out += width) {
                for (long c = 0; c < count; c++) out[c] = from[r * of_row + c * of_column];
                for (long c = count; c < width; c++) out[c] = 0.0f;
            }
        }
}

// Make x where there is a pool in front.
void pool_input(const Call &call) {
    if (call.large)
        call.set->pool(call.large, call.large_images(), (int)call.large_height, (int)call.large_width,
                       call.in_step(), call.x, call.places);
}

void convolve(const Call &call) {
    pool_input(call);
    const Loops loops = call.set->choose((int)call.inputs, (int)call.outputs);
    const int most = call.block_images();
    const long padded = loops.padded((int)call.outputs);
    const long each = padded * call.inputs * call.kernel * call.kernel;
    float *weight = room(buffers.weight, each * call.n), *bias = nullptr;
    for (long g = 0; g < call.n; g++) arrange(call, g, loops.width(), false, weight + g * each);
    if (call.bias) {
        bias = zeros(buffers.bias, padded * call.n);
        for (long g = 0; g < call.n; g++)
            memcpy(bias + g * padded, call.bias + g * call.outputs, sizeof(float) * call.outputs);
    }
    float *packed = zeros(buffers.x, call.layout(most).pixels() * call.inputs);
    const bool by_planes = loops.convolve_planes && call.kernel == 3 && call.inputs <= MAX_PLANES &&
                           call.width % ROW_PIXELS == 0;
    const auto pack = by_planes ? loops.pack_planes : loops.pack;
    const auto convolve_block = by_planes ? loops.convolve_planes : loops.convolve;
    float *const made = call.norm ? call.raw : call.y;
    const Channels from{(int)call.inputs, call.in_step()}, to{(int)call.outputs, call.out_step()};
    Factors by(call.outputs);
    std::vector<double> found(call.norm == OF_BATCH ? 2 * call.out_step() : 0);
    for (long b = 0; b < call.batch; b += most) {
        const int images = (int)(call.batch - b < most ? call.batch - b : most);
        const Layout at = call.layout(images);
        for (long g = 0; g < call.n; g++) {
            if (g == 0 || !call.shared) pack(at, at.images, call.input(g, b), from, packed);
            const Filter filter{weight + g * each, bias ? bias + g * padded : nullptr, (int)call.inputs,
                                (int)call.kernel, call.relu != 0};
            convolve_block(at, at.images, packed, filter, made + call.output(g, b), to);
            if (call.norm == OF_BATCH)
                measure_block(call, by, g, b, images, found.data() + 2 * g * call.outputs);
            else if (call.norm == OF_GROUPS)
                for (int i = 0; i < images; i++) norm_image(call, by, g, b + i);
        }
    }
    if (call.norm == OF_BATCH) norm_batch(call, found);
}

// The gradient of a block's convolution into a buffer: as it is given, or through ReLU and norm.
void pack_gradient(const Call &call, const Loops &loops, const Layout &at, Factors &by, long g, long b, int images,
                   float *out) {
    if (!call.norm) {
        loops.pack(at, at.images, call.grad + call.output(g, b), {(int)call.outputs, call.out_step()}, out);
        return;
    }
    // A 1x1 kernel with batch norm has images of one pixel: all of them are one row.
    const int together = call.kernel == 1 && call.norm == OF_BATCH ? images : 1;
    const long width = call.area() * together;
    const Layout row{1, 1, (int)width, 0, false, width, 1};
    for (int i = 0; i < images; i += together) {
        const long from = call.output(g, b + i);
        if (call.norm == OF_GROUPS) {
            by.fill(call, g, ((b + i) * call.n + g) * call.norm_groups());
            sum_image(call, by, g, b + i);
            set_less(call, by, g, by.sums, by.more, (double)call.together() * call.area());
        }
        const bool flat = call.kernel == 1;
        call.set->spread_gradients(call.grad + from, call.raw + from, call.out_step(), (int)call.outputs, by.all(),
                                   call.gain_of(g), by.less, by.less_normed, flat ? row : at, flat ? 0 : i,
                                   flat ? out + i * call.area() * call.outputs : out);
    }
}

void derive(const Call &call) {
    const Loops ahead = call.set->choose((int)call.inputs, (int)call.outputs);
    const Loops back = call.set->choose((int)call.outputs, (int)call.inputs);
    const int most = call.block_images(), kernel = (int)call.kernel;
    const long taps = kernel * kernel;
    const long each = back.padded((int)call.inputs) * call.outputs * taps;
    const long totals = ahead.padded((int)call.outputs) * call.inputs * taps;
    float *flipped = nullptr, *total = nullptr;
    if (call.to_x) {
        flipped = room(buffers.flipped, each * call.n);
        for (long g = 0; g < call.n; g++) arrange(call, g, back.width(), true, flipped + g * each);
    }
    if (call.to_weight) total = zeros(buffers.total, totals * call.n);
    Factors all(call.norm == OF_BATCH ? call.out_step() : call.outputs);
    if (call.norm) {
        memset(call.to_scale, 0, sizeof(float) * call.out_step());
        memset(call.to_shift, 0, sizeof(float) * call.out_step());
        if (call.gain) memset(call.to_gain, 0, sizeof(float) * call.n);
    }
    if (call.norm == OF_BATCH) sum_batch(call, all, most);
    float *packed = zeros(buffers.x, call.layout(most).pixels() * call.inputs);
    float *grads = zeros(buffers.grad, call.layout(most).pixels() * call.outputs);
    const Channels from{(int)call.inputs, call.in_step()};
    for (long b = 0; b < call.batch; b += most) {
        const int images = (int)(call.batch - b < most ? call.batch - b : most);
        const Layout at = call.layout(images);
        for (long g = 0; g < call.n; g++) {
            Factors by = all.from(call.norm == OF_BATCH ? g * call.outputs : 0);
            pack_gradient(call, back, at, by, g, b, images, grads);
            if (flipped) {
                const Filter filter{flipped + g * each, nullptr, (int)call.outputs, kernel, false};
                back.convolve(at, at.images, grads, filter, call.to_x + (call.input(g, b) - call.x), from);
            }
            if (!total) continue;
            if (g == 0 || !call.shared) ahead.pack(at, at.images, call.input(g, b), from, packed);
            ahead.derive(at, at.images, packed, (int)call.inputs, grads, (int)call.outputs, kernel,
                         total + g * totals);
        }
    }
    if (call.to_large)
        call.set->unpool(call.to_x, call.places, call.large_images(), (int)call.large_height,
                         (int)call.large_width, call.in_step(), call.to_large);
    if (!total) return;
    const int width = ahead.width();
    float *out = call.to_weight;
    for (long g = 0; g < call.n; g++)
        for (long o = 0; o < call.outputs; o++)
            for (long i = 0; i < call.inputs; i++)
                for (long t = 0; t < taps; t++)
                    *out++ = total[g * totals + ((o / width * taps + t) * call.inputs + i) * width + o % width];
}

// [n*C, k*k] as [k*k, n*C], turned round or not.
void arrange_depthwise(const Call &call, bool turned, float *out) {
    const long taps = call.kernel * call.kernel;
    for (long g = 0; g < call.n; g++)
        for (long c = 0; c < call.outputs; c++)
            for (long t = 0; t < taps; t++)
                out[(turned ? taps - 1 - t : t) * call.out_step() + g * call.outputs + c] =
                    call.weight[g * call.weight_step + c * taps + t];
}

void convolve_depthwise(const Call &call) {
    const Geometry at{(int)call.batch, (int)call.height, (int)call.width, (int)call.kernel, call.out_step()};
    float *weight = room(buffers.weight, at.channels * call.kernel * call.kernel);
    arrange_depthwise(call, false, weight);
    pool_input(call);
    call.set->convolve_depthwise(at, call.x, weight, call.y);
}

void derive_depthwise(const Call &call) {
    const Geometry at{(int)call.batch, (int)call.height, (int)call.width, (int)call.kernel, call.out_step()};
    const long taps = call.kernel * call.kernel;
    if (call.to_x) {
        float *flipped = room(buffers.flipped, at.channels * taps);
        arrange_depthwise(call, true, flipped);
        call.set->convolve_depthwise(at, call.grad, flipped, call.to_x);
    }
    if (!call.to_weight) return;
    float *total = zeros(buffers.total, at.channels * taps);
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

// A tuple of so many integers.
bool read_numbers(PyObject *tuple, long long *out, Py_ssize_t count) {
    if (PyTuple_GET_SIZE(tuple) != count) {
        PyErr_Format(PyExc_ValueError, "%zd numbers are needed, not %zd", count, PyTuple_GET_SIZE(tuple));
        return false;
    }
    for (Py_ssize_t i = 0; i < count; i++) out[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
    return !PyErr_Occurred();
}

// With a 1x1 kernel every pixel is an image of its own.
void flatten_pointwise(Call &call) {
    if (call.kernel != 1 || call.norm == OF_GROUPS) return;
    call.batch *= call.area();
    call.height = call.width = 1;
}

// Run without Python's lock.
PyObject *perform(PyObject *arguments, void (*dense)(const Call &), void (*depthwise)(const Call &)) {
    const char *name;
    PyObject *addresses, *numbers;
    Call call{};
    static_assert(sizeof(float *) == sizeof(long long));
    if (!PyArg_ParseTuple(arguments, "sO!O!", &name, &PyTuple_Type, &addresses, &PyTuple_Type, &numbers) ||
        !read_numbers(addresses, (long long *)static_cast<Tensors *>(&call), NUM_TENSORS) ||
        !read_numbers(numbers, (long long *)static_cast<Sizes *>(&call), NUM_SIZES) || !(call.set = find(name)))
        return nullptr;
    bool enough = true;
    Py_BEGIN_ALLOW_THREADS
    flatten_pointwise(call);
    try {
        (call.depthwise ? depthwise : dense)(call);
    } catch (const std::bad_alloc &) {
        enough = false;
    }
    Py_END_ALLOW_THREADS
    if (!enough) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

PyObject *py_convolve(PyObject *, PyObject *arguments) {
    return perform(arguments, convolve, convolve_depthwise);
}

PyObject *py_derive(PyObject *, PyObject *arguments) { return perform(arguments, derive, derive_depthwise); }

}  // namespace
#include "native_images.h"
#include "native_rows.h"
#include "native_seeds.h"
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

// As in native_convolution.py; to be raised with each change of what the functions are given.
constexpr long INTERFACE = 6;

PyMethodDef METHODS[] = {
#if defined(__x86_64__)
    {"convolve", py_convolve, METH_VARARGS, "Convolve; tensors by their addresses."},
    {"run_seeds", py_run_seeds, METH_VARARGS, "Run the seeds of a slot; tensors by their addresses."},
    {"derive_seeds", py_derive_seeds, METH_VARARGS, "Gradients of `run_seeds`, likewise."},
    {"seeds_room", py_seeds_room, METH_VARARGS, "How many numbers `run_seeds` keeps."},
    {"scale_images", py_scale_images, METH_VARARGS, "Make inputs of images, likewise."},
    {"take_rows", py_take_rows, METH_VARARGS, "Copy some hosts' channels of a map, likewise."},
    {"derive", py_derive, METH_VARARGS, "Gradients of `convolve`; tensors by their addresses, 0 = not wanted."},
#endif
    {"instruction_sets", instruction_sets, METH_NOARGS, "Those that this processor has, the best first."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_native_convolution", nullptr, -1, METHODS,
                      nullptr, nullptr, nullptr, nullptr};
}  // namespace

PyMODINIT_FUNC PyInit__native_convolution() {
    PyObject *const module = PyModule_Create(&MODULE);
    if (module && PyModule_AddIntConstant(module, "INTERFACE", INTERFACE) < 0) {
        Py_DECREF(module);
        return nullptr;
    }
    return module;
}
