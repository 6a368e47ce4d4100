# Builds the plugin (build/libllmc_zero.a), the trainer (train_gpt2_zero) and their tests. `make help` lists
# all targets and variables, from the lines that begin with #? here and in the included files. Builds need no
# network once scripts/install_deps.sh has installed the missing packages.

#? train_gpt2_zero     builds the trainer; the default target
.DEFAULT_GOAL := all

#? CC=cc CXX=g++       the compilers
CC      ?= cc
#? V=1                 shows the commands
Q       := $(if $(V),,@)
#? SAN=address|thread|fuzz  builds with sanitizers, in build/address/ etc.; fuzz: for libFuzzer, with CC=clang
SAN     ?=
#? CUDA=yes|no|stand-in  with CUDA, without, or emulated on the CPU (tests); default yes with nvcc 12 or newer
NVCC_12 := $(shell nvcc --version 2>/dev/null | grep -E 'release (1[2-9]|[2-9][0-9])\.')
CUDA    ?= $(if $(SAN),no,$(if $(NVCC_12),yes,no))
# For the CUDA stand-in, -O1 halves the compile time, and its tests run no slower.
#? CFLAGS='-O3 -g'     optimization and debug flags for all C code; with CUDA=stand-in '-O1 -g'
CFLAGS  ?= $(if $(filter stand-in,$(CUDA)),-O1,-O3) -g
#? BUILD=folder        where objects and test programs go; build/ by default
BUILD   := build$(if $(SAN),/$(SAN))$(if $(filter stand-in,$(CUDA)),/stand-in)
SANFLAGS_address := -fsanitize=address,undefined -fno-sanitize-recover=undefined
SANFLAGS_thread := -fsanitize=thread
SANFLAGS_fuzz := -fsanitize=fuzzer-no-link,address,undefined,float-cast-overflow -fno-sanitize-recover=all
# TSan does not understand OpenMP's barriers, and clang may lack OpenMP, so those builds omit it.
OPENMP  := $(if $(filter thread fuzz,$(SAN)),,-fopenmp)
WARN    := -Wall -Wextra -Wno-unknown-pragmas -Wno-missing-field-initializers
BASE    := -std=c11 -D_GNU_SOURCE $(CFLAGS) $(WARN) $(OPENMP) $(SANFLAGS_$(SAN)) -fno-math-errno \
           -fno-trapping-math -MMD -MP -I.

# Make runs one job per core unless the user gave -j, and prints each job's output as a block. Goals that run
# programs print immediately instead. If clean or such a goal is given with others, make runs all goals in
# order, one at a time.
#? -j N                runs N jobs at once; by default one per core
ifeq ($(filter -j% --jobs% --jobserver%,$(MAKEFLAGS) $(shell printenv MAKEFLAGS)),)
MAKEFLAGS += -j$(shell nproc)
endif
RUN_PROGRAMS := demo test check bench plots lesson tutorial pictures
ifeq ($(filter $(RUN_PROGRAMS),$(MAKECMDGOALS)),)
MAKEFLAGS += --output-sync=target
endif
ifneq ($(and $(filter $(RUN_PROGRAMS) clean,$(MAKECMDGOALS)),$(word 2,$(MAKECMDGOALS))),)
.NOTPARALLEL:
endif
# Drops this make's flags, so that a program that runs make chooses its own number of jobs.
WITHOUT_FLAGS := env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL
# Recipes must prefix it with +; otherwise make gives it only one job.
SUBMAKE := $(MAKE) --no-print-directory

# zero.mk builds the plugin, as in any trainer.
ZERO_BUILD  := $(BUILD)
ZERO_OPT    := $(CFLAGS) $(SANFLAGS_$(SAN))
ZERO_OPENMP := $(OPENMP)
ifeq ($(CUDA),stand-in)
include tests/cuda/stand_in.mk
else
ZERO_CUDA   := $(CUDA)
#? NCCL=no             builds without NCCL even if its header is found
ZERO_NCCL   := $(NCCL)
endif
include llmc_zero/zero.mk
LIBS := $(ZERO_LIBS) -ldnnl $(if $(OPENMP),,-lgomp)
include gpt2/gpt2.mk
ifneq ($(CUDA),no)
include gpt2/cuda.mk
endif
include dev/dev.mk

# ---- the trainer: plain C, although the file with the layer loops is named .cu, as in llm.c
TRAINER     := $(if $(filter build,$(BUILD)),,$(BUILD)/)train_gpt2_zero
TRAINER_OBJ := $(BUILD)/train_gpt2_zero.o $(patsubst %.c,$(BUILD)/%.o,$(wildcard trainer/*/*.c))
$(BUILD)/train_gpt2_zero.o: train_gpt2_zero.cu $(ZERO_FLAGS)
	@mkdir -p $(@D) && echo "  cc   $@"
	$(Q)$(CC) -x c $(ZERO_CFLAGS) -I. -c $< -o $@
$(BUILD)/trainer/%.o: trainer/%.c $(ZERO_FLAGS)
	@mkdir -p $(@D) && echo "  cc   $@"
	$(Q)$(CC) $(ZERO_CFLAGS) -I. -c $< -o $@
$(BUILD)/trainer/planning/machines.o: trainer/planning/machines.json
$(TRAINER): $(TRAINER_OBJ) $(GPT2_OBJ) $(ZERO_LIB) | $(STORIES) $(NCCL_SO)
	@echo "  link $@"
	$(Q)$(CC) $(BASE) $^ -o $@ $(LIBS)
include dev/lessons/lessons.mk
include tests/tests.mk

.PHONY: all help deps demo plots install compile_commands.json clean
all: $(TRAINER)
#? help                prints this list
HELP_FILES := Makefile $(wildcard gpt2/*.mk dev/*.mk dev/*/*.mk tests/*.mk tests/cuda/*.mk)
help:
	@sed -n 's/^#? //p' $(HELP_FILES) | awk -F '  +' ' \
	    { line = sprintf("  %-22s %s\n", $$1, $$2) } \
	    $$1 ~ /=|^-/ { variables = variables line; next } { targets = targets line } \
	    END { printf "make TARGET... [VARIABLE=value]...\n\nTargets:\n%s\nVariables:\n%s", targets, variables }'
#? deps                installs missing packages (scripts/install_deps.sh)
deps:
	@$(WITHOUT_FLAGS) scripts/install_deps.sh
#? demo                builds everything, trains a small GPT-2 with ZeRO-3 on two ranks and writes a story
#? TEXT=my.txt         make demo: trains on your own text
#? STEPS=3000          make demo: the number of steps
demo: deps
	@$(WITHOUT_FLAGS) scripts/demo.sh check
	+@$(SUBMAKE) train_gpt2_zero $(if $(TEXT),$(TOKENS))
	@$(WITHOUT_FLAGS) scripts/demo.sh
#? plots               draws plots of the run in RUN
#? RUN=folder          make plots: the folder of a run, or of several runs from scripts/compare_stages.sh
plots:
	@$(WITHOUT_FLAGS) scripts/plots.sh "$$RUN"
#? PREFIX=/usr/local   make install: the folder to install to
PREFIX ?= /usr/local
#? DESTDIR=folder      make install: goes before PREFIX in the files' paths, to build a package
#? install             installs trainer, library and headers, and llmc_zero.pc for pkg-config --static
install: $(TRAINER) $(ZERO_LIB)
	install -D -t $(DESTDIR)$(PREFIX)/bin $(TRAINER)
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/lib $(ZERO_LIB)
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/include/llmc_zero $(wildcard llmc_zero/zero*.h)
	@mkdir -p $(DESTDIR)$(PREFIX)/lib/pkgconfig
	printf '%s\n' 'Name: llmc_zero' 'Description: ZeRO for trainers in C' \
	    'Version: $(shell sed -nE 's/.*ZERO_VERSION "(.*)".*/\1/p' llmc_zero/zero.h)' \
	    'Cflags: -I$(abspath $(PREFIX))/include' 'Libs: -L$(abspath $(PREFIX))/lib -lllmc_zero' \
	    'Libs.private: $(ZERO_LIBS)' \
	    >$(DESTDIR)$(PREFIX)/lib/pkgconfig/llmc_zero.pc
#? compile_commands.json  writes for editors how make compiles each file
compile_commands.json:
	+@MAKEFLAGS='$(filter-out -j% --jobserver%,$(MAKEFLAGS))' $(MAKE) -nB V=1 test-programs | \
	awk -v folder='$(CURDIR)' ' \
	    { line = line $$0 } \
	    sub(/\\$$/, "", line) { next } \
	    line ~ / -o / && match(line, /[^ ]+\.(c|cu|cpp) /) { \
	        file = substr(line, RSTART, RLENGTH - 1); gsub(/["\\]/, "\\\\&", line); \
	        printf "%s{\"directory\": \"%s\", \"file\": \"%s\",\n \"command\": \"%s\"}", \
	            n++ ? ",\n" : "[\n", folder, file, line } \
	    { line = "" } \
	    END { print "\n]" }' >$@
#? clean               removes all build results
clean:
	rm -rf build train_gpt2_zero compile_commands.json
	rm -f $(STORIES)

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
