/* The layers of both trainers, as plain loops; N = B * T rows. Backward functions add to dw and db. */
#ifndef LAYERS_H
#define LAYERS_H
#include <math.h>

static inline float gelu(float x) { return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x))); }
static inline float gelu_slope(float x) {
    float t = tanhf(0.7978845608f * (x + 0.044715f * x * x * x));
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * 0.7978845608f * (1.0f + 3 * 0.044715f * x * x);
}

static inline void encoder_forward(float *out, const int *inp, const float *wte, const float *wpe, int B, int T, int C) {
    for (int i = 0; i < B * T * C; i++) { out[i] = wte[inp[i / C] * C + i % C] + wpe[i % (T * C)]; }
}
static inline void encoder_backward(float *dwte, float *dwpe, const float *dout, const int *inp, int B, int T, int C) {
    for (int i = 0; i < B * T * C; i++) {
        dwte[inp[i / C] * C + i % C] += dout[i];
        dwpe[i % (T * C)] += dout[i];
    }
}

static inline void add(float *out, const float *x, int n) {
    for (int i = 0; i < n; i++) { out[i] += x[i]; }
}
static inline float sum_of(const float *x, int n) {
    float sum = 0.0f;
    for (int i = 0; i < n; i++) { sum += x[i]; }
    return sum;
}
static inline int most_likely(const float *logits, int n) {
    int best = 0;
    for (int i = 1; i < n; i++) { best = logits[i] > logits[best] ? i : best; }
    return best;
}

static inline void layernorm_forward(float *out, float *mean, float *rstd, const float *inp, const float *w, const float *b, int N, int C) {
    for (int n = 0; n < N; n++) {
        const float *x = inp + n * C;
        float m = sum_of(x, C) / C, v = 0.0f;
        for (int i = 0; i < C; i++) { v += (x[i] - m) * (x[i] - m) / C; }
        mean[n] = m;
        rstd[n] = 1.0f / sqrtf(v + 1e-5f);
        for (int i = 0; i < C; i++) { out[n * C + i] = (x[i] - m) * rstd[n] * w[i] + b[i]; }
    }
}
// adds to dx too
static inline void layernorm_backward(float *dx, float *dw, float *db, const float *dout, const float *x, const float *w,
                                      const float *mean, const float *rstd, int N, int C) {
    for (int n = 0; n < N; n++, dx += C, dout += C, x += C) {
        float sum = 0.0f, dot = 0.0f;
        for (int i = 0; i < C; i++) {
            sum += w[i] * dout[i] / C;
            dot += w[i] * dout[i] * (x[i] - mean[n]) * rstd[n] / C;
        }
        for (int i = 0; i < C; i++) {
            float normal = (x[i] - mean[n]) * rstd[n];
            dw[i] += dout[i] * normal;
            db[i] += dout[i];
            dx[i] += (w[i] * dout[i] - sum - normal * dot) * rstd[n];
        }
    }
}

// out (N, OC) = x (N, C) w (OC, C)^T + b; with pre_gelu, this goes to pre_gelu and its GELU to out
static inline void matmul_forward(float *out, const float *x, const float *w, const float *b, int N, int C, int OC, float *pre_gelu) {
    for (int at = 0; at < N * OC; at++) {
        float sum = b ? b[at % OC] : 0.0f;
        for (int i = 0; i < C; i++) { sum += x[at / OC * C + i] * w[at % OC * C + i]; }
        if (pre_gelu) { pre_gelu[at] = sum; }
        out[at] = pre_gelu ? gelu(sum) : sum;
    }
}
static inline void matmul_backward(float *dx, float *dw, float *db, const float *dout, const float *x, const float *w,
                                   int N, int C, int OC, const float *pre_gelu) {
    for (int i = 0; i < N * C; i++) { dx[i] = 0.0f; }
    for (int at = 0; at < N * OC; at++) {
        int n = at / OC, o = at % OC;
        if (db) { db[o] += dout[at]; }
        for (int i = 0; i < C; i++) {
            dw[o * C + i] += dout[at] * x[n * C + i];
            dx[n * C + i] += dout[at] * w[o * C + i];
        }
    }
    for (int i = 0; pre_gelu && i < N * C; i++) { dx[i] *= gelu_slope(pre_gelu[i]); }
}

// losses (N) += cross entropy; in training, gradients replace the logits (N, P), of which the first V count
static inline void fused_classifier(float *logits, float *losses, float dloss, const int *targets, int N, int V, int P, int train) {
    for (int n = 0; n < N; n++) {
        float *row = logits + n * P, most = row[most_likely(row, V)], sum = 0.0f;
        for (int v = 0; v < V; v++) { sum += expf(row[v] - most); }
        losses[n] -= row[targets[n]] - most - logf(sum);
        for (int v = 0; v < V && train; v++) { row[v] = (expf(row[v] - most) / sum - (v == targets[n])) * dloss; }
    }
}
#endif
