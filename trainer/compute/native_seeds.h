// The seeds in a slot of hosts side by side, see native_seeds.py; included by native_convolution.cpp. One seed after
// the other is taken through its layers, so that none depends on which others there are, with some images at a time,
// so that what a layer makes is in the caches for the next: no layer mixes images.

namespace {

constexpr long SEED_FLOATS = 32768;  // of a seed's map that are taken through all layers: five such fit a second cache

enum LayerKind { CONVOLUTION, DEPTHWISE, NORM, ATTENTION };
enum Blending { ADD, MULTIPLY, GATE, ISOLATED };  // the first three as Style

// A layer of a blueprint. Its tensors by their places among a seed's numbers, -1 = it has none. With a scale a
// convolution has relu(group norm) behind it, with a gain the seed's input is added to so much of that.
// ATTENTION: squeeze weight and bias, excite weight and bias; `outputs` is how far it squeezes.
struct Layer {
    long long kind, inputs, outputs, kernel, weight, scale, shift, gain;

    bool keeps_channels() const { return kind != CONVOLUTION; }
    long made() const { return keeps_channels() ? inputs : outputs; }
};

struct SeedKind {
    const Layer *layers;
    long long num_layers;
    const float *numbers;  // [owners, ...], `step` apart
    long long step;
    float *to_numbers;  // [owners, count], 0 before
    long long count;
};

struct SeedRow {
    long long host, owner, kind, blending;
};

struct SeedCall {
    float *host;        // [pixels, n, C]
    const float *grad;  // of what comes out
    float *to_host;     // its gradient, which begins as that
    float *kept;        // what the gradients need; null = nothing is kept
    const SeedRow *rows;
    const float *alpha;  // of each row
    const float *gate;   // [owners, C + 1], weights and bias; `gate_step` apart
    float *to_gate;      // [owners, C + 1], 0 before
    long long gate_step, batch, height, width, channels, n, num_rows, num_kinds;
};

struct SeedSlot : SeedCall {
    const InstructionSet *set;
    const SeedKind *kinds;

    long area() const { return height * width; }
    long pixels() const { return batch * area(); }
    long step() const { return n * channels; }
    long block_images() const { return std::max(1L, std::min((long)batch, SEED_FLOATS / (long)(area() * channels))); }
    // Some images from one on.
    SeedSlot part(long first, long images) const {
        SeedSlot some = *this;
        for (float **map : {&some.host, &some.to_host})
            if (*map) *map += first * area() * step();
        if (grad) some.grad += first * area() * step();
        some.batch = images;
        return some;
    }
    long widest(const SeedKind &kind) const {
        long most = channels;
        for (long i = 0; i < kind.num_layers; i++) most = std::max(most, kind.layers[i].made());
        return most;
    }
    Call call(const Layer &layer, const float *numbers) const {
        Call made{};
        made.set = set;
        made.batch = batch, made.height = height, made.width = width, made.n = 1;
        made.inputs = layer.inputs, made.outputs = layer.made(), made.kernel = layer.kernel;
        made.weight = numbers + layer.weight;
        made.norm = layer.scale < 0 ? NONE : OF_GROUPS;
        if (layer.scale >= 0) made.scale = numbers + layer.scale, made.shift = numbers + layer.shift;
        if (layer.gain >= 0) made.gain = numbers + layer.gain;
        if (layer.kind == CONVOLUTION) flatten_pointwise(made);
        return made;
    }
};

// What a layer made and what its gradient needs, piece behind piece.
struct LayerMemory {
    float *made, *raw, *mean, *variance, *pooled, *hidden, *factor;
    float *end;

    LayerMemory(const SeedSlot &slot, const Layer &layer, float *at) {
        const Call call = slot.call(layer, nullptr);
        const auto piece = [&at](long count) { return (at += count) - count; };
        const long images = slot.batch;
        made = piece(slot.pixels() * layer.made());
        const bool is_normed = layer.kind == NORM || (layer.kind == CONVOLUTION && layer.scale >= 0);
        raw = piece(layer.kind == CONVOLUTION ? slot.pixels() * layer.made() : 0);
        mean = piece(is_normed ? images * call.norm_groups() : 0);
        variance = piece(is_normed ? images * call.norm_groups() : 0);
        const bool attends = layer.kind == ATTENTION;
        pooled = piece(attends ? images * layer.inputs : 0);
        hidden = piece(attends ? images * layer.outputs : 0);
        factor = piece(attends ? images * layer.inputs : 0);
        end = at;
    }
};

// What a row keeps.
struct RowMemory {
    float *x, *pooled, *opening;
    std::vector<LayerMemory> layers;
    float *end;

    RowMemory(const SeedSlot &slot, const SeedRow &row, float *at) : x(at) {
        at += slot.pixels() * slot.channels;
        const bool is_gated = row.blending == GATE;
        pooled = at, opening = at += is_gated ? slot.batch * slot.channels : 0;
        at += is_gated ? slot.batch : 0;
        const SeedKind &kind = slot.kinds[row.kind];
        for (long i = 0; i < kind.num_layers; i++) {
            layers.emplace_back(slot, kind.layers[i], at);
            at = layers.back().end;
        }
        end = at;
    }
    const float *input(size_t layer) const { return layer ? layers[layer - 1].made : x; }
    const float *output() const { return input(layers.size()); }
};

float sigmoid(float v) { return 1.0f / (1.0f + std::exp(-v)); }

// Means over the map, [batch, channels].
void pool_map(const SeedSlot &slot, const float *x, long channels, float *means) {
    const long area = slot.area();
    for (long b = 0; b < slot.batch; b++) {
        float *const mean = means + b * channels;
        slot.set->sum_values(x + b * area * channels, channels, (int)area, (int)channels, mean);
        for (long c = 0; c < channels; c++) mean[c] /= (float)area;
    }
}

// Squeeze and excitation: y = x * 2 sigmoid(excite(relu(squeeze(mean of x)))).
void attend(const SeedSlot &slot, const Layer &layer, const float *numbers, const float *x, const LayerMemory &at) {
    const long channels = layer.inputs, width = layer.outputs, area = slot.area();
    const float *const squeeze = numbers + layer.weight, *const excite = numbers + layer.shift;
    const std::vector<float> nothing(channels);
    pool_map(slot, x, channels, at.pooled);
    for (long b = 0; b < slot.batch; b++) {
        const float *const mean = at.pooled + b * channels;
        float *const hidden = at.hidden + b * width, *const factor = at.factor + b * channels;
        for (long j = 0; j < width; j++) {
            float sum = numbers[layer.scale + j];
            for (long c = 0; c < channels; c++) sum += squeeze[j * channels + c] * mean[c];
            hidden[j] = sum < 0.0f ? 0.0f : sum;
        }
        for (long c = 0; c < channels; c++) {
            float sum = numbers[layer.gain + c];
            for (long j = 0; j < width; j++) sum += excite[c * width + j] * hidden[j];
            factor[c] = 2.0f * sigmoid(sum);
        }
        const long from = b * area * channels;
        slot.set->apply_affine(x + from, channels, (int)area, (int)channels, factor, nothing.data(), at.made + from);
    }
}

// The gradients of `attend`; to_x may be null.
void derive_attention(const SeedSlot &slot, const Layer &layer, const float *numbers, const float *x,
                      const LayerMemory &at, const float *grad, float *to_x, float *to_numbers) {
    const long channels = layer.inputs, width = layer.outputs, area = slot.area();
    const float *const squeeze = numbers + layer.weight, *const excite = numbers + layer.shift;
    std::vector<float> by_score(channels), by_hidden(width), by_mean(channels);
    for (long b = 0; b < slot.batch; b++) {
        const long from = b * area * channels;
        const float *const mean = at.pooled + b * channels, *const hidden = at.hidden + b * width;
        const float *const factor = at.factor + b * channels;
        slot.set->sum_products(grad + from, x + from, nullptr, (int)area, (int)channels, by_score.data());
        std::fill(by_hidden.begin(), by_hidden.end(), 0.0f);
        std::fill(by_mean.begin(), by_mean.end(), 0.0f);
        for (long c = 0; c < channels; c++) {
            by_score[c] *= factor[c] * (1.0f - 0.5f * factor[c]);
            to_numbers[layer.gain + c] += by_score[c];
            for (long j = 0; j < width; j++) {
                to_numbers[layer.shift + c * width + j] += by_score[c] * hidden[j];
                by_hidden[j] += by_score[c] * excite[c * width + j];
            }
        }
        for (long j = 0; j < width; j++) {
            if (!(hidden[j] > 0.0f)) continue;
            to_numbers[layer.scale + j] += by_hidden[j];
            for (long c = 0; c < channels; c++) {
                to_numbers[layer.weight + j * channels + c] += by_hidden[j] * mean[c];
                by_mean[c] += by_hidden[j] * squeeze[j * channels + c];
            }
        }
        if (!to_x) continue;
        for (long c = 0; c < channels; c++) by_mean[c] /= (float)area;
        slot.set->apply_affine(grad + from, channels, (int)area, (int)channels, factor, by_mean.data(), to_x + from);
    }
}

void run_layer(const SeedSlot &slot, const Layer &layer, const float *numbers, const float *seen, const float *x,
               const LayerMemory &at) {
    Call call = slot.call(layer, numbers);
    call.x = const_cast<float *>(x), call.y = at.made, call.mean = at.mean, call.variance = at.variance;
    call.raw = at.raw;
    if (layer.kind == ATTENTION) return attend(slot, layer, numbers, x, at);
    if (layer.kind == DEPTHWISE) return convolve_depthwise(call);
    if (layer.kind == NORM) {
        call.raw = call.x;
        return approach_norm(call);
    }
    if (layer.gain >= 0 && call.norm) call.skip = seen;
    const bool adds = layer.gain >= 0 && !call.norm;
    if (adds) call.y = at.raw;
    convolve(call);
    if (adds)
        slot.set->add_scaled(seen, at.raw, numbers[layer.gain], (int)(slot.pixels() * layer.outputs), at.made);
}

// The gradients of a layer's numbers and of its input; `to_x` null = that is not wanted. `spare` as large as grad.
void derive_layer(const SeedSlot &slot, const Layer &layer, const float *numbers, const float *x,
                  const LayerMemory &at, const float *grad, float *spare, float *to_x, float *to_numbers) {
    if (layer.kind == ATTENTION)
        return derive_attention(slot, layer, numbers, x, at, grad, to_x, to_numbers);
    Call call = slot.call(layer, numbers);
    call.x = const_cast<float *>(x), call.raw = at.raw, call.mean = at.mean, call.variance = at.variance;
    call.grad = grad, call.to_x = to_x, call.to_weight = to_numbers + layer.weight;
    if (call.norm) call.to_scale = to_numbers + layer.scale, call.to_shift = to_numbers + layer.shift;
    if (layer.gain >= 0) call.to_gain = to_numbers + layer.gain;
    if (layer.kind == DEPTHWISE) return derive_depthwise(call);
    if (layer.kind == NORM) {
        call.raw = call.x;
        return derive_approach(call);
    }
    if (layer.gain >= 0 && !call.norm) {
        const int count = (int)(slot.pixels() * layer.outputs);
        std::vector<float> sums(layer.outputs);
        slot.set->sum_products(grad, at.raw, nullptr, (int)slot.pixels(), (int)layer.outputs, sums.data());
        for (const float sum : sums) *call.to_gain += sum;
        slot.set->scale_numbers(grad, numbers[layer.gain], count, spare);
        call.grad = spare;
    }
    derive(call);
}

// alpha, times how far the gate is open for an image.
float strength(const SeedRow &row, const RowMemory &memory, float alpha, long b) {
    return row.blending == GATE && alpha != 0.0f ? alpha * memory.opening[b] : alpha;
}

void run_row(const SeedSlot &slot, const SeedRow &row, float alpha, const RowMemory &memory) {
    const SeedKind &kind = slot.kinds[row.kind];
    const float *const numbers = kind.numbers + row.owner * kind.step;
    float *const host = slot.host + row.host * slot.channels;
    const long area = slot.area(), channels = slot.channels;
    slot.set->take_pixels(host, slot.step(), (int)slot.pixels(), (int)channels, memory.x);
    for (long i = 0; i < kind.num_layers; i++)
        run_layer(slot, kind.layers[i], numbers, memory.x, memory.input(i), memory.layers[i]);
    if (row.blending == GATE) {
        const float *const gate = slot.gate + row.owner * slot.gate_step;
        pool_map(slot, memory.x, channels, memory.pooled);
        for (long b = 0; b < slot.batch; b++) {
            float score = gate[channels];
            for (long c = 0; c < channels; c++) score += gate[c] * memory.pooled[b * channels + c];
            memory.opening[b] = sigmoid(score);
        }
    }
    if (row.blending == ISOLATED) return;
    for (long b = 0; b < slot.batch; b++) {
        const float by = strength(row, memory, alpha, b);
        const long from = b * area * channels;
        if (by != 0.0f)  // 0 times what is not finite is not 0
            slot.set->blend_pixels(host + b * area * slot.step(), slot.step(), (int)area, (int)channels,
                                   memory.x + from, memory.output() + from, by, row.blending == MULTIPLY);
    }
}

// The gradient of a gate, and what of it reaches the seed's input.
void derive_gate(const SeedSlot &slot, const SeedRow &row, float alpha, const RowMemory &memory, const float *grad,
                 float *to_x) {
    const long area = slot.area(), channels = slot.channels;
    const float *const gate = slot.gate + row.owner * slot.gate_step;
    float *const to_gate = slot.to_gate + row.owner * (channels + 1);
    std::vector<float> sums(channels), ones(channels, 1.0f);
    for (long b = 0; b < slot.batch; b++) {
        const long from = b * area * channels;
        slot.set->sum_products(grad + from, memory.output() + from, memory.x + from, (int)area, (int)channels,
                               sums.data());
        float change = 0.0f;
        for (const float sum : sums) change += sum;
        const float open = memory.opening[b], score = change * alpha * (open * (1.0f - open));
        to_gate[channels] += score;
        for (long c = 0; c < channels; c++) {
            to_gate[c] += score * memory.pooled[b * channels + c];
            sums[c] = score * gate[c] / (float)area;
        }
        slot.set->apply_affine(to_x + from, channels, (int)area, (int)channels, ones.data(), sums.data(), to_x + from);
    }
}

void derive_row(const SeedSlot &slot, const SeedRow &row, float alpha, const RowMemory &memory) {
    const SeedKind &kind = slot.kinds[row.kind];
    const float *const numbers = kind.numbers + row.owner * kind.step;
    float *const to_numbers = zeros(buffers.numbers, kind.count);
    const long area = slot.area(), channels = slot.channels;
    const int count = (int)(slot.pixels() * channels), pixels = (int)slot.pixels();
    const long wide = slot.pixels() * slot.widest(kind);
    float *grad = room(buffers.seed, 5 * wide), *next = grad + wide, *const spare = next + wide;
    float *const to_x = spare + wide, *const of_host = to_x + wide;
    const float *const given = slot.grad + row.host * channels;
    const bool is_attached = row.blending != ISOLATED;
    if (!is_attached) slot.set->take_pixels(given, slot.step(), pixels, (int)channels, grad);
    for (long b = 0; is_attached && b < slot.batch; b++) {
        const long from = b * area * channels;
        slot.set->derive_pixels(given + b * area * slot.step(), slot.step(), (int)area, (int)channels, memory.x + from,
                                memory.output() + from, strength(row, memory, alpha, b), row.blending == MULTIPLY,
                                grad + from, to_x + from);
    }
    if (row.blending == GATE && alpha != 0.0f) {
        slot.set->take_pixels(given, slot.step(), pixels, (int)channels, of_host);
        derive_gate(slot, row, alpha, memory, of_host, to_x);
    }
    for (long i = kind.num_layers - 1; i >= 0; i--) {
        const Layer &layer = kind.layers[i];
        const bool has_skip = layer.kind == CONVOLUTION && layer.gain >= 0;
        if (has_skip && is_attached) slot.set->add_scaled(to_x, grad, 1.0f, count, to_x);
        derive_layer(slot, layer, numbers, memory.input(i), memory.layers[i], grad, spare,
                     i || is_attached ? next : nullptr, to_numbers);
        std::swap(grad, next);
    }
    float *const sums = kind.to_numbers + row.owner * kind.count;
    for (long i = 0; i < kind.count; i++) sums[i] += to_numbers[i];
    if (!is_attached || alpha == 0.0f) return;
    slot.set->add_pixels(slot.to_host + row.host * channels, slot.step(), pixels, (int)channels, to_x, grad);
}

// Visit each block of images for each row, with what they keep: neighbouring hosts share cache lines.
template <typename Visit> void for_blocks(const SeedSlot &slot, Visit visit) {
    float *at = slot.kept;
    for (long first = 0, images = slot.block_images(); first < slot.batch; first += images) {
        const SeedSlot part = slot.part(first, std::min(images, (long)slot.batch - first));
        for (long i = 0; i < slot.num_rows; i++) {
            if (!slot.kept) at = room(buffers.kept, RowMemory(part, slot.rows[i], nullptr).end - (float *)nullptr);
            const RowMemory memory(part, slot.rows[i], at);
            visit(part, slot.rows[i], slot.alpha[i], memory);
            at = memory.end;
        }
    }
}

void run_seeds(const SeedSlot &slot) { for_blocks(slot, run_row); }

void derive_seeds(const SeedSlot &slot) { for_blocks(slot, derive_row); }

// A call's instruction set, its numbers and those of its kinds.
bool read_slot(PyObject *arguments, SeedSlot &slot, std::vector<SeedKind> &storage) {
    constexpr Py_ssize_t FIELDS = sizeof(SeedCall) / sizeof(long long), OF_KIND = sizeof(SeedKind) / sizeof(long long);
    const char *name;
    PyObject *numbers, *kinds;
    if (!PyArg_ParseTuple(arguments, "sO!O!", &name, &PyTuple_Type, &numbers, &PyTuple_Type, &kinds) ||
        !read_numbers(numbers, (long long *)static_cast<SeedCall *>(&slot), FIELDS) || !(slot.set = find(name)))
        return false;
    storage.resize(slot.num_kinds);
    slot.kinds = storage.data();
    return read_numbers(kinds, (long long *)storage.data(), slot.num_kinds * OF_KIND);
}

PyObject *perform_slot(PyObject *arguments, void (*work)(const SeedSlot &)) {
    SeedSlot slot;
    std::vector<SeedKind> kinds;
    if (!read_slot(arguments, slot, kinds)) return nullptr;
    bool enough = true;
    Py_BEGIN_ALLOW_THREADS
    try {
        work(slot);
    } catch (const std::bad_alloc &) {
        enough = false;
    }
    Py_END_ALLOW_THREADS
    if (!enough) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

PyObject *py_run_seeds(PyObject *, PyObject *arguments) { return perform_slot(arguments, run_seeds); }

PyObject *py_derive_seeds(PyObject *, PyObject *arguments) { return perform_slot(arguments, derive_seeds); }

// How many numbers a call of `run_seeds` keeps.
PyObject *py_seeds_room(PyObject *, PyObject *arguments) {
    SeedSlot slot;
    std::vector<SeedKind> kinds;
    if (!read_slot(arguments, slot, kinds)) return nullptr;
    const auto count_of = [&](long row, long images) {
        return RowMemory(slot.part(0, images), slot.rows[row], nullptr).end - (float *)nullptr;
    };
    const long most = slot.block_images(), rest = slot.batch % most;
    long long count = 0;
    for (long i = 0; i < slot.num_rows; i++)
        count += slot.batch / most * count_of(i, most) + (rest ? count_of(i, rest) : 0);
    return PyLong_FromLongLong(count + SPARE_FLOATS);
}

}  // namespace
