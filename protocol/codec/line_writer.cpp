// Lines of events, in two passes: what needs Python's lock (the GIL) is a walk over the fields that copies
// keys, text and the bits of the floats; the floats' digits are written while other threads run.
//
// `json_lines.Encoder.add` is the reference, and the bytes are the same. What is rare is left to it: arrays,
// text to escape, subclasses, integers over 64 bits.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace {

constexpr size_t MAX_NUMBER_BYTES = 24;  // "-2.2250738585072014e-308"
constexpr size_t MAX_SPARE_BYTES = 1 << 20;
constexpr size_t NUM_KEYS = 512;
constexpr int MAX_DEPTH = 16;

PyObject *NS, *EVENT, *ENV, *CTX, *DICT;  // names of attributes

struct Text {
    char *bytes = nullptr;
    size_t size = 0, capacity = 0;

    Text() = default;
    Text(const Text &) = delete;
    ~Text() { std::free(bytes); }

    // Where the next bytes may be written, up to `count`.
    char *room(size_t count) {
        if (capacity - size < count) {
            void *const grown = std::realloc(bytes, 2 * capacity + count);
            if (!grown) throw std::bad_alloc();
            bytes = static_cast<char *>(grown);
            capacity = 2 * capacity + count;
        }
        return bytes + size;
    }
    void add(const char *from, size_t count) {
        std::memcpy(room(count), from, count);
        size += count;
    }
    template <size_t N> void add(const char (&literal)[N]) { add(literal, N - 1); }
    void add(long long value) {
        char *const out = room(MAX_NUMBER_BYTES);
        size += std::to_chars(out, out + MAX_NUMBER_BYTES, value).ptr - out;
    }
    void add_bytes(PyObject *object) { add(PyBytes_AS_STRING(object), PyBytes_GET_SIZE(object)); }
};

struct Float {
    size_t at;  // where in the text its digits belong
    double value;
};

struct Line {
    size_t end, floats;  // where in the text; how many up to there
};

// A key with its quotes and colon, found by the identity of its string, which it keeps alive.
struct Key {
    PyObject *string;
    size_t size;
    char text[40];
} keys[NUM_KEYS];

// Digits as orjson 3.13 lays them out: 0.00001, 1e-6, 1234567.0, 1e+16, 1.5e-7.
char *write_float(char *out, double value) {
    const auto copy = [&out](const char *from, int count) { out = std::copy_n(from, count, out); };
    if (std::signbit(value)) *out++ = '-';
    if (value == 0) return std::copy_n("0.0", 3, out);
    char digits[MAX_NUMBER_BYTES];  // d.ddde-dd, as few as read back as this value
    const auto form = std::chars_format::scientific;
    const char *const end = std::to_chars(digits, digits + sizeof digits, std::fabs(value), form).ptr;
    const char *const e = end[-4] == 'e' ? end - 4 : end - 5;
    int exponent = 0;
    std::from_chars(e[1] == '+' ? e + 2 : e + 1, end, exponent);
    const int point = exponent + 1;  // how many digits stand before it
    digits[1] = digits[0];           // over the point, if there is one
    const bool is_single = e == digits + 1;
    const char *const first = is_single ? digits : digits + 1;
    const int count = is_single ? 1 : static_cast<int>(e - first);
    if (0 < point && point <= 16) {
        copy(first, std::min(count, point));
        out = std::fill_n(out, std::max(0, point - count), '0');
        *out++ = '.';
        if (count > point) copy(first + point, count - point);
        else *out++ = '0';
    } else if (-5 < point && point <= 0) {
        copy("0.", 2);
        out = std::fill_n(out, -point, '0');
        copy(first, count);
    } else {
        *out++ = *first;
        if (count > 1) *out++ = '.';
        copy(first + 1, count - 1);
        *out++ = 'e';
        if (exponent > 0) *out++ = '+';
        out = std::to_chars(out, out + 4, exponent).ptr;
    }
    return out;
}

// What the first pass leaves for the second. The functions that add give false where they leave it to Python.
struct Draft {
    Text text;
    std::vector<Float> floats;
    std::vector<Line> lines;

    size_t bound() const { return text.size + floats.size() * MAX_NUMBER_BYTES; }

    void keep_lines(size_t count) {
        lines.resize(count);
        text.size = count ? lines.back().end : 0;
        floats.resize(count ? lines.back().floats : 0);
    }

    bool add_line(long long seq, PyObject *stream, long long ns, PyObject *context, PyObject *fields) {
        text.add("{\"seq\":");
        text.add(seq);
        text.add_bytes(stream);
        text.add(ns / 1000);
        text.add_bytes(context);
        if (!add_mapping(fields, 0)) return false;
        text.add("}\n");
        lines.push_back({text.size, floats.size()});
        return true;
    }

    bool add_mapping(PyObject *mapping, int depth) {
        PyObject *key, *value;
        Py_ssize_t at = 0;
        bool is_first = true;
        text.add("{");
        while (PyDict_Next(mapping, &at, &key, &value)) {
            if (!is_first) text.add(",");
            is_first = false;
            if (!add_key(key) || !add_value(value, depth)) return false;
        }
        text.add("}");
        return true;
    }

    bool add_sequence(PyObject *sequence, int depth) {
        text.add("[");
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(sequence); ++i) {
            if (i) text.add(",");
            if (!add_value(PySequence_Fast_GET_ITEM(sequence, i), depth)) return false;
        }
        text.add("]");
        return true;
    }

    bool add_value(PyObject *value, int depth) {
        if (PyFloat_CheckExact(value)) add_float(PyFloat_AS_DOUBLE(value));
        else if (value == Py_None) text.add("null");
        else if (value == Py_True) text.add("true");
        else if (value == Py_False) text.add("false");
        else if (PyUnicode_CheckExact(value)) return add_string(value);
        else if (PyLong_CheckExact(value)) {
            int overflow;
            const long long integer = PyLong_AsLongLongAndOverflow(value, &overflow);
            if (overflow) return false;
            text.add(integer);
        } else if (depth == MAX_DEPTH) return false;
        else if (PyDict_CheckExact(value)) return add_mapping(value, depth + 1);
        else if (PyList_CheckExact(value) || PyTuple_CheckExact(value)) return add_sequence(value, depth + 1);
        else return false;
        return true;
    }

    void add_float(double value) {
        if (std::isfinite(value)) floats.push_back({text.size, value});
        else if (std::isnan(value)) text.add("\"NaN\"");
        else if (value > 0) text.add("\"Infinity\"");
        else text.add("\"-Infinity\"");
    }

    bool add_string(PyObject *string) {
        Py_ssize_t size;
        const char *const bytes = PyUnicode_AsUTF8AndSize(string, &size);
        const auto is_special = [](unsigned char c) { return c < 0x20 || c == '"' || c == '\\'; };
        if (!bytes || std::any_of(bytes, bytes + size, is_special)) return false;
        text.add("\"");
        text.add(bytes, size);
        text.add("\"");
        return true;
    }

    bool add_key(PyObject *string) {
        Key &key = keys[(reinterpret_cast<size_t>(string) >> 4) % NUM_KEYS];
        if (key.string == string) {
            std::memcpy(text.room(sizeof key.text), key.text, sizeof key.text);
            text.size += key.size;
            return true;
        }
        const size_t begin = text.size;
        if (!PyUnicode_CheckExact(string) || !add_string(string)) return false;
        text.add(":");
        if (text.size - begin > sizeof key.text) return true;
        Py_INCREF(string);
        Py_XDECREF(std::exchange(key.string, string));
        key.size = text.size - begin;
        std::memcpy(key.text, text.bytes + begin, key.size);
        return true;
    }

    // Second pass, without the lock; gives the end, and where each line begins.
    char *write(char *out, std::vector<Py_ssize_t> &starts) const {
        const char *const begin = out, *from = text.bytes;
        const auto copy_until = [&](size_t end) {
            const size_t count = text.bytes + end - from;
            std::memcpy(out, from, count);
            out += count;
            from += count;
        };
        const Float *next = floats.data();
        for (const Line &line : lines) {
            starts.push_back(out - begin);
            for (const Float *const end = floats.data() + line.floats; next < end; ++next) {
                copy_until(next->at);
                out = write_float(out, next->value);
            }
            copy_until(line.end);
        }
        return out;
    }
};

std::unique_ptr<Draft> spare;  // the buffers of the last call, for the next

struct Release { void operator()(PyObject *object) const { Py_DECREF(object); } };
using Owned = std::unique_ptr<PyObject, Release>;

// First pass. Ends at another class, at a full batch and at what is left to Python, errors among it; false
// where that is the first.
bool draft_lines(Draft &draft, PyObject *items, Py_ssize_t begin, long long seq, PyObject *stream,
                 PyObject *make_context, size_t most, size_t room, bool is_empty) {
    Owned ctx, env, context, first;
    bool is_plain = true;
    while (is_plain && draft.lines.size() < most && begin < PySequence_Fast_GET_SIZE(items)) {
        PyObject *const item = PySequence_Fast_GET_ITEM(items, begin++);
        Owned new_ctx(PyObject_GetAttr(item, CTX)), new_env(PyObject_GetAttr(item, ENV));
        Owned ns(PyObject_GetAttr(item, NS)), event(PyObject_GetAttr(item, EVENT));
        is_plain = new_ctx && new_env && ns && event;
        if (!is_plain || (first && Py_TYPE(event.get()) != Py_TYPE(first.get()))) break;
        if (!context || new_ctx != ctx || new_env != env)
            context.reset(PyObject_CallFunctionObjArgs(make_context, new_ctx.get(), new_env.get(), nullptr));
        const long long time = PyLong_AsLongLong(ns.get());
        const Owned fields(PyObject_GetAttr(event.get(), DICT));
        const size_t count = draft.lines.size();
        is_plain = !PyErr_Occurred() && PyBytes_CheckExact(context.get()) && PyDict_CheckExact(fields.get()) &&
                   draft.add_line(seq++, stream, time, context.get(), fields.get());
        if (!is_plain || (draft.bound() > room && !(is_empty && count == 0))) {
            draft.keep_lines(count);
            break;
        }
        ctx = std::move(new_ctx);
        env = std::move(new_env);
        first = std::move(event);
    }
    PyErr_Clear();
    return is_plain || first;
}

PyObject *write_lines(PyObject *, PyObject *args) {
    PyObject *body, *starts, *items, *stream, *make_context;
    Py_ssize_t begin, most, room;
    long long seq;
    if (!PyArg_ParseTuple(args, "YO!OnLSOnn", &body, &PyList_Type, &starts, &items, &begin, &seq, &stream,
                          &make_context, &most, &room))
        return nullptr;
    const Owned all(PySequence_Fast(items, "items must be a sequence"));
    if (!all) return nullptr;
    try {
        auto draft = spare ? std::move(spare) : std::make_unique<Draft>();
        const Py_ssize_t old = PyByteArray_GET_SIZE(body);
        if (!draft_lines(*draft, all.get(), begin, seq, stream, make_context, std::max<Py_ssize_t>(most, 0),
                         std::max<Py_ssize_t>(room, 0), old == 0))
            return PyLong_FromLong(-1);
        std::vector<Py_ssize_t> begins;
        begins.reserve(draft->lines.size());
        if (PyByteArray_Resize(body, old + draft->bound()) < 0) return nullptr;
        Py_buffer view;  // while it is held nobody can resize the body
        if (PyObject_GetBuffer(body, &view, PyBUF_WRITABLE) < 0) return nullptr;
        char *const out = static_cast<char *>(view.buf) + old, *end;
        Py_BEGIN_ALLOW_THREADS
        end = draft->write(out, begins);
        Py_END_ALLOW_THREADS
        PyBuffer_Release(&view);
        if (PyByteArray_Resize(body, old + (end - out)) < 0) return nullptr;
        for (const Py_ssize_t at : begins) {
            const Owned start(PyLong_FromSsize_t(old + at));
            if (!start || PyList_Append(starts, start.get()) < 0) return nullptr;
        }
        draft->keep_lines(0);
        if (draft->text.capacity < MAX_SPARE_BYTES) spare = std::move(draft);
        return PyLong_FromSize_t(begins.size());
    } catch (const std::bad_alloc &) {
        return PyErr_NoMemory();
    }
}

const char DOC[] = "Append lines to a batch, for the most part without Python's lock; says how many.";
PyMethodDef methods[] = {{"write_lines", write_lines, METH_VARARGS, DOC}, {}};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_line_writer", nullptr, -1, methods, {}, {}, {}, {}};

}  // namespace

PyMODINIT_FUNC PyInit__line_writer() {
    const std::pair<PyObject **, const char *> names[] = {
        {&NS, "ns"}, {&EVENT, "event"}, {&ENV, "env"}, {&CTX, "ctx"}, {&DICT, "__dict__"}};
    for (const auto &[name, text] : names)
        if (!(*name = PyUnicode_InternFromString(text))) return nullptr;
    return PyModule_Create(&definition);
}
