// Another program that includes the trainer.
#define TESTING
#include "train_gpt2.c"

int main(void) { return 0; }
