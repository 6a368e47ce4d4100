/*
A trainer with the structure of llm.c's train_gpt2.c and a tiny language model: each layer computes a small network from a position
and the one before it, and adds the result to the residual stream.
    make train_gpt2 make_files && ./make_files 16 64 3 8 && ./train_gpt2
*/
#include <math.h>
#include <string.h>
#include <unistd.h>
// fopenCheck, freadCheck, mallocCheck
#include "llmc/utils.h"
// dataloader_init, dataloader_reset, dataloader_next_batch, dataloader_free
#include "llmc/dataloader.h"

// ----------------------------------------------------------------------------
// layers; x is (B, T, C), H = 2 * C

void embed_forward(float *x, const int *inp, const float *wte, const float *wpe, int B, int T, int C) {
    for (int bt = 0; bt < B * T; bt++) {
        for (int i = 0; i < C; i++) { x[bt * C + i] = wte[inp[bt] * C + i] + wpe[bt % T * C + i]; }
    }
}
void embed_backward(float *dwte, float *dwpe, const float *dx, const int *inp, int B, int T, int C) {
    for (int bt = 0; bt < B * T; bt++) {
        for (int i = 0; i < C; i++) {
            dwte[inp[bt] * C + i] += dx[bt * C + i];
            dwpe[bt % T * C + i] += dx[bt * C + i];
        }
    }
}

// hidden (B, T, H) = tanh(upw (x_t + x_{t-1}) + upb);  out = x + downw hidden
void mix_forward(float *out, float *hidden, const float *x, const float *upw, const float *upb, const float *downw, int B, int T, int C) {
    int H = 2 * C;
    for (int bt = 0; bt < B * T; bt++) {
        const float *now = x + bt * C, *last = bt % T ? now - C : now;
        float *h = hidden + bt * H;
        for (int j = 0; j < H; j++) {
            h[j] = upb[j];
            for (int i = 0; i < C; i++) { h[j] += upw[j * C + i] * (now[i] + last[i]); }
            h[j] = tanhf(h[j]);
        }
        for (int i = 0; i < C; i++) {
            out[bt * C + i] = now[i];
            for (int j = 0; j < H; j++) { out[bt * C + i] += downw[i * H + j] * h[j]; }
        }
    }
}
void mix_backward(float *dx, float *dupw, float *dupb, float *ddownw, const float *dout, const float *hidden, const float *x,
                  const float *upw, const float *downw, int B, int T, int C) {
    int H = 2 * C;
    for (int bt = 0; bt < B * T; bt++) {
        const float *now = x + bt * C, *last = bt % T ? now - C : now, *h = hidden + bt * H, *d = dout + bt * C;
        float *dnow = dx + bt * C, *dlast = bt % T ? dnow - C : dnow;
        float dh[H];
        memset(dh, 0, sizeof(dh));
        for (int i = 0; i < C; i++) {
            dnow[i] += d[i];
            for (int j = 0; j < H; j++) {
                dh[j] += downw[i * H + j] * d[i];
                ddownw[i * H + j] += h[j] * d[i];
            }
        }
        for (int j = 0; j < H; j++) {
            dh[j] *= 1.0f - h[j] * h[j];
            dupb[j] += dh[j];
            for (int i = 0; i < C; i++) {
                dupw[j * C + i] += dh[j] * (now[i] + last[i]);
                dnow[i] += dh[j] * upw[j * C + i];
                dlast[i] += dh[j] * upw[j * C + i];
            }
        }
    }
}

void scale_forward(float *out, const float *x, const float *gain, int BT, int C) {
    for (int i = 0; i < BT * C; i++) { out[i] = x[i] * gain[i % C]; }
}
void scale_backward(float *dx, float *dgain, const float *dout, const float *x, const float *gain, int BT, int C) {
    for (int i = 0; i < BT * C; i++) {
        dx[i] += dout[i] * gain[i % C];
        dgain[i % C] += dout[i] * x[i];
    }
}

// probs (B, T, V) = softmax(x wte)
void head_forward(float *probs, const float *x, const float *wte, int BT, int C, int V) {
    for (int bt = 0; bt < BT; bt++) {
        float *p = probs + (size_t)bt * V, most = -1e30f, sum = 0.0f;
        for (int v = 0; v < V; v++) {
            p[v] = 0.0f;
            for (int i = 0; i < C; i++) { p[v] += wte[v * C + i] * x[bt * C + i]; }
            if (p[v] > most) { most = p[v]; }
        }
        for (int v = 0; v < V; v++) { sum += p[v] = expf(p[v] - most); }
        for (int v = 0; v < V; v++) { p[v] /= sum; }
    }
}
void head_backward(float *dx, float *dwte, const float *probs, const int *targets, const float *x, const float *wte, int BT, int C, int V) {
    for (int bt = 0; bt < BT; bt++) {
        for (int v = 0; v < V; v++) {
            float d = (probs[(size_t)bt * V + v] - (v == targets[bt])) / BT;
            for (int i = 0; i < C; i++) {
                dx[bt * C + i] += d * wte[v * C + i];
                dwte[v * C + i] += d * x[bt * C + i];
            }
        }
    }
}

// ----------------------------------------------------------------------------
// the model

typedef struct {
    int max_seq_len;
    int vocab_size;
    int num_layers;
    int channels;
} GPT2Config;

#define NUM_PARAMETER_TENSORS 6
typedef struct {
    float* wte; // (V, C)
    float* upw; // (L, 2*C, C)
    float* upb; // (L, 2*C)
    float* downw; // (L, C, 2*C)
    float* wpe; // (maxT, C)
    float* gain; // (C)
} ParameterTensors;

void fill_in_parameter_sizes(size_t* param_sizes, GPT2Config config) {
    size_t V = config.vocab_size, C = config.channels, maxT = config.max_seq_len;
    size_t L = config.num_layers;
    param_sizes[0] = V * C;
    param_sizes[1] = L * (2 * C) * C;
    param_sizes[2] = L * (2 * C);
    param_sizes[3] = L * C * (2 * C);
    param_sizes[4] = maxT * C;
    param_sizes[5] = C;
}

float* malloc_and_point_parameters(ParameterTensors* params, size_t* param_sizes) {
    float** fields[] = { &params->wte, &params->upw, &params->upb, &params->downw, &params->wpe, &params->gain };
    size_t total = 0;
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) { total += param_sizes[i]; }
    float* memory = (float*)mallocCheck(total * sizeof(float));
    for (size_t i = 0, at = 0; i < NUM_PARAMETER_TENSORS; at += param_sizes[i++]) { *fields[i] = memory + at; }
    return memory;
}

typedef struct {
    float* embedded; // (B, T, C)
    float* hidden; // (L, B, T, 2*C)
    float* stream; // (L, B, T, C)
    float* scaled; // (B, T, C)
    float* chances; // (B, T, V)
} ActivationTensors;

size_t num_activations(GPT2Config config, int B, int T) {
    return (size_t)B * T * (config.channels * (2 + 3 * config.num_layers) + config.vocab_size);
}
float* malloc_and_point_activations(ActivationTensors* acts, GPT2Config config, int B, int T) {
    float* memory = (float*)mallocCheck(num_activations(config, B, T) * sizeof(float));
    size_t BTC = (size_t)B * T * config.channels, L = config.num_layers;
    acts->embedded = memory;
    acts->hidden = acts->embedded + BTC;
    acts->stream = acts->hidden + L * 2 * BTC;
    acts->scaled = acts->stream + L * BTC;
    acts->chances = acts->scaled + BTC;
    return memory;
}

typedef struct {
    GPT2Config config;
    ParameterTensors params;
    size_t param_sizes[NUM_PARAMETER_TENSORS];
    float* params_memory;
    size_t num_parameters;
    ParameterTensors grads;
    float* grads_memory;
    float* m_memory; // of AdamW
    float* v_memory;
    ActivationTensors acts;
    float* acts_memory;
    ActivationTensors grads_acts;
    float* grads_acts_memory;
    int batch_size;
    int seq_len;
    int* inputs;
    int* targets;
    float mean_loss; // -1 after a pass without targets
} GPT2;

void gpt2_build_from_checkpoint(GPT2* model, const char* path) {
    FILE *file = fopenCheck(path, "rb");
    int header[256];
    freadCheck(header, sizeof(int), 256, file);
    if (header[0] != 20240326) { printf("Error: %s is not a model file\n", path); exit(1); }
    memset(model, 0, sizeof(*model));
    model->config.max_seq_len = header[2];
    model->config.vocab_size = header[3];
    model->config.num_layers = header[4];
    model->config.channels = header[6];
    fill_in_parameter_sizes(model->param_sizes, model->config);
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) { model->num_parameters += model->param_sizes[i]; }
    printf("%d layers, %d channels, %zu parameters\n", header[4], header[6], model->num_parameters);

    model->params_memory = malloc_and_point_parameters(&model->params, model->param_sizes);
    freadCheck(model->params_memory, sizeof(float), model->num_parameters, file);
    fclose(file);
}

void gpt2_forward(GPT2* model, int* inputs, int* targets, size_t B, size_t T) {
    if (model->params_memory == NULL) {
        printf("Error: no model\n");
        exit(1);
    }
    size_t V = model->config.vocab_size, C = model->config.channels;
    size_t L = model->config.num_layers; // layers
    if (model->acts_memory == NULL) {
        model->acts_memory = malloc_and_point_activations(&model->acts, model->config, B, T);
        model->inputs = (int*)mallocCheck(B * T * sizeof(int));
        model->targets = (int*)mallocCheck(B * T * sizeof(int));
        model->batch_size = B;
        model->seq_len = T;
    }
    memcpy(model->inputs, inputs, B * T * sizeof(int));
    if (targets != NULL) { memcpy(model->targets, targets, B * T * sizeof(int)); }

    ParameterTensors params = model->params; // a shorter name
    ActivationTensors acts = model->acts;
    embed_forward(acts.embedded, inputs, params.wte, params.wpe, B, T, C); // (B, T, C)
    for (int l = 0; l < L; l++) {
        float* x = l == 0 ? acts.embedded : acts.stream + (l-1) * B * T * C;
        float* l_upw = params.upw + l * 2*C * C;
        float* l_upb = params.upb + l * 2*C;
        float* l_downw = params.downw + l * C * 2*C;
        float* l_hidden = acts.hidden + l * B * T * 2*C;
        float* l_stream = acts.stream + l * B * T * C;
        mix_forward(l_stream, l_hidden, x, l_upw, l_upb, l_downw, B, T, C);
    }
    float* last = acts.stream + (L-1) * B * T * C;
    scale_forward(acts.scaled, last, params.gain, B * T, C);
    head_forward(acts.chances, acts.scaled, params.wte, B * T, C, V);

    if (targets != NULL) {
        float loss = 0.0f;
        for (size_t i = 0; i < B * T; i++) { loss -= logf(acts.chances[i * V + targets[i]]); }
        loss /= B * T;
        model->mean_loss = loss;
    } else {
        model->mean_loss = -1.0f;
    }
}

void gpt2_zero_grad(GPT2* model) {
    if (model->grads_memory != NULL) { memset(model->grads_memory, 0, model->num_parameters * sizeof(float)); }
    if (model->grads_acts_memory != NULL) {
        memset(model->grads_acts_memory, 0, num_activations(model->config, model->batch_size, model->seq_len) * sizeof(float));
    }
}

void gpt2_backward(GPT2* model) {
    if (model->mean_loss < 0.0f) {
        printf("Error: no targets, no backward pass\n");
        exit(1);
    }
    size_t B = model->batch_size, T = model->seq_len;
    size_t V = model->config.vocab_size, C = model->config.channels;
    size_t L = model->config.num_layers; // layers
    if (model->grads_memory == NULL) {
        model->grads_memory = malloc_and_point_parameters(&model->grads, model->param_sizes);
        model->grads_acts_memory = malloc_and_point_activations(&model->grads_acts, model->config, B, T);
        gpt2_zero_grad(model);
    }

    ParameterTensors params = model->params;
    ParameterTensors grads = model->grads;
    ActivationTensors acts = model->acts;
    ActivationTensors grads_acts = model->grads_acts;
    head_backward(grads_acts.scaled, grads.wte, acts.chances, model->targets, acts.scaled, params.wte, B * T, C, V);
    float* last = acts.stream + (L-1) * B * T * C;
    float* dlast = grads_acts.stream + (L-1) * B * T * C;
    scale_backward(dlast, grads.gain, grads_acts.scaled,
                   last, params.gain, B * T, C);

    for (int l = L-1; l >= 0; l--) {
        float* x = l == 0 ? acts.embedded : acts.stream + (l-1) * B * T * C;
        float* dx = l == 0 ? grads_acts.embedded : grads_acts.stream + (l-1) * B * T * C;
        float* l_upw = params.upw + l * 2*C * C;
        float* l_downw = params.downw + l * C * 2*C;
        // and their gradients
        float* dl_upw = grads.upw + l * 2*C * C;
        float* dl_upb = grads.upb + l * 2*C;
        float* dl_downw = grads.downw + l * C * 2*C;
        float* l_hidden = acts.hidden + l * B * T * 2*C;
        float* dl_stream = grads_acts.stream + l * B * T * C;
        mix_backward(dx, dl_upw, dl_upb, dl_downw, dl_stream, l_hidden, x, l_upw, l_downw, B, T, C);
    }
    embed_backward(grads.wte, grads.wpe, grads_acts.embedded, model->inputs, B, T, C);
}

void gpt2_update(GPT2* model, float learning_rate, float beta1, float beta2, float eps,
                 float weight_decay, int t) {
    size_t n = model->num_parameters;
    if (!model->m_memory) {
        model->m_memory = (float*)calloc(n, sizeof(float));
        model->v_memory = (float*)calloc(n, sizeof(float));
    }
    for (size_t i = 0; i < n; i++) {
        float g = model->grads_memory[i];
        float m = model->m_memory[i] = beta1 * model->m_memory[i] + (1.0f - beta1) * g;
        float v = model->v_memory[i] = beta2 * model->v_memory[i] + (1.0f - beta2) * g * g;
        m /= 1.0f - powf(beta1, t);
        v /= 1.0f - powf(beta2, t);
        model->params_memory[i] -= learning_rate * (m / (sqrtf(v) + eps) + weight_decay * model->params_memory[i]);
    }
}

void gpt2_free(GPT2* model) {
    free(model->params_memory);
    free(model->grads_memory);
    free(model->m_memory);
    free(model->v_memory);
    free(model->acts_memory);
    free(model->grads_acts_memory);
    free(model->inputs);
    free(model->targets);
}

#ifndef TESTING
// ----------------------------------------------------------------------------
// training, with a validation loss and a sample every few steps

int sample(const float *probs, int n, unsigned int coin) {
    float sum = 0.0f;
    for (int i = 0; i < n; i++) {
        sum += probs[i];
        if (coin / 2147483648.0f < sum) { return i; }
    }
    return n - 1;
}

int main() {
    GPT2 model;
    gpt2_build_from_checkpoint(&model, "tiny_model.bin");

    int B = 4; // rows of a batch
    int T = 16; // tokens of a row
    DataLoader train, val;
    dataloader_init(&train, "tiny_tokens.bin", B, T, 0, 1, 1);
    dataloader_init(&val, "tiny_tokens.bin", B, T, 0, 1, 0);
    printf("training batches: %zu\n", train.num_tokens / (B*T));
    int *tokens = (int*)mallocCheck(B * T * sizeof(int));
    memset(tokens, 0, B * T * sizeof(int));
    mt19937_state rng;
    manual_seed(&rng, 1337);

    for (int step = 0; step < 6; step++) {
        if (step % 3 == 0) {
            float val_sum = 0.0f;
            dataloader_reset(&val);
            for (int i = 0; i < 2; i++) {
                dataloader_next_batch(&val);
                gpt2_forward(&model, val.inputs, val.targets, B, T);
                val_sum += model.mean_loss;
            }
            printf("val loss %.7f\n", val_sum / 2);
        }
        if (step == 4) {
            printf("sample:");
            for (int t = 1; t < T / 2; t++) {
                gpt2_forward(&model, tokens, NULL, B, T);
                tokens[t] = sample(model.acts.chances + (t-1) * model.config.vocab_size, model.config.vocab_size, randint32(&rng));
                printf(" %d", tokens[t]);
            }
            printf("\n");
        }
        dataloader_next_batch(&train);
        gpt2_forward(&model, train.inputs, train.targets, B, T);
        gpt2_zero_grad(&model);
        gpt2_backward(&model);
        gpt2_update(&model, 1e-2f, 0.9f, 0.999f, 1e-8f, 0.1f, step+1);
        printf("step %d: train loss %.7f\n", step, model.mean_loss);
    }
    free(tokens);
    dataloader_free(&train);
    dataloader_free(&val);
    gpt2_free(&model);
    return 0;
}
#endif
