// The norms behind a call's convolutions, network by network; included inside native_convolution.cpp.

struct Buffers {
    std::vector<float> x, grad, weight, flipped, bias, total, norm, seed, kept, numbers;
};
thread_local Buffers buffers;

float *room(std::vector<float> &buffer, size_t count) {
    if (buffer.size() < count + SPARE_FLOATS) buffer.resize(count + SPARE_FLOATS);
    return buffer.data();
}

float *zeros(std::vector<float> &buffer, size_t count) {
    float *const out = room(buffer, count);
    memset(out, 0, sizeof(float) * count);
    return out;
}

// The numbers of one network's norm, C each.
struct Factors {
    long room_each;
    float *factor;
    float *offset, *mean, *inverse, *sums, *more, *less, *less_normed, *gains;

    explicit Factors(long channels) : room_each(channels + 16), factor(room(buffers.norm, 9 * room_each)) { place(); }
    // Those from a channel on.
    Factors from(long channel) const {
        Factors part = *this;
        part.factor += channel;
        part.place();
        return part;
    }
    void place() {
        float *at = factor;
        for (float **one : {&offset, &mean, &inverse, &sums, &more, &less, &less_normed, &gains})
            *one = at += room_each;
    }
    NormFactors all() const { return {factor, offset, mean, inverse}; }

    // From the statistics of each group of channels.
    void fill(const Call &call, long g, long first) {
        const long together = call.together();
        for (long c = 0; c < call.outputs; c++) {
            mean[c] = call.mean[first + c / together];
            inverse[c] = c % together ? inverse[c - 1] : 1.0f / std::sqrt(call.variance[first + c / together] + EPSILON);
            factor[c] = call.scale[g * call.scale_step + c] * inverse[c];
            offset[c] = call.shift[g * call.shift_step + c] - mean[c] * factor[c];
        }
    }
};

// Sums over a group's channels, of numbers of each.
template <typename Term> float over_group(const Call &call, long group, Term term) {
    float sum = 0.0f;
    for (long c = group * call.together(); c < (group + 1) * call.together(); c++) sum += term(c);
    return sum;
}

// Measure one image of one network for a norm by its own statistics.
void measure_image(const Call &call, Factors &by, long g, long b) {
    const long groups = call.norm_groups(), from = call.output(g, b), step = call.out_step();
    const int pixels = (int)call.area(), channels = (int)call.outputs;
    const float count = (float)(pixels * call.together());
    const long first = (b * call.n + g) * groups;
    call.set->sum_values(call.raw + from, step, pixels, channels, by.sums);
    for (long k = 0; k < groups; k++) {
        call.mean[first + k] = over_group(call, k, [&](long c) { return by.sums[c]; }) / count;
        for (long c = k * call.together(); c < (k + 1) * call.together(); c++) by.mean[c] = call.mean[first + k];
    }
    call.set->sum_squares(call.raw + from, step, pixels, channels, by.mean, by.sums);
    for (long k = 0; k < groups; k++)
        call.variance[first + k] = over_group(call, k, [&](long c) { return by.sums[c]; }) / count;
    by.fill(call, g, first);
}

// Norm one image of one network by its own statistics.
void norm_image(const Call &call, Factors &by, long g, long b) {
    measure_image(call, by, g, b);
    const long from = call.output(g, b);
    call.set->apply_norm(call.raw + from, call.out_step(), (int)call.area(), (int)call.outputs, by.factor, by.offset,
                         call.skip ? call.skip + from : nullptr, call.gain_of(g), call.y + from);
}

// Take a block's pixels into mean and sum of squared deviations [2, O] of a network (Chan et al., 1979).
void measure_block(const Call &call, Factors &by, long g, long b, int images, double *found) {
    const int pixels = images * (int)call.area(), channels = (int)call.outputs;
    const double before = (double)b * call.area(), count = before + pixels;
    const float *const y = call.raw + call.output(g, b);
    call.set->sum_values(y, call.out_step(), pixels, channels, by.sums);
    for (int c = 0; c < channels; c++) by.mean[c] = by.sums[c] / (float)pixels;
    call.set->sum_squares(y, call.out_step(), pixels, channels, by.mean, by.more);
    for (int c = 0; c < channels; c++) {
        const double off = by.mean[c] - found[c];
        found[c] += off * (pixels / count);
        found[channels + c] += by.more[c] + off * off * (before * pixels / count);
    }
}

void norm_batch(const Call &call, const std::vector<double> &found) {
    const double count = (double)call.batch * call.area();
    for (long g = 0; g < call.n; g++)
        for (long c = 0; c < call.outputs; c++) {
            const double *const one = found.data() + 2 * g * call.outputs + c;
            call.mean[g * call.outputs + c] = (float)one[0];
            call.variance[g * call.outputs + c] = (float)(one[call.outputs] / count);
        }
    // All networks' channels at once: a pixel's lie one behind the other.
    const long all = call.out_step();
    Factors wide(all);
    for (long g = 0; g < call.n; g++) wide.from(g * call.outputs).fill(call, g, g * call.outputs);
    call.set->apply_norm(call.raw, all, (int)(call.batch * call.area()), (int)all, wide.factor, wide.offset, nullptr,
                         1.0f, call.y);
}

// The gradients that one image gives scale, shift and gain, added to them.
void sum_image(const Call &call, Factors &by, long g, long b) {
    const long from = call.output(g, b);
    call.set->sum_gradients(call.grad + from, call.raw + from, call.out_step(), (int)call.area(), (int)call.outputs,
                            by.all(), call.gain_of(g), by.sums, by.more, call.gain ? by.gains : nullptr);
    for (long c = 0; c < call.outputs; c++) {
        call.to_shift[g * call.outputs + c] += by.sums[c];
        call.to_scale[g * call.outputs + c] += by.more[c];
        if (call.gain) call.to_gain[g] += by.gains[c];
    }
}

// What `spread_gradients` takes off.
void set_less(const Call &call, Factors &by, long g, const float *ones, const float *normeds, double count) {
    const float *const scale = call.scale + g * call.scale_step;
    for (long k = 0; k < call.norm_groups(); k++) {
        const float one = over_group(call, k, [&](long c) { return scale[c] * ones[c]; }) / (float)count;
        const float normed = over_group(call, k, [&](long c) { return scale[c] * normeds[c]; }) / (float)count;
        for (long c = k * call.together(); c < (k + 1) * call.together(); c++) {
            by.less[c] = one * by.inverse[c];
            by.less_normed[c] = normed * by.inverse[c];
        }
    }
}

// Prepare what `spread_gradients` needs of batch norms, all networks' channels at once; their gradients of scale
// and shift. Sums are made block by block of images.
void sum_batch(const Call &call, Factors &wide, int most) {
    const long all = call.out_step();
    for (long g = 0; g < call.n; g++) wide.from(g * call.outputs).fill(call, g, g * call.outputs);
    for (long b = 0; b < call.batch; b += most) {
        const int images = (int)(call.batch - b < most ? call.batch - b : most);
        const long from = call.output(0, b);
        call.set->sum_gradients(call.grad + from, call.raw + from, all, images * (int)call.area(), (int)all,
                                wide.all(), 1.0f, wide.sums, wide.more, nullptr);
        for (long c = 0; c < all; c++) {
            call.to_shift[c] += wide.sums[c];
            call.to_scale[c] += wide.more[c];
        }
    }
    for (long g = 0; g < call.n; g++) {
        Factors by = wide.from(g * call.outputs);
        set_less(call, by, g, call.to_shift + g * call.outputs, call.to_scale + g * call.outputs,
                 (double)call.batch * call.area());
    }
}

// y = raw + gain * (norm(raw) - raw), which is raw itself, bit for bit, where the gain is 0.
void approach_norm(const Call &call) {
    Factors by(call.outputs);
    for (long b = 0; b < call.batch; b++)
        for (long g = 0; g < call.n; g++) {
            measure_image(call, by, g, b);
            const float gain = call.gain_of(g);
            for (long c = 0; c < call.outputs; c++) {
                by.less[c] = (1.0f - gain) + gain * by.factor[c];
                by.less_normed[c] = gain * by.offset[c];
            }
            const long from = call.output(g, b);
            call.set->apply_affine(call.raw + from, call.out_step(), (int)call.area(), (int)call.outputs, by.less,
                                   by.less_normed, call.y + from);
        }
}

void derive_approach(const Call &call) {
    Factors by(call.outputs);
    const int pixels = (int)call.area(), channels = (int)call.outputs;
    memset(call.to_scale, 0, sizeof(float) * call.out_step());
    memset(call.to_shift, 0, sizeof(float) * call.out_step());
    memset(call.to_gain, 0, sizeof(float) * call.n);
    for (long b = 0; b < call.batch; b++)
        for (long g = 0; g < call.n; g++) {
            const long from = call.output(g, b);
            const float *const grad = call.grad + from, *const raw = call.raw + from, gain = call.gain_of(g);
            by.fill(call, g, (b * call.n + g) * call.norm_groups());
            call.set->sum_changes(grad, raw, call.out_step(), pixels, channels, by.all(), by.sums, by.more, by.gains);
            for (long c = 0; c < channels; c++) {
                by.sums[c] *= gain;
                by.more[c] *= gain;
                call.to_shift[g * channels + c] += by.sums[c];
                call.to_scale[g * channels + c] += by.more[c];
                call.to_gain[g] += by.gains[c];
            }
            if (!call.to_x) continue;
            set_less(call, by, g, by.sums, by.more, (double)call.together() * pixels);
            for (long c = 0; c < channels; c++) by.sums[c] = (1.0f - gain) + gain * by.factor[c];
            call.set->spread_changes(grad, raw, call.out_step(), pixels, channels, by.all(), by.sums, by.less,
                                     by.less_normed, call.to_x + from);
        }
}
