/*
A trainer with the structure of llm.c's train_gpt2.c and a tiny language model without attention. Each layer adds a small network to
the residual stream.
*/
#include <string.h>
#include <unistd.h>
// fopenCheck, freadCheck, mallocCheck
#include "llmc/utils.h"
// dataloader_init, dataloader_reset, dataloader_next_batch, dataloader_free
#include "llmc/dataloader.h"
// encoder_forward, matmul_forward, layernorm_forward, fused_classifier, ...
#include "llmc/layers.h"

// ----------------------------------------------------------------------------
// the model

typedef struct {
    int max_seq_len;
    int vocab_size;
    int num_layers;
    int channels;
} GPT2Config;

#define NUM_PARAMETER_TENSORS 7
typedef struct {
    float* wte; // (V, C)
    float* upw; // (L, 2*C, C)
    float* upb; // (L, 2*C)
    float* downw; // (L, C, 2*C)
    float* wpe; // (maxT, C)
    float* lnfw; // (C)
    float* lnfb; // (C)
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
    param_sizes[6] = C;
}

float* malloc_and_point_parameters(ParameterTensors* params, size_t* param_sizes) {
    float** fields[] = { &params->wte, &params->upw, &params->upb, &params->downw, &params->wpe, &params->lnfw, &params->lnfb };
    size_t total = 0;
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) { total += param_sizes[i]; }
    float* memory = (float*)mallocCheck(total * sizeof(float));
    for (size_t i = 0, at = 0; i < NUM_PARAMETER_TENSORS; at += param_sizes[i++]) { *fields[i] = memory + at; }
    return memory;
}

typedef struct {
    float* embedded; // (B, T, C)
    float* hidden; // (L, B, T, 2*C)
    float* gelu; // (L, B, T, 2*C)
    float* stream; // (L, B, T, C)
    float* lnf; // (B, T, C)
    float* mean; // (B, T)
    float* rstd; // (B, T)
    float* losses; // (B, T)
    float* logits; // (B, T, V): then their gradients
} ActivationTensors;

size_t num_activations(GPT2Config config, int B, int T) {
    return (size_t)B * T * (config.channels * (2 + 5 * config.num_layers) + 3 + config.vocab_size);
}
float* malloc_and_point_activations(ActivationTensors* acts, GPT2Config config, int B, int T) {
    float* memory = (float*)mallocCheck(num_activations(config, B, T) * sizeof(float));
    size_t BT = (size_t)B * T, C = config.channels, L = config.num_layers;
    acts->embedded = memory;
    acts->hidden = acts->embedded + BT * C;
    acts->gelu = acts->hidden + L * BT * 2*C;
    acts->stream = acts->gelu + L * BT * 2*C;
    acts->lnf = acts->stream + L * BT * C;
    acts->mean = acts->lnf + BT * C;
    acts->rstd = acts->mean + BT;
    acts->losses = acts->rstd + BT;
    acts->logits = acts->losses + BT;
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
    encoder_forward(acts.embedded, inputs, params.wte, params.wpe, B, T, C); // (B, T, C)
    for (int l = 0; l < L; l++) {
        float* x = l == 0 ? acts.embedded : acts.stream + (l-1) * B * T * C;
        float* l_upw = params.upw + l * 2*C * C;
        float* l_upb = params.upb + l * 2*C;
        float* l_downw = params.downw + l * C * 2*C;
        float* l_hidden = acts.hidden + l * B * T * 2*C;
        float* l_gelu = acts.gelu + l * B * T * 2*C;
        float* l_stream = acts.stream + l * B * T * C;
        matmul_forward(l_gelu, x, l_upw, l_upb, B * T, C, 2*C, l_hidden);
        matmul_forward(l_stream, l_gelu, l_downw, NULL, B * T, 2*C, C, NULL);
        add(l_stream, x, B * T * C);
    }
    float* last = acts.stream + (L-1) * B * T * C;
    layernorm_forward(acts.lnf, acts.mean, acts.rstd, last, params.lnfw, params.lnfb, B * T, C);
    matmul_forward(acts.logits, acts.lnf, params.wte, NULL, B * T, C, V, NULL);

    if (targets != NULL) {
        memset(acts.losses, 0, B * T * sizeof(float));
        fused_classifier(acts.logits, acts.losses, 0.0f, targets, B * T, V, V, 0);
        float loss = sum_of(acts.losses, B * T) / (B * T);
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
    fused_classifier(acts.logits, acts.losses, 1.0f / (B * T), model->targets, B * T, V, V, 1);
    matmul_backward(grads_acts.lnf, grads.wte, NULL, acts.logits, acts.lnf, params.wte, B * T, C, V, NULL);
    float* last = acts.stream + (L-1) * B * T * C;
    float* dstream = grads_acts.stream;
    layernorm_backward(dstream, grads.lnfw, grads.lnfb, grads_acts.lnf,
                       last, params.lnfw, acts.mean, acts.rstd, B * T, C);

    for (int l = L-1; l >= 0; l--) {
        float* x = l == 0 ? acts.embedded : acts.stream + (l-1) * B * T * C;
        float* l_upw = params.upw + l * 2*C * C;
        float* l_downw = params.downw + l * C * 2*C;
        // and their gradients
        float* dl_upw = grads.upw + l * 2*C * C;
        float* dl_upb = grads.upb + l * 2*C;
        float* dl_downw = grads.downw + l * C * 2*C;
        float* l_hidden = acts.hidden + l * B * T * 2*C;
        float* l_gelu = acts.gelu + l * B * T * 2*C;
        matmul_backward(grads_acts.gelu, dl_downw, NULL, dstream, l_gelu, l_downw, B * T, 2*C, C, l_hidden);
        matmul_backward(grads_acts.embedded, dl_upw, dl_upb, grads_acts.gelu, x, l_upw, B * T, C, 2*C, NULL);
        add(dstream, grads_acts.embedded, B * T * C);
    }
    encoder_backward(grads.wte, grads.wpe, dstream, model->inputs, B, T, C);
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
                tokens[t] = most_likely(model.acts.logits + (t-1) * model.config.vocab_size, model.config.vocab_size);
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
