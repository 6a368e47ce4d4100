// cuBLASLt, loaded when the first matmul on a device is planned. Loading takes 0.15 s and 200 MiB, a cost
// that CPU runs should not pay. After cublaslt_load its functions can be called by their usual names.
#ifndef GPT2_CUBLASLT_CUDA_H
#define GPT2_CUBLASLT_CUDA_H
#include <cublasLt.h>
#include "layers.h"

// Returns 0, or -1 and sets gpt2_last_error(). Does nothing if the library is already loaded.
int cublaslt_load(void);

// Sets the precision of fp32 matmuls. Call it before plan, because prepared matmuls keep their precision.
void matmul_set_tf32(int tf32);
// Returns 1 if matmuls of this dtype round their inputs to TF32.
int matmul_rounds(gpt2_dtype dt);
// Returns "fp32", "tf32", "bf16" or "fp16".
const char *matmul_dtype(gpt2_dtype dt);

#ifndef CUDA_STAND_IN  // the tests link their own implementation
// clang-format off
#define CUBLASLT_FUNCTIONS(F)                                                            \
    F(Create) F(Destroy) F(GetStatusName) F(GetVersion)                                  \
    F(Matmul) F(MatmulAlgoCheck) F(MatmulAlgoGetHeuristic)                               \
    F(MatmulDescCreate) F(MatmulDescDestroy) F(MatmulDescSetAttribute)                   \
    F(MatmulPreferenceCreate) F(MatmulPreferenceDestroy) F(MatmulPreferenceSetAttribute) \
    F(MatrixLayoutCreate) F(MatrixLayoutDestroy) F(MatrixLayoutSetAttribute)
// clang-format on

#define POINTER(name) __typeof__(cublasLt##name) *name;
typedef struct {
    CUBLASLT_FUNCTIONS(POINTER)
} CublasLt;
#undef POINTER
extern CublasLt cublaslt;

#define cublasLtCreate cublaslt.Create
#define cublasLtDestroy cublaslt.Destroy
#define cublasLtGetStatusName cublaslt.GetStatusName
#define cublasLtGetVersion cublaslt.GetVersion
#define cublasLtMatmul cublaslt.Matmul
#define cublasLtMatmulAlgoCheck cublaslt.MatmulAlgoCheck
#define cublasLtMatmulAlgoGetHeuristic cublaslt.MatmulAlgoGetHeuristic
#define cublasLtMatmulDescCreate cublaslt.MatmulDescCreate
#define cublasLtMatmulDescDestroy cublaslt.MatmulDescDestroy
#define cublasLtMatmulDescSetAttribute cublaslt.MatmulDescSetAttribute
#define cublasLtMatmulPreferenceCreate cublaslt.MatmulPreferenceCreate
#define cublasLtMatmulPreferenceDestroy cublaslt.MatmulPreferenceDestroy
#define cublasLtMatmulPreferenceSetAttribute cublaslt.MatmulPreferenceSetAttribute
#define cublasLtMatrixLayoutCreate cublaslt.MatrixLayoutCreate
#define cublasLtMatrixLayoutDestroy cublaslt.MatrixLayoutDestroy
#define cublasLtMatrixLayoutSetAttribute cublaslt.MatrixLayoutSetAttribute
#endif
#endif
