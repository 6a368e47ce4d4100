// The kernels of a CUDA trainer as plain loops on the CPU: sums in fp32, results rounded to floatX.
#ifndef KERNELS_CUH
#define KERNELS_CUH
#include <math.h>

inline float gelu(float x) { return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x))); }
inline float gelu_slope(float x) {
    float t = tanhf(0.7978845608f * (x + 0.044715f * x * x * x));
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * 0.7978845608f * (1.0f + 3 * 0.044715f * x * x);
}

inline void encoder_forward(floatX *out, const int *inp, const floatX *wte, const floatX *wpe, int B, int T,
                            int C, cudaStream_t) {
    for (int bt = 0; bt < B * T; bt++) {
        for (int i = 0; i < C; i++) {
            out[bt * C + i] = (floatX)((float)wte[inp[bt] * C + i] + (float)wpe[bt % T * C + i]);
        }
    }
}
inline void encoder_backward(floatX *dwte, floatX *dwpe, floatX *, int *, int4 *, const floatX *dout,
                             const int *inp, const int *, int B, int T, int C, unsigned, cudaStream_t) {
    for (int bt = 0; bt < B * T; bt++) {
        for (int i = 0; i < C; i++) {
            floatX *te = dwte + inp[bt] * C + i, *pe = dwpe + bt % T * C + i;
            *te = (floatX)((float)*te + (float)dout[bt * C + i]);
            *pe = (floatX)((float)*pe + (float)dout[bt * C + i]);
        }
    }
}

inline void layernorm_forward(floatX *out, float *mean, float *rstd, floatX *x, const floatX *w,
                              const floatX *b, int B, int T, int C, cudaStream_t) {
    for (int bt = 0; bt < B * T; bt++) {
        float m = 0, v = 0;
        for (int i = 0; i < C; i++) {
            m += (float)x[bt * C + i] / C;
        }
        for (int i = 0; i < C; i++) {
            v += ((float)x[bt * C + i] - m) * ((float)x[bt * C + i] - m) / C;
        }
        mean[bt] = m;
        rstd[bt] = 1.0f / sqrtf(v + 1e-5f);
        for (int i = 0; i < C; i++) {
            out[bt * C + i] = (floatX)(((float)x[bt * C + i] - m) * rstd[bt] * (float)w[i] + (float)b[i]);
        }
    }
}
inline void fused_residual_forward5(floatX *sum, floatX *out, float *mean, float *rstd, const floatX *a,
                                    const floatX *x, const floatX *w, const floatX *b, int N, int C,
                                    cudaStream_t stream) {
    for (int i = 0; i < N * C; i++) {
        sum[i] = (floatX)((float)a[i] + (float)x[i]);
    }
    layernorm_forward(out, mean, rstd, sum, w, b, N, 1, C, stream);
}
inline void layernorm_backward(floatX *dx, floatX *dw, floatX *db, float *, const floatX *dout,
                               const floatX *x, const floatX *w, const float *mean, const float *rstd, int B,
                               int T, int C, cudaStream_t) {
    for (int bt = 0; bt < B * T; bt++) {
        float sum = 0, dot = 0;
        for (int i = 0; i < C; i++) {
            float n = ((float)x[bt * C + i] - mean[bt]) * rstd[bt], d = (float)w[i] * (float)dout[bt * C + i];
            sum += d / C;
            dot += d * n / C;
        }
        for (int i = 0; i < C; i++) {
            float n = ((float)x[bt * C + i] - mean[bt]) * rstd[bt], d = (float)dout[bt * C + i];
            dw[i] = (floatX)((float)dw[i] + d * n);
            db[i] = (floatX)((float)db[i] + d);
            dx[bt * C + i] = (floatX)((float)dx[bt * C + i] + ((float)w[i] * d - sum - n * dot) * rstd[bt]);
        }
    }
}

// out (BT, OC) = x (BT, C) w (OC, C)^T + b; with pre_gelu, this goes to pre_gelu and its GELU to out
inline void matmul_forward_cublaslt(floatX *out, floatX *x, floatX *w, floatX *b, int B, int T, int C, int OC,
                                    cudaStream_t, floatX *pre_gelu = NULL, int = 1) {
    for (int bt = 0; bt < B * T; bt++) {
        for (int o = 0; o < OC; o++) {
            float sum = b ? (float)b[o] : 0.0f;
            for (int i = 0; i < C; i++) {
                sum += (float)x[bt * C + i] * (float)w[o * C + i];
            }
            if (pre_gelu) {
                pre_gelu[bt * OC + o] = (floatX)sum;
            }
            out[(size_t)bt * OC + o] = (floatX)(pre_gelu ? gelu((float)pre_gelu[bt * OC + o]) : sum);
        }
    }
}
inline void matmul_backward(floatX *dx, floatX *dw, floatX *db, floatX *dout, floatX *x, floatX *w, float *,
                            int B, int T, int C, int OC, cudaStream_t, floatX *pre_gelu = NULL, int = 1) {
    for (int o = 0; o < OC && db; o++) {
        float sum = (float)db[o];
        for (int bt = 0; bt < B * T; bt++) {
            sum += (float)dout[bt * OC + o];
        }
        db[o] = (floatX)sum;
    }
    for (int o = 0; o < OC; o++) {
        for (int i = 0; i < C; i++) {
            float sum = (float)dw[o * C + i];
            for (int bt = 0; bt < B * T; bt++) {
                sum += (float)dout[(size_t)bt * OC + o] * (float)x[bt * C + i];
            }
            dw[o * C + i] = (floatX)sum;
        }
    }
    for (int bt = 0; bt < B * T; bt++) {
        for (int i = 0; i < C; i++) {
            float sum = 0;
            for (int o = 0; o < OC; o++) {
                sum += (float)dout[(size_t)bt * OC + o] * (float)w[o * C + i];
            }
            dx[bt * C + i] = (floatX)(pre_gelu ? sum * gelu_slope((float)pre_gelu[bt * C + i]) : sum);
        }
    }
}

// losses (B, T) += cross entropy; in training, gradients replace the logits (B, T, P), of which the first V count
template <typename Write> inline void fused_classifier(floatX *logits, float *losses, float dloss,
                                                       const int *targets, int B, int T, int V, int P,
                                                       Write write, cudaStream_t) {
    for (int bt = 0; bt < B * T; bt++) {
        floatX *row = logits + (size_t)bt * P;
        float most = -INFINITY, sum = 0;
        for (int v = 0; v < V; v++) {
            most = fmaxf(most, (float)row[v]);
        }
        for (int v = 0; v < V; v++) {
            sum += expf((float)row[v] - most);
        }
        losses[bt] -= (float)row[targets[bt]] - most - logf(sum);
        for (int v = 0; v < V && write; v++) {
            row[v] = (floatX)((expf((float)row[v] - most) / sum - (v == targets[bt])) * dloss);
        }
    }
}

inline void global_sum_deterministic(float *result, const float *values, int n, cudaStream_t) {
    float sum = 0;
    for (int i = 0; i < n; i++) {
        sum += values[i];
    }
    *result = sum;
}
#endif
