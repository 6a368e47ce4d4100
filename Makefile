# llmc_zero: the plugin (build/libllmc_zero.a), the trainer (train_gpt2_zero), their tests.
#   make demo     from nothing to a GPT-2 that trains under ZeRO-3 on two ranks and writes a story; TEXT=my.txt: on your own text
#   make test     every test            make check   format, static analysis, sanitizers            make bench   speed and memory
#   make plots RUN=folder     pictures of a run, or of a folder of runs (scripts/compare_stages.sh makes one)
#   make SAN=address ...   or SAN=thread: the same with sanitizers, in a build folder of its own; V=1 shows the commands
#   make NCCL=no ...       without NCCL where its header is
#   make CUDA=no ...       without CUDA where nvcc is; CUDA=stand-in: the CUDA code on the processor, for tests (tests/cuda/)
# Works offline once scripts/install_deps.sh has found or installed what it names.

CC      ?= cc
Q       := $(if $(V),,@)
SAN     ?=
# CUDA 12 and newer
CUDA    ?= $(if $(SAN),no,$(if $(shell nvcc --version 2>/dev/null | grep -E 'release (1[2-9]|[2-9][0-9])\.'),yes,no))
BUILD   := build$(if $(SAN),/$(SAN))$(if $(filter stand-in,$(CUDA)),/stand-in)
SANFLAGS_address := -fsanitize=address,undefined -fno-sanitize-recover=undefined
SANFLAGS_thread := -fsanitize=thread
# TSan does not understand OpenMP's barriers: with it, one thread a rank and the progress thread
OPENMP  := $(if $(filter thread,$(SAN)),,-fopenmp)
CFLAGS  ?= -O3 -g
WARN    := -Wall -Wextra -Wno-unknown-pragmas
BASE    := -std=c11 -D_GNU_SOURCE $(CFLAGS) $(WARN) $(OPENMP) $(SANFLAGS_$(SAN)) -fno-math-errno -fno-trapping-math -MMD -MP -I.
# Numbers: the layers may use fused multiply-add; the plugin, built by its own llmc_zero/zero.mk as in any trainer, does without.
GPT2_CFLAGS := $(BASE) -ffp-contract=fast
ZERO_BUILD  := $(BUILD)
ZERO_OPT    := $(CFLAGS) $(SANFLAGS_$(SAN))
ZERO_OPENMP := $(OPENMP)

ifeq ($(CUDA),stand-in)
ZERO_CUDA         := yes
ZERO_CUDA_CFLAGS  := -DZERO_HAVE_CUDA -DCUDA_STAND_IN -Itests/cuda
STAND_IN          := $(CXX) -x c++ -std=c++17 -fno-strict-aliasing $(ZERO_OPT) $(WARN) $(OPENMP) $(ZERO_CUDA_CFLAGS) -I. -MMD -MP
ZERO_CUDA_COMPILE := $(STAND_IN) -ffp-contract=off
# The stand-in for NCCL is found there, where LD_LIBRARY_PATH names no other; sanitizers open libraries in the program's place, which only the
# older kind of path allows for.
RPATH             := $(if $(SAN),--disable-new-dtags,--enable-new-dtags)
ZERO_CUDA_LIBS    := -lstdc++ -ldl -Wl,-rpath,$(abspath $(BUILD)) -Wl,$(RPATH) -Wl,--export-dynamic-symbol=cuda* \
                     -Wl,--export-dynamic-symbol=_Z*cuda_stand_in*
CUDA_COMPILE      := $(STAND_IN) -Wno-uninitialized -Wno-maybe-uninitialized
else
ZERO_CUDA         := $(CUDA)
ZERO_NCCL         := $(NCCL)
endif
include llmc_zero/zero.mk

# ---- probes: what is on this machine
have    = $(shell printf '\#include <$(1)>\nint main(void){return 0;}' | $(CC) -x c -E - >/dev/null 2>&1 && echo yes)
HAVE_DNNL  := $(call have,oneapi/dnnl/dnnl.h)
HAVE_PCRE  := $(shell printf '\#define PCRE2_CODE_UNIT_WIDTH 8\n\#include <pcre2.h>\n' | $(CC) -x c -E - >/dev/null 2>&1 && echo yes)
HAVE_CMOCKA := $(shell printf '\#include <stdarg.h>\n\#include <stddef.h>\n\#include <stdint.h>\n\#include <setjmp.h>\n\#include <cmocka.h>\n' | $(CC) -x c -E - >/dev/null 2>&1 && echo yes)
LIBS       := $(ZERO_LIBS) -ldnnl $(if $(OPENMP),,-lgomp)

# ---- the layers: on the processor, and on CUDA; cuDNN's attention where it and its header-only frontend are
GPT2_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(filter-out %_cuda.c,$(wildcard gpt2/*.c)))
ifneq ($(CUDA),no)
GPT2_CUDA := -DGPT2_CUDA $(ZERO_CUDA_CFLAGS)
GPT2_OBJ  += $(patsubst gpt2/%,$(BUILD)/gpt2/%.o,$(basename $(wildcard gpt2/*_cuda.c gpt2/*.cu)))
endif
ifeq ($(CUDA),stand-in)
GPT2_OBJ  += $(patsubst %.cpp,$(BUILD)/%.o,$(filter-out tests/cuda/test_% tests/cuda/nccl.cpp,$(wildcard tests/cuda/*.cpp)))
NCCL_SO   := $(BUILD)/libnccl.so.2
else ifeq ($(CUDA),yes)
FRONTEND  := third_party/cudnn_frontend/include
CUDNN_HOME ?= $(ZERO_CUDA_HOME)
HAVE_CUDNN := $(and $(wildcard $(CUDNN_HOME)/include/cudnn.h),$(wildcard $(FRONTEND)/cudnn_frontend.h))
HAVE_CUBLASLT := $(shell printf '\#include <cublasLt.h>\n' | $(CC) $(ZERO_CUDA_CFLAGS) -x c -E - >/dev/null 2>&1 && echo yes)
# pip's wheel brings cuDNN without the name that -lcudnn looks for.
CUDNN_FILES := $(wildcard $(CUDNN_HOME)/lib64/libcudnn.so* $(CUDNN_HOME)/lib/libcudnn.so*)
LINK_CUDNN := $(if $(filter %.so,$(CUDNN_FILES)),-lcudnn,$(if $(filter %.so.9,$(CUDNN_FILES)),-l:libcudnn.so.9,-lcudnn))
CUDA_COMPILE = $(ZERO_NVCC) -std=c++17 -O3 -lineinfo $(ZERO_CUDA_ARCH) -Xcompiler -Wall -I. -MMD -MP
LIBS      += -lstdc++
ifneq ($(HAVE_CUDNN),)
GPT2_CUDA += -DGPT2_CUDNN -isystem $(FRONTEND) $(CUDNN_HOME:%=-I%/include)
GPT2_OBJ  += $(BUILD)/gpt2/attention_cudnn.o
LIBS      += -L$(CUDNN_HOME)/lib64 -L$(CUDNN_HOME)/lib -Wl,-rpath,$(CUDNN_HOME)/lib64:$(CUDNN_HOME)/lib $(LINK_CUDNN)
endif
endif
TRAINER_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(wildcard trainer/*.c))
TESTS    := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/test_*.c tests/mpi_*.c))
TRAINER  := $(if $(SAN)$(filter stand-in,$(CUDA)),$(BUILD)/,)train_gpt2_zero
EXAMPLE  := $(BUILD)/mlp_zero
TOKENS   := $(BUILD)/make_tokens
STORIES  := data/stories_train.bin data/stories_val.bin data/stories_tokenizer.bin

.PHONY: all deps probes demo test run-tests stand-in stand-in-tests sanitized check bench plots clean data
all: train_gpt2_zero

deps:
	@scripts/install_deps.sh
probes: zero_needs
	@echo "found: what the plugin needs, oneDNN $(or $(HAVE_DNNL),no), PCRE2 $(or $(HAVE_PCRE),no), cmocka $(or $(HAVE_CMOCKA),no);" \
	      "CUDA $(CUDA)$(if $(filter yes,$(CUDA)), with$(if $(HAVE_CUDNN),,out) cuDNN and with$(if $(filter yes,$(ZERO_NCCL)),,out) NCCL); compiler $(CC)"
	@test -n "$(HAVE_DNNL)" || { echo "something is missing: scripts/install_deps.sh installs it, or make demo"; exit 1; }
	@test -n "$(or $(filter-out yes,$(CUDA)),$(HAVE_CUBLASLT))" || \
		{ echo "cublasLt.h is missing: install cuBLAS's headers, or build with CUDA=no"; exit 1; }

# As in zero.mk: objects of other flags are made anew.
$(BUILD)/flags: probes
	@mkdir -p $(@D); echo '$(GPT2_CFLAGS) $(GPT2_CUDA)' | cmp -s - $@ || echo '$(GPT2_CFLAGS) $(GPT2_CUDA)' >$@
$(BUILD)/gpt2/%.o: gpt2/%.c $(BUILD)/flags
	@mkdir -p $(@D) && echo "  cc   $@"
	$(Q)$(CC) $(GPT2_CFLAGS) $(GPT2_CUDA) -c $< -o $@
$(BUILD)/gpt2/%.o: gpt2/%.cu $(BUILD)/flags
	@mkdir -p $(@D) && echo "  cuda $@"
	$(Q)$(CUDA_COMPILE) $(filter -D%,$(GPT2_CUDA)) -c $< -o $@
$(BUILD)/gpt2/%.o: gpt2/%.cpp $(BUILD)/flags
	@mkdir -p $(@D) && echo "  c++  $@"
	$(Q)$(CXX) -std=c++17 -O1 -Wall $(GPT2_CUDA) -I. -MMD -MP -c $< -o $@
$(BUILD)/tests/cuda/%.o: tests/cuda/%.cpp
	@mkdir -p $(@D) && echo "  c++  $@"
	$(Q)$(STAND_IN) -c $< -o $@
# What is loaded in place of NVIDIA's library.
$(BUILD)/libnccl.so.2: tests/cuda/nccl.cpp
	@mkdir -p $(@D) && echo "  c++  $@"
	$(Q)$(STAND_IN) -MF $@.d -MT $@ -fPIC -shared $< -o $@
$(BUILD)/tests/cuda/test_nccl: $(BUILD)/tests/cuda/nccl.o
$(BUILD)/train_gpt2_zero.o: train_gpt2_zero.cu $(BUILD)/flags
	@mkdir -p $(@D) && echo "  cc   $@"
	$(Q)$(CC) -x c $(ZERO_CFLAGS) -I. -c $< -o $@
$(BUILD)/trainer/%.o: trainer/%.c $(BUILD)/flags
	@mkdir -p $(@D) && echo "  cc   $@"
	$(Q)$(CC) $(ZERO_CFLAGS) -I. -c $< -o $@
$(TRAINER): $(BUILD)/train_gpt2_zero.o $(TRAINER_OBJ) $(GPT2_OBJ) $(ZERO_LIB) | $(STORIES) $(NCCL_SO)
	@echo "  link $@"
	$(Q)$(CC) $(BASE) $^ -o $@ $(LIBS)

$(EXAMPLE): dev/examples/mlp_zero.c $(ZERO_LIB)
	@echo "  link $@"
	$(Q)$(CC) $(BASE) $^ -o $@ $(ZERO_LIBS)

$(BUILD)/make_stories: dev/data/make_stories.c dev/data/byte_tokenizer.h
	@mkdir -p $(@D) && echo "  cc   $@"
	$(Q)$(CC) -std=c11 -D_GNU_SOURCE -O2 -g $(WARN) $< -o $@
TOKENS_SRC := dev/data/make_tokens.c dev/data/bpe.c gpt2/tokenizer.c gpt2/error.c
$(TOKENS): $(TOKENS_SRC) dev/data/bpe.h dev/data/byte_tokenizer.h gpt2/tokenizer.h gpt2/error.h | probes
	@test -n "$(HAVE_PCRE)" || { echo "PCRE2 is missing: scripts/install_deps.sh installs it"; exit 1; }
	@mkdir -p $(@D) && echo "  cc   $@"
	$(Q)$(CC) -std=c11 -D_GNU_SOURCE -O2 -g $(WARN) -I. $(TOKENS_SRC) -o $@ -lpcre2-8
$(STORIES) &: $(BUILD)/make_stories
	@mkdir -p data
	$(BUILD)/make_stories data
data: $(STORIES)

TEST_OBJ := $(if $(filter-out no,$(CUDA)),$(BUILD)/tests/toy_cuda.o)
.SECONDARY:
$(BUILD)/tests/%.o: tests/%.cu
	@mkdir -p $(@D) && echo "  cuda $@"
	$(Q)$(ZERO_CUDA_COMPILE) -c $< -o $@
$(BUILD)/tests/%: tests/%.c $(GPT2_OBJ) $(ZERO_OBJ) $(TEST_OBJ) | $(NCCL_SO)
	@mkdir -p $(@D) && echo "  link $@"
	$(Q)$(CC) $(ZERO_CFLAGS) $(filter -D%,$(GPT2_CUDA)) $(ZERO_MPI) -I. $< $(filter %.o,$^) -o $@ -lcmocka $(LIBS)
# Tests of the trainer's own parts.
$(BUILD)/tests/test_gradients $(BUILD)/tests/test_unlike: $(TRAINER_OBJ)

$(BUILD)/tests/cuda/test_%: $(BUILD)/tests/cuda/test_%.o $(GPT2_OBJ) $(ZERO_OBJ)
	@echo "  link $@"
	$(Q)$(CXX) $(SANFLAGS_$(SAN)) $^ -o $@ -lcmocka $(LIBS)

demo: deps
	@$(MAKE) --no-print-directory train_gpt2_zero $(if $(TEXT),$(TOKENS))
	@scripts/demo.sh
test: deps
	@$(MAKE) --no-print-directory -j2 run-tests
run-tests: $(TRAINER) $(TESTS) $(EXAMPLE) $(TOKENS) $(BUILD)/bench/comm
	@$(MAKE) --no-print-directory CUDA=stand-in stand-in
	@tests/run.sh $(BUILD) $(TRAINER)
# The CUDA code as the tests run it where there is no card.
stand-in: $(TRAINER) stand-in-tests $(BUILD)/bench/comm
stand-in-tests: $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/*_cuda.c tests/*_device.c tests/*_nccl.c)) \
                $(patsubst tests/cuda/%.cpp,$(BUILD)/tests/cuda/%,$(wildcard tests/cuda/test_*.cpp))
sanitized: $(TRAINER) $(TESTS)
check: deps
	@scripts/check.sh
$(BUILD)/bench/%: dev/bench/%.c $(ZERO_OBJ) $(filter $(BUILD)/tests/cuda/%,$(GPT2_OBJ)) | $(NCCL_SO)
	@mkdir -p $(@D) && echo "  link $@"
	$(Q)$(CC) $(ZERO_CFLAGS) $(ZERO_MPI) -I. $(filter %.c %.o,$^) -o $@ $(LIBS)
bench: train_gpt2_zero $(patsubst dev/bench/%.c,$(BUILD)/bench/%,$(wildcard dev/bench/*.c))
	@dev/bench/bench.sh
plots:
	@scripts/install_deps.sh plots
	@scripts/plots.sh $(RUN)
clean:
	rm -rf build train_gpt2_zero
	rm -f $(STORIES)

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
