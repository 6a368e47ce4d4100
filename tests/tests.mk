# Each test is one program; tests/run.sh runs them.
TESTS    := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/test_*.c tests/mpi_*.c)) \
            $(BUILD)/tests/power_loss
TEST_OBJ := $(if $(filter-out no,$(CUDA)),$(BUILD)/tests/toy_cuda.o)
CMOCKA_HEADERS := stdarg.h stddef.h stdint.h setjmp.h cmocka.h
HAVE_CMOCKA := $(call have,$(CMOCKA_HEADERS:%=\#include <%>\n))
# Tests of the CUDA code that can run without a GPU
CUDA_TESTS     := $(wildcard tests/*_cuda.c tests/*_device.c tests/*_nccl.c) tests/mpi_bits.c
STAND_IN_TESTS := $(patsubst tests/%.c,$(BUILD)/tests/%,$(CUDA_TESTS)) \
                  $(patsubst tests/cuda/%.cpp,$(BUILD)/tests/cuda/%,$(wildcard tests/cuda/test_*.cpp)) \
                  $(BUILD)/tests/gpu_gate

.PHONY: test fuzz test-programs stand-in stand-in-tests sanitized check
.SECONDARY:
$(BUILD)/tests/%.o: tests/%.cu $(ZERO_FLAGS)_cuda
	@mkdir -p $(@D) && echo "  cuda $@"
	$(Q)$(ZERO_CUDA_COMPILE) -I. -c $< -o $@
# Tests can make operations on files fail (llmc_zero/tiers/file_folder.h). They link these objects in place of
# the plugin's, which have no such hook.
FAULTS     := $(addprefix tiers/,file_folder.o file_queue.o file_uring.o)
FAULTS_OBJ := $(FAULTS:%=$(BUILD)/tests/%)
PLUGIN_OBJ := $(filter-out $(FAULTS:%=$(BUILD)/llmc_zero/%),$(ZERO_OBJ))
$(FAULTS_OBJ): $(BUILD)/tests/%.o: llmc_zero/%.c $(ZERO_FLAGS) $(ZERO_FLAGS)_found
	@mkdir -p $(@D) && echo "  cc   $@"
	$(Q)$(CC) $(ZERO_CFLAGS) -DFILE_FAULTS $(ZERO_FOUND_CFLAGS) -c $< -o $@
# Tests compute little. At -O1 they compile three times as fast.
$(BUILD)/tests/%: tests/%.c $(GPT2_OBJ) $(PLUGIN_OBJ) $(FAULTS_OBJ) $(TEST_OBJ) | $(NCCL_SO)
	@mkdir -p $(@D) && echo "  link $@"
	$(Q)$(CC) $(ZERO_CFLAGS:-O3=-O1) -DFILE_FAULTS $(ZERO_FOUND_CFLAGS) $(ZERO_MPI) \
	    $(filter -D%,$(GPT2_CUDA) $(GPT2_CUDNN)) -I. $< $(filter %.o,$^) -o $@ -lcmocka $(LIBS)
# These tests replace a function of the plugin (tests/pretend.h).
$(addprefix $(BUILD)/tests/,mpi_bits mpi_zero mpi_nccl): LIBS += -Wl,--wrap=net_machine
# These tests link the trainer's objects.
$(addprefix $(BUILD)/tests/,test_gradients mpi_same gpu_gate): $(filter $(BUILD)/trainer/%,$(TRAINER_OBJ))

# The file readers, damaged in known ways (test_damage) and by libFuzzer (SAN=fuzz). tests/fuzz/run.c replaces
# the functions that the trainer's readers call to end a run.
FUZZ_C   := $(filter-out %/libfuzzer.c,$(wildcard tests/fuzz/*.c))
FUZZ_OBJ := $(FUZZ_C:%.c=$(BUILD)/%.o) $(GPT2_OBJ) \
            $(filter-out %/run.o,$(filter $(BUILD)/trainer/%,$(TRAINER_OBJ)))
$(BUILD)/tests/fuzz/%.o: tests/fuzz/%.c $(ZERO_FLAGS)
	@mkdir -p $(@D) && echo "  cc   $@"
	$(Q)$(CC) $(ZERO_CFLAGS) $(ZERO_MPI) -I. -c $< -o $@
# Always uses the stand-in's CUDA headers, even with CUDA=no.
$(BUILD)/tests/fuzz/tuning.o: ZERO_MPI := -Itests/cuda
$(BUILD)/tests/test_damage: $(FUZZ_OBJ)
$(BUILD)/tests/fuzz_readers: $(BUILD)/tests/fuzz/libfuzzer.o $(FUZZ_OBJ) $(ZERO_OBJ)
	@echo "  link $@"
	$(Q)$(CC) $(ZERO_CFLAGS) -fsanitize=fuzzer $^ -o $@ $(LIBS)

$(BUILD)/tests/cuda/test_%: $(BUILD)/tests/cuda/test_%.o $(GPT2_OBJ) $(ZERO_OBJ)
	@echo "  link $@"
	$(Q)$(CXX) $(SANFLAGS_$(SAN)) $^ -o $@ $(LIBS)

#? test                runs every test
#? FIRST=1             make test: runs quick tests first and stops at the first failure
#? SETTINGS=all        make test, make check: tests every combination of settings instead of a sample
test: deps
	+@$(SUBMAKE) test-programs
	+@$(SUBMAKE) CUDA=stand-in stand-in
	@$(WITHOUT_FLAGS) tests/run.sh $(BUILD) $(TRAINER)
#? fuzz                draws cases for the plugin, and compares every bit with the naive path
#? SECONDS=600         make fuzz: for this long
#? SEED=7              make fuzz: from this seed on, instead of 1
fuzz: deps $(BUILD)/tests/mpi_bits
	+@$(SUBMAKE) CUDA=stand-in $(BUILD)/stand-in/tests/mpi_bits
	@. scripts/mpi_env.sh; export SEED=$(or $(SEED),1) OMP_NUM_THREADS=1 OMPI_MCA_mpi_yield_when_idle=1; \
	for np in 1 2 3 4; do for build in $(BUILD) $(BUILD)/stand-in; do \
	    mpirun --oversubscribe --bind-to none -np $$np $$build/tests/mpi_bits \
	        $$(($(or $(SECONDS),600) / 8)) || exit 1; \
	done; done
#? test-programs       builds the programs for make test
test-programs: $(TRAINER) $(TESTS) $(EXAMPLE) $(TOKENS) $(HELLASWAG) $(BUILD)/bench/comm
#? stand-in            builds the trainer and the tests of the CUDA code; needs CUDA=stand-in
stand-in: $(TRAINER) stand-in-tests $(BUILD)/bench/comm
#? stand-in-tests      builds only those tests
stand-in-tests: $(STAND_IN_TESTS)
#? sanitized           builds the trainer and the tests; needs SAN=address or SAN=thread
sanitized: $(TRAINER) $(TESTS)
#? check               checks dependencies, format and static analysis, and runs the tests under sanitizers
#? LLMC=folder         make check: an existing clone of llm.c to build with the plugin (default: a new clone)
#? KILLS=6             make check: number of ranks to kill and stop
#? KILL_SAVES=20       make check: number of ranks to kill, half of them during a save
#? FUZZ=60             make check: seconds of fuzzing for each file reader
check: deps
	@$(WITHOUT_FLAGS) scripts/check.sh
