// Prints the bits of the losses of three steps on fixed tokens.
#define TESTING
#include "train_gpt2.c"

int main(void) {
    enum { B = 2, T = 8 };
    int inputs[B * T], targets[B * T];
    GPT2 model;
    gpt2_build_from_checkpoint(&model, "tiny_model.bin");
    for (int i = 0; i < B * T; i++) {
        inputs[i] = i % 5;
        targets[i] = (i + 1) % 5;
    }
    for (int step = 0; step < 3; step++) {
        gpt2_forward(&model, inputs, targets, B, T);
        gpt2_zero_grad(&model);
        gpt2_backward(&model);
        gpt2_update(&model, 1e-3f, 0.9f, 0.999f, 1e-8f, 0.01f, step + 1);
        printf("step %d: loss %a\n", step, model.mean_loss);
    }
    gpt2_free(&model);
    return 0;
}
