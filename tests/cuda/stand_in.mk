# CUDA=stand-in: runs the CUDA code on the CPU, for tests (see stand_in.h). The Makefile
# includes this file before the plugin's makefile, to override the plugin's settings.
ZERO_CUDA         := yes
ZERO_CUDA_CFLAGS  := -DZERO_HAVE_CUDA -DCUDA_STAND_IN -Itests/cuda
STAND_IN          := $(CXX) -x c++ -std=c++17 -fno-strict-aliasing $(ZERO_OPT) $(WARN) $(OPENMP) \
                     $(ZERO_CUDA_CFLAGS) -I. -MMD -MP
ZERO_CUDA_COMPILE := $(STAND_IN) -ffp-contract=off
CUDA_COMPILE      := $(STAND_IN) -Wno-uninitialized -Wno-maybe-uninitialized
# The program finds the stand-in for NCCL in the build folder, unless LD_LIBRARY_PATH points to another one.
# Sanitizers intercept dlopen; calls from their library ignore the program's RUNPATH, but not its RPATH.
RPATH             := $(if $(SAN),--disable-new-dtags,--enable-new-dtags)
ZERO_CUDA_LIBS    := -lstdc++ -ldl -Wl,-rpath,$(abspath $(BUILD)) -Wl,$(RPATH) \
                     -Wl,--export-dynamic-symbol=cuda* -Wl,--export-dynamic-symbol=_Z*cuda_stand_in*
STAND_IN_OBJ      := $(patsubst %.cpp,$(BUILD)/%.o,$(filter-out tests/cuda/test_% tests/cuda/nccl.cpp, \
                     $(wildcard tests/cuda/*.cpp)))
NCCL_SO           := $(BUILD)/libnccl.so.2

$(BUILD)/tests/cuda/%.o: tests/cuda/%.cpp $(BUILD)/gpt2/flags_cuda
	@mkdir -p $(@D) && echo "  c++  $@"
	$(Q)$(STAND_IN) -c $< -o $@
# The plugin loads this library instead of NVIDIA's.
$(BUILD)/tests/cuda/nccl.o: STAND_IN += -fPIC
$(NCCL_SO): $(BUILD)/tests/cuda/nccl.o
	@echo "  link $@"
	$(Q)$(CXX) $(OPENMP) $(SANFLAGS_$(SAN)) -shared $< -o $@
$(BUILD)/tests/cuda/test_stand_in: $(BUILD)/tests/cuda/nccl.o
