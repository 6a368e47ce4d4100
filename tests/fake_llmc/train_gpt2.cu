/*
A trainer with the structure of llm.c's CUDA trainer. Its blocks have no attention: normalise, up, gelu, down, add. The end of a block computes
the layernorm that the next one begins with. The kernels run on the CPU.
*/
#include <assert.h>
#include <stdarg.h>
#include <string>
#include <unistd.h>
// fopenCheck, freadCheck, mallocCheck
#include "llmc/utils.h"
// dataloader_init, dataloader_reset, dataloader_next_batch, dataloader_free
#include "llmc/dataloader.h"
#include "llmc/cuda_common.h"
#include "llmc/cuda_utils.cuh"
// encoder_forward, layernorm_forward, matmul_forward, fused_classifier, ...
#include "llmc/layers.h"
// adamw_update
#include "llmc/adamw.cuh"
// global_norm_squared
#include "llmc/global_norm.cuh"
// MultiGpuConfig, multi_gpu_config, printf0, set_zero_configs, multi_gpu_async_reduce_gradient
#include "llmc/zero.cuh"

char filename_buffer[512];
cudaStream_t main_stream;
const size_t IO_BUF_SIZE = 1 << 20;

// ----------------------------------------------------------------------------
// the model

typedef struct {
    int max_seq_len;
    int vocab_size;
    int padded_vocab_size;
    int num_layers;
    int channels;
} GPT2Config;

const int NUM_PARAMETER_TENSORS = 10;
typedef struct {
    floatX* wte; // (Vp, C)
    floatX* wpe; // (maxT, C)
    floatX* ln1w; // (L, C)
    floatX* ln1b; // (L, C)
    floatX* upw; // (L, 2*C, C)
    floatX* upb; // (L, 2*C)
    floatX* downw; // (L, C, 2*C)
    floatX* downb; // (L, C)
    floatX* lnfw; // (C)
    floatX* lnfb; // (C)
} ParameterTensors;

void fill_in_parameter_sizes(size_t* param_sizes, GPT2Config config) {
    size_t Vp = config.padded_vocab_size, C = config.channels, maxT = config.max_seq_len;
    size_t L = config.num_layers;
    param_sizes[0] = Vp * C;
    param_sizes[1] = maxT * C;
    param_sizes[2] = L * C;
    param_sizes[3] = L * C;
    param_sizes[4] = L * (2 * C) * C;
    param_sizes[5] = L * (2 * C);
    param_sizes[6] = L * C * (2 * C);
    param_sizes[7] = L * C;
    param_sizes[8] = C;
    param_sizes[9] = C;
}

void* malloc_and_point_parameters(ParameterTensors* params, size_t* param_elements) {
    floatX** fields[] = { &params->wte, &params->wpe, &params->ln1w, &params->ln1b, &params->upw, &params->upb,
                          &params->downw, &params->downb, &params->lnfw, &params->lnfb };
    size_t total = 0;
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) { total += param_elements[i]; }
    void* memory;
    cudaCheck(cudaMalloc(&memory, total * sizeof(floatX)));
    for (size_t i = 0, at = 0; i < NUM_PARAMETER_TENSORS; at += param_elements[i++]) { *fields[i] = (floatX*)memory + at; }
    return memory;
}

typedef struct {
    floatX* encoded; // (B, T, C)
    floatX* ln1; // (L, B, T, C)
    float* ln1_mean; // (L, B, T)
    float* ln1_rstd; // (L, B, T)
    floatX* up; // (L, B, T, 2*C)
    floatX* up_gelu; // (L, B, T, 2*C)
    floatX* residual; // (L, B, T, C)
    floatX* lnf; // (B, T, C)
    float* lnf_mean; // (B, T)
    float* lnf_rstd; // (B, T)
    float* losses; // (B, T)
    floatX* output; // (B, T, Vp): logits, then their gradients
    floatX* scratch; // (B, T, 2*C)
    floatX* scratch_btc; // (B, T, C)
    floatX* dresidual; // (B, T, C)
} ActivationTensors;

typedef struct {
    GPT2Config config;
    ParameterTensors params;
    size_t param_elements[NUM_PARAMETER_TENSORS];
    void* params_memory;
    size_t num_parameters;
    ParameterTensors grads;
    void* grads_memory;
    float* m_memory; // of AdamW
    float* v_memory;
    float* master_weights;
    ActivationTensors acts;
    float* acts_memory;
    int batch_size;
    int seq_len;
    int* inputs;
    int* targets;
    float mean_loss; // -1 before the last micro-batch
    int use_master_weights;
    bool init_state;
} GPT2;

void gpt2_init_common(GPT2 *model) {
    model->params_memory = NULL;
    model->grads_memory = NULL;
    model->m_memory = NULL;
    model->v_memory = NULL;
    model->master_weights = NULL;
    model->use_master_weights = 0;
    model->init_state = true;
}

void gpt2_allocate_weights(GPT2 *model) {
    fill_in_parameter_sizes(model->param_elements, model->config);
    model->num_parameters = 0;
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) { model->num_parameters += model->param_elements[i]; }
    assert(model->params_memory == nullptr);
    model->params_memory = malloc_and_point_parameters(&model->params, model->param_elements);
}

void gpt2_allocate_state(GPT2 *model, int B, int T) {
    printf0("%zu gradients\n", model->num_parameters);
    assert(model->grads_memory == nullptr);
    model->grads_memory = malloc_and_point_parameters(&model->grads, model->param_elements);

    model->batch_size = B;
    model->seq_len = T;
    size_t C = model->config.channels, L = model->config.num_layers, Vp = model->config.padded_vocab_size, BT = (size_t)B * T;
    ActivationTensors* a = &model->acts;
    struct { floatX** tensor; size_t size; } specs[] = {
        { &a->encoded, BT * C }, { &a->ln1, L * BT * C }, { &a->ln1_mean, L * BT }, { &a->ln1_rstd, L * BT }, { &a->up, L * BT * 2*C },
        { &a->up_gelu, L * BT * 2*C }, { &a->residual, L * BT * C }, { &a->lnf, BT * C }, { &a->lnf_mean, BT }, { &a->lnf_rstd, BT },
        { &a->losses, BT }, { &a->output, BT * Vp }, { &a->scratch, BT * 2*C }, { &a->scratch_btc, BT * C }, { &a->dresidual, BT * C },
    };
    size_t elements = 0;
    for (auto& spec : specs) { elements += spec.size; }
    cudaCheck(cudaMalloc((void**)&model->acts_memory, elements * sizeof(float)));
    float* at = model->acts_memory;
    for (auto& spec : specs) { *spec.tensor = at; at += spec.size; }
    cudaCheck(cudaMalloc((void**)&model->inputs, BT * sizeof(int)));
    cudaCheck(cudaMalloc((void**)&model->targets, BT * sizeof(int)));

    // the optimizer's
    size_t shard_num_parameters = multi_gpu_config.shard_num_parameters;
    printf0("%zu moments\n", 2 * shard_num_parameters);
    cudaCheck(cudaMalloc((void**)&model->m_memory, shard_num_parameters * sizeof(float)));
    cudaCheck(cudaMalloc((void**)&model->v_memory, shard_num_parameters * sizeof(float)));
    if (model->use_master_weights == 1) {
        cudaCheck(cudaMalloc((void**)&model->master_weights, shard_num_parameters * sizeof(float)));
    }
    // the free memory
    size_t free, total;
    cudaCheck(cudaMemGetInfo(&free, &total));
    printf0("%zu of %zu bytes left\n", free, total);
}

void gpt2_write_to_checkpoint(GPT2 *model, const char* path) {
    FILE *file = fopenCheck(path, "wb");
    int header[256] = { 20240326, 3, model->config.max_seq_len, model->config.vocab_size, model->config.num_layers, 1, model->config.channels };
    fwriteCheck(header, sizeof(int), 256, file);
    device_to_file(file, model->params_memory, model->num_parameters * sizeof(floatX),
                   IO_BUF_SIZE, main_stream);
    fcloseCheck(file);
}

void gpt2_set_config(GPT2* model, int maxT, int V, int L, int C) {
    model->config = { maxT, V, (V + 7) / 8 * 8, L, C };
    gpt2_allocate_weights(model);
}

void gpt2_build_from_checkpoint(GPT2 *model, const char* path, bool weight_init=true) {
    FILE *file = fopenCheck(path, "rb");
    int header[256];
    freadCheck(header, sizeof(int), 256, file);
    if (header[0] != 20240326) { printf("Error: %s is not a model file\n", path); exit(EXIT_FAILURE); }
    gpt2_set_config(model, header[2], header[3], header[4], header[6]);
    if (weight_init) {
        assert(model->params_memory != NULL);
        file_to_device(model->params_memory, file, model->num_parameters * sizeof(floatX), IO_BUF_SIZE, main_stream);
    }
    fcloseCheck(file);
}

void gpt_build_from_descriptor(GPT2 *model, const char* descriptor) {
    gpt2_set_config(model, 16, 61, atoi(descriptor + 1), 8);
    floatX* values = (floatX*)mallocCheck(model->num_parameters * sizeof(floatX));
    mt19937_state rng;
    manual_seed(&rng, 42);
    for (size_t i = 0, at = 0; i < NUM_PARAMETER_TENSORS; at += model->param_elements[i++]) {
        bool norm = i == 2 || i == 8;
        for (size_t j = 0; j < model->param_elements[i]; j++) { values[at + j] = norm + (randint32(&rng) / 2147483648.0f - 0.5f) / 3; }
    }
    size_t V = model->config.vocab_size, Vp = model->config.padded_vocab_size, C = model->config.channels;
    memset(values + V * C, 0, (Vp - V) * C * sizeof(floatX)); // padding without tokens
    cudaCheck(cudaMemcpy(model->params_memory, values, model->num_parameters * sizeof(floatX), cudaMemcpyHostToDevice));
    free(values);
}

void gpt2_forward(GPT2 *model, const int* inputs, size_t B, size_t T) {
    if (model->params_memory == NULL) {
        printf("Error: no model\n");
        exit(EXIT_FAILURE);
    }
    const size_t Vp = model->config.padded_vocab_size;
    const size_t L = model->config.num_layers; // blocks
    const size_t C = model->config.channels;
    cudaCheck(cudaMemcpy(model->inputs, inputs, B * T * sizeof(int), cudaMemcpyHostToDevice));

    ParameterTensors params = model->params; // a shorter name
    ActivationTensors acts = model->acts;
    encoder_forward(acts.encoded, model->inputs, params.wte, params.wpe, B, T, C);
    // the first layernorm has no block before it
    layernorm_forward(acts.ln1, acts.ln1_mean, acts.ln1_rstd, acts.encoded, params.ln1w, params.ln1b, B * T, C);

    for (int l = 0; l < L; l++) {
        floatX* x = l == 0 ? acts.encoded : acts.residual + (l-1) * B * T * C;
        // parameters
        floatX* l_upw = params.upw + l * 2*C * C;
        floatX* l_upb = params.upb + l * 2*C;
        floatX* l_downw = params.downw + l * C * 2*C;
        floatX* l_downb = params.downb + l * C;
        // activations
        floatX* l_ln1 = acts.ln1 + l * B * T * C;
        floatX* l_up = acts.up + l * B * T * 2*C;
        floatX* l_up_gelu = acts.up_gelu + l * B * T * 2*C;
        floatX* l_residual = acts.residual + l * B * T * C;

        matmul_forward(l_up_gelu, l_ln1, l_upw, l_upb, B * T, C, 2*C, l_up);
        matmul_forward(l_residual, l_up_gelu, l_downw, l_downb, B * T, 2*C, C, NULL);
        add(l_residual, x, B * T * C);
        // the next layernorm
        if(l+1 != L) {
            floatX* l_ln1 = acts.ln1 + (l + 1) * B * T * C;
            float* l_ln1_mean = acts.ln1_mean + (l + 1) * B * T;
            float* l_ln1_rstd = acts.ln1_rstd + (l + 1) * B * T;
            const floatX* l_ln1w = params.ln1w + (l + 1) * C;
            const floatX* l_ln1b = params.ln1b + (l + 1) * C;
            layernorm_forward(l_ln1, l_ln1_mean, l_ln1_rstd, l_residual, l_ln1w, l_ln1b, B * T, C);
        } else {
            layernorm_forward(acts.lnf, acts.lnf_mean, acts.lnf_rstd, l_residual,
                              params.lnfw, params.lnfb, B * T, C);
        }
    }
    matmul_forward(acts.output, acts.lnf, params.wte, NULL, B * T, C, Vp, NULL);
    cudaCheck(cudaDeviceSynchronize());
}

float gpt2_validate(GPT2 *model, const int* inputs, const int* targets, size_t B, size_t T) {
    gpt2_forward(model, inputs, B, T);
    ActivationTensors acts = model->acts;
    cudaCheck(cudaMemsetAsync(acts.losses, 0, B * T * sizeof(float), main_stream));
    cudaCheck(cudaMemcpy(model->targets, targets, B * T * sizeof(int), cudaMemcpyHostToDevice));
    fused_classifier(acts.output, acts.losses, 0.0f, model->targets, B * T, model->config.vocab_size, model->config.padded_vocab_size, 0);
    return sum_of(acts.losses, B * T) / (B * T);
}

void gpt2_backward_and_reduce(GPT2 *model, int* inputs, const int* targets, int grad_accum_steps, int micro_step) {
    if(model->grads_memory == nullptr) {
        fprintf(stderr, "no gradients\n");
        exit(EXIT_FAILURE);
    }
    bool last_step = micro_step == grad_accum_steps - 1;
    if (micro_step == 0) {
        cudaCheck(cudaMemsetAsync(model->acts.losses, 0, model->batch_size * model->seq_len * sizeof(float), main_stream));
        cudaCheck(cudaMemsetAsync(model->grads_memory, 0, model->num_parameters * sizeof(floatX), main_stream));
    }
    const size_t B = model->batch_size, T = model->seq_len;
    const size_t Vp = model->config.padded_vocab_size;
    const size_t L = model->config.num_layers; // blocks
    const size_t C = model->config.channels;
    ParameterTensors params = model->params; // shorter names
    ParameterTensors grads = model->grads;
    ActivationTensors acts = model->acts;

    const float dloss = 1.0f / (B * T * grad_accum_steps);
    cudaCheck(cudaMemcpy(model->targets, targets, B * T * sizeof(int), cudaMemcpyHostToDevice));
    fused_classifier(acts.output, acts.losses, dloss, model->targets, B * T, model->config.vocab_size, Vp, 1);
    cudaCheck(cudaMemsetAsync(acts.dresidual, 0, B * T * C * sizeof(floatX), main_stream));
    // the head
    matmul_backward(acts.scratch, grads.wte, NULL, acts.output, acts.lnf, params.wte, B * T, C, Vp, NULL);
    floatX* x = acts.residual + (L-1) * B * T * C;
    layernorm_backward(acts.dresidual, grads.lnfw, grads.lnfb, acts.scratch, x, params.lnfw, acts.lnf_mean, acts.lnf_rstd,
                       B * T, C);

    for (int l = L-1; l >= 0; l--) {
        x = l == 0 ? acts.encoded : acts.residual + (l-1) * B * T * C;
        // parameters
        floatX* l_ln1w = params.ln1w + l * C;
        floatX* l_upw = params.upw + l * 2*C * C;
        floatX* l_downw = params.downw + l * C * 2*C;
        // gradients
        floatX* dl_ln1w = grads.ln1w + l * C;
        floatX* dl_ln1b = grads.ln1b + l * C;
        floatX* dl_upw = grads.upw + l * 2*C * C;
        floatX* dl_upb = grads.upb + l * 2*C;
        floatX* dl_downw = grads.downw + l * C * 2*C;
        floatX* dl_downb = grads.downb + l * C;
        // activations
        floatX* l_ln1 = acts.ln1 + l * B * T * C;
        float* l_ln1_mean = acts.ln1_mean + l * B * T;
        float* l_ln1_rstd = acts.ln1_rstd + l * B * T;
        floatX* l_up = acts.up + l * B * T * 2*C;
        floatX* l_up_gelu = acts.up_gelu + l * B * T * 2*C;

        matmul_backward(acts.scratch, dl_downw, dl_downb, acts.dresidual, l_up_gelu, l_downw, B * T, 2*C, C, l_up);
        matmul_backward(acts.scratch_btc, dl_upw, dl_upb, acts.scratch, l_ln1, l_upw, B * T, C, 2*C, NULL);
        layernorm_backward(acts.dresidual, dl_ln1w, dl_ln1b, acts.scratch_btc, x, l_ln1w, l_ln1_mean, l_ln1_rstd, B * T, C);

        // the gradients of this block are complete
        if(last_step) {
            floatX* const pointers[] = { dl_ln1w, dl_ln1b, dl_upw, dl_upb, dl_downw, dl_downb };
            const size_t nelem[] = { C, C, 2*C * C, 2*C, C * 2*C, C };
            multi_gpu_async_reduce_gradient(pointers, nelem, &multi_gpu_config, main_stream);
        }
    }
    encoder_backward(grads.wte, grads.wpe, acts.dresidual,
                     model->inputs, B, T, C);

    if(last_step) {
        model->mean_loss = sum_of(acts.losses, B * T);
        floatX* const pointers[] = {grads.wte, grads.wpe, grads.lnfw, grads.lnfb};
        const size_t nelem[] = {Vp * C, T * C, C, C};
        multi_gpu_async_reduce_gradient(pointers, nelem, &multi_gpu_config, main_stream);
    }
    cudaCheck(cudaDeviceSynchronize());
    if(last_step) {
        model->mean_loss /= B * T * grad_accum_steps;
    } else {
        model->mean_loss = -1.0f;
    }
}

float gpt2_calculate_grad_norm(GPT2 *model, MultiGpuConfig* multi_gpu_config) {
    float squares = 0.0f;
    global_norm_squared(&squares, (floatX*)model->grads_memory, model->num_parameters, 0, 1, 1, true, main_stream);
    return sqrtf(squares);
}

void gpt2_update(GPT2 *model, float learning_rate, float beta1, float beta2, float eps, float weight_decay, float grad_scale, int t,
                 MultiGpuConfig* multi_gpu_config, bool init_from_master_only=false) {
    size_t n = multi_gpu_config->shard_num_parameters, at = 0;
    if (model->init_state) {
        memset(model->m_memory, 0, n * sizeof(float));
        memset(model->v_memory, 0, n * sizeof(float));
        model->init_state = false;
    }
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) {
        size_t size = model->param_elements[i];
        float wd = (i == 0 || i == 1 || i == 4 || i == 6) ? weight_decay : 0.0f; // on matrices only
        adamw_update((floatX*)model->params_memory + at, nullptr, (floatX*)model->grads_memory + at,
                     model->m_memory + at, model->v_memory + at, size, size, size, size, 1,
                     learning_rate, beta1, beta2, t, eps, wd, grad_scale, 0, main_stream);
        at += size;
    }
}

void gpt2_free(GPT2 *model) {
    cudaFreeCheck(&model->params_memory);
    cudaFreeCheck(&model->grads_memory);
    cudaFreeCheck(&model->m_memory);
    cudaFreeCheck(&model->v_memory);
    cudaFreeCheck(&model->master_weights);
    cudaFreeCheck(&model->acts_memory);
    cudaFreeCheck(&model->inputs);
    cudaFreeCheck(&model->targets);
}

// ----------------------------------------------------------------------------
// checkpoints

void save_state(const char* filename, int step, GPT2* model, DataLoader* loader) {
    FILE *state_file = fopenCheck(filename, "wb");
    int state_header[16] = { 0 };
    state_header[0] = 20240527;
    state_header[1] = 1; // version
    state_header[2] = multi_gpu_config.num_processes;
    state_header[10] = step;
    fwriteCheck(state_header, sizeof(int), 16, state_file);
    size_t shard_num_parameters = multi_gpu_config.shard_num_parameters;
    device_to_file(state_file, model->m_memory, shard_num_parameters * sizeof(float), IO_BUF_SIZE, main_stream);
    device_to_file(state_file, model->v_memory, shard_num_parameters * sizeof(float), IO_BUF_SIZE, main_stream);
    if(model->use_master_weights) {
        device_to_file(state_file, model->master_weights, shard_num_parameters * sizeof(float), IO_BUF_SIZE, main_stream);
    }

    // the loader
    fwriteCheck(&loader->next, sizeof(size_t), 1, state_file);
    fwriteCheck(&loader->shuffle_rng, sizeof(mt19937_state), 1, state_file);
    fwriteCheck(loader->order, sizeof(size_t), loader->num_batches, state_file);
    fcloseCheck(state_file);
}

void load_state(int* step, GPT2* model, DataLoader* loader, const char* filename) {
    FILE *state_file = fopenCheck(filename, "rb");
    int state_header[16];
    freadCheck(state_header, sizeof(int), 16, state_file);
    assert(state_header[0] == 20240527);
    assert(state_header[1] == 1); // version
    *step = state_header[10];
    size_t shard_num_parameters = multi_gpu_config.shard_num_parameters;
    model->init_state = false;
    file_to_device(model->m_memory, state_file, shard_num_parameters * sizeof(float), IO_BUF_SIZE, main_stream);
    file_to_device(model->v_memory, state_file, shard_num_parameters * sizeof(float), IO_BUF_SIZE, main_stream);
    if(model->use_master_weights) {
        file_to_device(model->master_weights, state_file, shard_num_parameters * sizeof(float), IO_BUF_SIZE, main_stream);
    }

    // the loader
    loader->should_shuffle = 1;
    freadCheck(&loader->next, sizeof(size_t), 1, state_file);
    freadCheck(&loader->shuffle_rng, sizeof(mt19937_state), 1, state_file);
    freadCheck(loader->order, sizeof(size_t), loader->num_batches, state_file);
    fcloseCheck(state_file);
}

void write_checkpoint(const char* dir, int step, GPT2* model, DataLoader* train_loader, MultiGpuConfig* multi_gpu_config) {
    int rank = multi_gpu_config->process_rank;
    if (rank == 0) {
        snprintf(filename_buffer, sizeof(filename_buffer), "%s/model_%08d.bin", dir, step);
        gpt2_write_to_checkpoint(model, filename_buffer);
    }
    snprintf(filename_buffer, sizeof(filename_buffer), "%s/state_%08d_%05d.bin", dir, step, rank);
    save_state(filename_buffer, step, model, train_loader);
    multi_gpu_barrier(multi_gpu_config);
    if (rank == 0) {
        snprintf(filename_buffer, sizeof(filename_buffer), "%s/DONE_%08d", dir, step);
        fcloseCheck(fopenCheck(filename_buffer, "w"));
    }
}

void delete_checkpoint(const char* dir, int step, MultiGpuConfig* multi_gpu_config) {
    int rank = multi_gpu_config->process_rank;
    if (rank == 0) {
        snprintf(filename_buffer, sizeof(filename_buffer), "%s/model_%08d.bin", dir, step);
        remove(filename_buffer);
    }
    snprintf(filename_buffer, sizeof(filename_buffer), "%s/state_%08d_%05d.bin", dir, step, rank);
    remove(filename_buffer);
}

#ifndef TESTING
// ----------------------------------------------------------------------------
// training, with a validation loss and a sample every few steps

void safe_printf(const char *piece) { printf("%s", piece); }

int main(int argc, char *argv[]) {
    const char* train_data_pattern = "tiny_tokens.bin";
    const char* val_data_pattern = "tiny_tokens.bin";
    const char* load_filename = "d3";
    const char* output_log_dir = NULL;
    int checkpoint_every = 0, resume_step = -1, max_steps = 6;
    int B = 4, T = 16;
    int total_batch_size = -1;
    float skip_update_lossz = 0.0f; // skip an update if the loss is such an outlier
    float skip_update_gradz = 0.0f; // or the norm
    int use_master_weights = 0;
    int zero_stage = 0;
    int num_processes = 1, process_rank = 0, gpus_per_node = 8;
    char nccl_init_method[256] = "mpi", server_ip[256] = "", fs_path[256] = "";
    for (int i = 1; i + 1 < argc; i += 2) {
        std::string option = argv[i] + 1;
        if (option == "i") { train_data_pattern = argv[i+1]; }
        else if (option == "j") { val_data_pattern = argv[i+1]; }
        else if (option == "e") { load_filename = argv[i+1]; }
        else if (option == "o") { output_log_dir = argv[i+1]; }
        else if (option == "n") { checkpoint_every = atoi(argv[i+1]); }
        else if (option == "y") { resume_step = atoi(argv[i+1]); }
        else if (option == "x") { max_steps = atoi(argv[i+1]); }
        else if (option == "b") { B = atoi(argv[i+1]); }
        else if (option == "d") { total_batch_size = atoi(argv[i+1]); }
        else if (option == "sl") { skip_update_lossz = atof(argv[i+1]); }
        else if (option == "sg") { skip_update_gradz = atof(argv[i+1]); }
        else if (option == "z") { zero_stage = atoi(argv[i+1]); }
        else if (option == "pn") { num_processes = atoi(argv[i+1]); }
        else if (option == "pr") { process_rank = atoi(argv[i+1]); }
        else if (option == "pg") { gpus_per_node = atoi(argv[i+1]); }
        else if (option == "pi") { strcpy(nccl_init_method, argv[i+1]); }
        else if (option == "ps") { strcpy(server_ip, argv[i+1]); }
        else if (option == "pf") { strcpy(fs_path, argv[i+1]); }
        else { fail("unknown option", argv[i]); }
    }

    multi_gpu_config = multi_gpu_config_init(num_processes, process_rank, gpus_per_node, server_ip, fs_path, nccl_init_method);
    cudaCheck(cudaStreamCreate(&main_stream));
    int tokens_per_fwdbwd = B * T * multi_gpu_config.num_processes;
    if (total_batch_size == -1) { total_batch_size = tokens_per_fwdbwd; }
    assert(total_batch_size % tokens_per_fwdbwd == 0);
    int grad_accum_steps = total_batch_size / tokens_per_fwdbwd;

    GPT2 model;
    gpt2_init_common(&model);
    model.use_master_weights = use_master_weights;
    std::string model_file = load_filename;
    if (resume_step >= 0) { model_file = std::string(output_log_dir) + "/model_0000000" + std::to_string(resume_step) + ".bin"; }
    if (model_file.find(".bin") != std::string::npos) {
        gpt2_build_from_checkpoint(&model, model_file.c_str());
    } else {
        gpt_build_from_descriptor(&model, model_file.c_str());
    }

    DataLoader train_loader, val_loader;
    dataloader_init(&train_loader, train_data_pattern, B, T, multi_gpu_config.process_rank, multi_gpu_config.num_processes, 1);
    dataloader_init(&val_loader, val_data_pattern, B, T, multi_gpu_config.process_rank, multi_gpu_config.num_processes, 0);
    set_zero_configs(&multi_gpu_config, zero_stage, model.num_parameters);
    int step = 0, sample_every = 2;
    gpt2_allocate_state(&model, B, T);
    if (resume_step >= 0) {
        snprintf(filename_buffer, sizeof(filename_buffer), "%s/state_%08d_%05d.bin", output_log_dir, resume_step,
                 multi_gpu_config.process_rank);
        load_state(&step, &model, &train_loader, filename_buffer);
    }

    int* gen_tokens = (int*)mallocCheck(B * T * sizeof(int));
    for (; step <= max_steps; step++) {
        int last_step = step == max_steps;
        if (step % 3 == 0 || last_step) {
            float val_loss = 0.0f;
            dataloader_reset(&val_loader);
            for (int i = 0; i < 2; i++) {
                dataloader_next_batch(&val_loader);
                val_loss += gpt2_validate(&model, val_loader.inputs, val_loader.targets, B, T) / 2;
            }
            val_loss = multi_gpu_cpu_float_sum(val_loss, &multi_gpu_config) / multi_gpu_config.num_processes;
            printf0("val loss %.7f\n", val_loss);
        }
        // one process samples
        if (multi_gpu_config.process_rank == 0 && sample_every > 0 &&
           (step > 0 && (step % sample_every) == 0 || last_step)) {
            for (int i = 0; i < B * T; i++) { gen_tokens[i] = 0; }
            safe_printf("sample:");
            for (int t = 1; t < T / 2; t++) {
                gpt2_forward(&model, gen_tokens, 1, T);
                gen_tokens[t] = most_likely(model.acts.output + (t - 1) * model.config.padded_vocab_size, model.config.vocab_size);
                printf(" %d", gen_tokens[t]);
            }
            printf("\n");
        }
        if (checkpoint_every > 0 && step > 0 && step % checkpoint_every == 0 && step != resume_step) {
            write_checkpoint(output_log_dir, step, &model, &train_loader, &multi_gpu_config);
            if (step > 2 * checkpoint_every) { delete_checkpoint(output_log_dir, step - 2 * checkpoint_every, &multi_gpu_config); }
        }
        if (last_step) { break; }

        for (int micro_step = 0; micro_step < grad_accum_steps; micro_step++) {
            dataloader_next_batch(&train_loader);
            gpt2_forward(&model, train_loader.inputs, B, T);
            gpt2_backward_and_reduce(&model, train_loader.inputs, train_loader.targets, grad_accum_steps, micro_step);
        }
        float grad_norm = gpt2_calculate_grad_norm(&model, &multi_gpu_config);
        float zloss = step == 2 ? 5.0f : 0.0f; // to test the skip
        float zgrad = step == 3 ? 5.0f : 0.0f;
        if (skip_update_lossz != 0.0f && zloss > skip_update_lossz) {
            printf0("skipping update due to loss\n");
        } else if (skip_update_gradz != 0.0f && zgrad > skip_update_gradz) {
            printf0("skipping update due to norm\n");
        } else {
            float grad_clip = 1.0f;
            float grad_scale = (grad_norm > grad_clip) ? grad_clip / grad_norm : 1.0f;
            gpt2_update(&model, 1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, grad_scale, step+1, &multi_gpu_config);
        }
        printf0("step %d: train loss %.7f norm %.5f\n", step, model.mean_loss, grad_norm);
    }

    dataloader_free(&train_loader);
    dataloader_free(&val_loader);
    free(gen_tokens);
    multi_gpu_config_free(&multi_gpu_config);
    gpt2_free(&model);
    cudaCheck(cudaStreamDestroy(main_stream));
    return 0;
}
#endif
