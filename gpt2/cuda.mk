# The model's layers for CUDA devices, or for the stand-in for CUDA. cuDNN's attention is built if cuDNN and
# its header-only frontend are installed.
GPT2_CUDA += -DGPT2_CUDA $(ZERO_CUDA_CFLAGS)
GPT2_OBJ  := $(filter-out %/layers_cuda_none.o,$(GPT2_OBJ)) $(STAND_IN_OBJ) \
             $(patsubst %,$(BUILD)/%.o,$(basename $(wildcard gpt2/*_cuda.c gpt2/*.cu)))

ifeq ($(CUDA),yes)
CUDA_COMPILE = $(ZERO_NVCC) -std=c++17 -O3 -lineinfo $(ZERO_CUDA_ARCH) -Xcompiler -Wall -I. -MMD -MP
HAVE_CUBLASLT := $(call have,\#include <cublasLt.h>\n)
LIBS         += -lstdc++
FRONTEND     := third_party/cudnn_frontend/include
#? CUDNN_HOME=folder   the folder with cuDNN's include/ and lib/; by default the CUDA toolkit's folder
CUDNN_HOME   ?= $(ZERO_CUDA_HOME)
CUDNN_H      := $(or $(wildcard $(CUDNN_HOME)/include/cudnn.h),$(call have,\#include <cudnn.h>\n))
HAVE_CUDNN   := $(and $(CUDNN_H),$(wildcard $(FRONTEND)/cudnn_frontend.h))
FOUND_FOR_CUDA := , with$(if $(HAVE_CUDNN),,out) cuDNN and with$(if $(filter yes,$(ZERO_NCCL)),,out) NCCL
ifneq ($(HAVE_CUDNN),)
# pip's cuDNN wheel lacks the file name that -lcudnn needs.
CUDNN_FILES  := $(wildcard $(CUDNN_HOME)/lib64/libcudnn.so* $(CUDNN_HOME)/lib/libcudnn.so*)
CUDNN_ONLY_9 := $(and $(filter %.so.9,$(CUDNN_FILES)),$(if $(filter %.so,$(CUDNN_FILES)),,yes))
LINK_CUDNN   := $(if $(CUDNN_ONLY_9),-l:libcudnn.so.9,-lcudnn)
CUDNN_PATHS  := -L$(CUDNN_HOME)/lib64 -L$(CUDNN_HOME)/lib -Wl,-rpath,$(CUDNN_HOME)/lib64:$(CUDNN_HOME)/lib
GPT2_CUDNN   := -DGPT2_CUDNN -isystem $(FRONTEND) $(CUDNN_HOME:%=-I%/include)
GPT2_OBJ     += $(BUILD)/gpt2/attention_cudnn.o
LIBS         += $(CUDNN_PATHS) $(LINK_CUDNN)
endif
endif

$(BUILD)/gpt2/flags_cuda: probes
	$(ZERO_DRY)@$(call ZERO_KEEP,$(CC) $(CXX) $(GPT2_CFLAGS) $(GPT2_CUDA) $(CUDA_COMPILE))
$(BUILD)/gpt2/flags_cudnn: probes
	$(ZERO_DRY)@$(call ZERO_KEEP,$(GPT2_CUDNN))
$(BUILD)/gpt2/attention_cuda.o $(BUILD)/gpt2/attention_cudnn.o: $(BUILD)/gpt2/flags_cudnn
$(BUILD)/gpt2/%_cuda.o: gpt2/%_cuda.c $(BUILD)/gpt2/flags_cuda
	@mkdir -p $(@D) && echo "  cc   $@"
	$(Q)$(CC) $(GPT2_CFLAGS) $(GPT2_CUDA) -c $< -o $@
$(BUILD)/gpt2/%.o: gpt2/%.cu $(BUILD)/gpt2/flags_cuda
	@mkdir -p $(@D) && echo "  cuda $@"
	$(Q)$(CUDA_COMPILE) $(filter -D%,$(GPT2_CUDA) $(GPT2_CUDNN)) -c $< -o $@
$(BUILD)/gpt2/%.o: gpt2/%.cpp $(BUILD)/gpt2/flags_cuda
	@mkdir -p $(@D) && echo "  c++  $@"
	$(Q)$(CXX) -std=c++17 -O1 -Wall $(GPT2_CUDA) $(GPT2_CUDNN) -I. -MMD -MP -c $< -o $@
