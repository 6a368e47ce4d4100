// A bias that cuBLASLt cannot add: every row of the result starts as the bias, and the product is added to
// it and rounded once.
#include "cuda.h"

enum { THREADS = 256, ELEMENTS_A_THREAD = 32 };

template <class T, int W> static __global__ void repeat_row_kernel(T *out, const T *row, size_t n, int cols) {
    size_t first = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * W;
    size_t step = (size_t)gridDim.x * blockDim.x * W;
    for (size_t i = first; i < n; i += step) store(out + i, load<W>(row + i % cols));
}

template <class T> static int repeat_row(void *out, const void *row, int rows, int cols) {
    size_t n = (size_t)rows * cols;
    auto kernel = cols % wide<T> ? repeat_row_kernel<T, 1> : repeat_row_kernel<T, wide<T>>;
    return launch("repeat_row", kernel, blocks_for(n, THREADS * ELEMENTS_A_THREAD), THREADS, (T *)out,
                  (const T *)row, n, cols);
}

int cuda_repeat_row(gpt2_dtype dt, void *out, const void *row, int rows, int cols) {
    return BY_DTYPE(dt, repeat_row, out, row, rows, cols);
}
