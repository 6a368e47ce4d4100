# Builds the plugin for the Makefile that includes this file:
#   include llmc_zero/zero.mk
#   my_trainer: LDLIBS += $(ZERO_LIBS)
#   my_trainer: $(ZERO_LIB)
# The plugin does not use the trainer's flags: contraction would change its bits, which must be the same on
# every machine, and -Ofast and -ffast-math would optimise away its checks for NaN and infinity. A Makefile
# may set the variables below that use ?= before the include.
ZERO_BUILD  ?= build
ZERO_OPT    ?= -O3 -g
ZERO_OPENMP ?= -fopenmp
# With ZERO_CUDA=yes the plugin also runs on CUDA devices: nvcc compiles its kernels, and programs link with
# the static CUDA runtime, so that CPU runs load no CUDA library. NCCL support is built if the header is
# found, unless ZERO_NCCL=no; only runs that use NCCL load the library.
ZERO_CUDA   ?= no
ZERO_NVCC   ?= nvcc
ZERO_CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(realpath $(shell command -v $(ZERO_NVCC))))
ZERO_CUDA_ARCH ?= -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=[sm_90,compute_90]

ZERO_HOST_GOAL := $(.DEFAULT_GOAL)
ZERO_Q     := $(if $(V),,@)
ZERO_DIR   := $(patsubst %/,%,$(dir $(lastword $(MAKEFILE_LIST))))
ZERO_LIB   := $(ZERO_BUILD)/libllmc_zero.a
ZERO_MPI   := $(shell mpicc --showme:compile 2>/dev/null)
# Objects are in the same subfolders as their sources.
ZERO_C     := $(wildcard $(ZERO_DIR)/*.c $(ZERO_DIR)/*/*.c)
ZERO_CU    := $(if $(filter yes,$(ZERO_CUDA)),$(wildcard $(ZERO_DIR)/*/*.cu))
ZERO_OBJ   := $(patsubst $(ZERO_DIR)/%,$(ZERO_BUILD)/llmc_zero/%.o,$(basename $(ZERO_C) $(ZERO_CU)))

# A shell command that succeeds if the compiler finds a header.
ZERO_FINDS = printf '\#include <%s>\n' $(1) | $(CC) $(ZERO_MPI) $(ZERO_CUDA_CFLAGS) -x c -E - >/dev/null 2>&1
ifeq ($(ZERO_CUDA),yes)
ZERO_CUDA_CFLAGS ?= -DZERO_HAVE_CUDA -isystem $(ZERO_CUDA_HOME)/include
ZERO_CUDA_LIBS   ?= -L$(ZERO_CUDA_HOME)/lib64 -Wl,-rpath,$(ZERO_CUDA_HOME)/lib64 -lcudart_static -lrt -ldl
ifndef ZERO_NCCL
ZERO_NCCL := $(shell $(call ZERO_FINDS,nccl.h) && echo yes || echo no)
endif
ifeq ($(ZERO_NCCL),yes)
ZERO_CUDA_CFLAGS += -DZERO_HAVE_NCCL
endif
# -fmad=false, because the code calls fmaf where an operation must round once. The kernels do not use the C++
# library, so C programs can link them.
ZERO_CUDA_COMPILE ?= $(ZERO_NVCC) -std=c++17 -O3 -lineinfo -fmad=false $(ZERO_CUDA_ARCH) \
                     -Xcompiler -Wall,-fno-exceptions,-fno-threadsafe-statics -MMD -MP
endif
# The plugin uses io_uring if liburing is installed; otherwise threads read and write the files on NVMe.
ifndef ZERO_URING
ZERO_URING := $(shell $(call ZERO_FINDS,liburing.h) && echo yes || echo no)
endif
ifeq ($(ZERO_URING),yes)
ZERO_URING_CFLAGS := -DZERO_HAVE_URING
ZERO_URING_LIBS   := -luring
endif
ZERO_LIBS   := $(ZERO_OPENMP) $(shell mpicc --showme:link 2>/dev/null) -ljansson -lm -lpthread \
               $(ZERO_URING_LIBS) $(ZERO_CUDA_LIBS)
# Unused parameters are allowed, because functions in a table share a signature. Rows of a table may leave out
# their last fields.
ZERO_CFLAGS := -std=c11 -D_GNU_SOURCE $(ZERO_OPT) -Wall -Wextra -Wno-unknown-pragmas -Wno-unused-parameter \
               -Wno-missing-field-initializers $(ZERO_OPENMP) -fno-math-errno -fno-trapping-math \
               -ffp-contract=off -MMD -MP
# Only these objects depend on what is installed, so a new package or another CUDA= rebuilds no others.
ZERO_FOUND_CFLAGS := $(ZERO_URING_CFLAGS) $(ZERO_CUDA_CFLAGS)
ZERO_FOUND := $(filter $(addprefix $(ZERO_BUILD)/llmc_zero/,comm/open.o comm/nccl%.o device/device_c%.o \
              tiers/file_uring.o),$(ZERO_OBJ))

# Prints one line for each missing header, before anything is compiled.
ZERO_HAVE = $(ZERO_FINDS) || { echo "llmc_zero needs $(1): install $(2)" >&2; found=; }
.PHONY: zero_needs
zero_needs:
	@found=1; \
	$(call ZERO_HAVE,mpi.h,libopenmpi-dev and openmpi-bin); \
	$(call ZERO_HAVE,xxhash.h,libxxhash-dev); \
	$(call ZERO_HAVE,jansson.h,libjansson-dev); \
	$(if $(filter yes,$(ZERO_CUDA)), \
	    $(call ZERO_HAVE,nvtx3/nvToolsExt.h,the CUDA toolkit with NVTX or build without CUDA);) \
	$(if $(filter yes,$(ZERO_NCCL)),$(call ZERO_HAVE,nccl.h,libnccl-dev or build with NCCL=no);) \
	test "$$found"
# These files hold the objects' flags, so objects are rebuilt when their flags change. With ZERO_DRY=+ a dry
# run writes them too, so it shows only objects whose flags changed.
ZERO_KEEP  = mkdir -p $(@D) && { echo '$(1)' | cmp -s - $@ || echo '$(1)' >$@; }
ZERO_FLAGS := $(ZERO_BUILD)/llmc_zero/flags
$(ZERO_FLAGS): zero_needs
	$(ZERO_DRY)@$(call ZERO_KEEP,$(CC) $(ZERO_CFLAGS) $(ZERO_MPI))
$(ZERO_FLAGS)_found: zero_needs
	$(ZERO_DRY)@$(call ZERO_KEEP,$(ZERO_FOUND_CFLAGS))
$(ZERO_FLAGS)_cuda: zero_needs
	$(ZERO_DRY)@$(call ZERO_KEEP,$(ZERO_CUDA_COMPILE))

$(ZERO_FOUND): $(ZERO_FLAGS)_found
$(ZERO_BUILD)/llmc_zero/%.o: $(ZERO_DIR)/%.c $(ZERO_FLAGS)
	@mkdir -p $(@D) && echo "  cc   $@"
	$(ZERO_Q)$(CC) $(ZERO_CFLAGS) $(if $(filter $@,$(ZERO_FOUND)),$(ZERO_FOUND_CFLAGS)) $(ZERO_MPI) \
	    -c $< -o $@
$(ZERO_BUILD)/llmc_zero/%.o: $(ZERO_DIR)/%.cu $(ZERO_FLAGS)_cuda
	@mkdir -p $(@D) && echo "  cuda $@"
	$(ZERO_Q)$(ZERO_CUDA_COMPILE) -c $< -o $@
# Links a single object that exports only zero.h's names, so that internal names cannot clash with those of a
# trainer.
ZERO_ALL := $(ZERO_BUILD)/llmc_zero/all.o
$(ZERO_LIB): $(ZERO_OBJ)
	$(ZERO_Q)$(LD) -r --force-group-allocation $^ -o $(ZERO_ALL)
	$(ZERO_Q)objcopy --wildcard --keep-global-symbol='!zero_fail' --keep-global-symbol='zero_*' $(ZERO_ALL)
	$(ZERO_Q)rm -f $@ && $(AR) rcs $@ $(ZERO_ALL)

-include $(ZERO_OBJ:.o=.d)
.DEFAULT_GOAL := $(ZERO_HOST_GOAL)
