// For llm.c's cudaMemAdvise, which comes after this.
#if CUDART_VERSION >= 13000  // its cudaMemAdvise takes a cudaMemLocation; this is the older form
static inline cudaError_t cudaMemAdvise(const void *memory, size_t bytes, cudaMemoryAdvise advice,
                                        int device) {
    cudaMemLocation location = {};
    location.type = device == cudaCpuDeviceId ? cudaMemLocationTypeHost : cudaMemLocationTypeDevice;
    location.id = device == cudaCpuDeviceId ? 0 : device;
    return cudaMemAdvise(memory, bytes, advice, location);
}
#endif
