# Data preparation, the example, and the benchmarks
EXAMPLE  := $(BUILD)/mlp_zero
TOKENS   := $(BUILD)/make_tokens
HELLASWAG := $(BUILD)/make_hellaswag
STORIES  := data/stories_train.bin data/stories_val.bin data/stories_tokenizer.bin
DATA_CFLAGS := -std=c11 -D_GNU_SOURCE -O2 -g $(WARN)

.PHONY: data bench pictures reproduction
$(EXAMPLE): dev/examples/mlp_zero.c $(ZERO_LIB)
	@echo "  link $@"
	$(Q)$(CC) $(BASE) $(filter %.c %.a,$^) -o $@ $(ZERO_LIBS)

$(BUILD)/make_stories: dev/data/make_stories.c gpt2/disk.c gpt2/gpt2_error.c dev/data/byte_tokenizer.h
	@mkdir -p $(@D) && echo "  cc   $@"
	$(Q)$(CC) $(DATA_CFLAGS) -I. $(filter %.c,$^) -o $@
TOKENS_SRC := $(patsubst %,gpt2/%.c,bpe vocabulary tokenizer disk gpt2_error)
TOKENS_INC := $(wildcard dev/data/*.h) gpt2/hellaswag.h $(TOKENS_SRC:.c=.h)
#? build/make_tokens   builds the program that converts text to tokens (docs/reference/data.md)
#? build/make_hellaswag  builds the program that converts HellaSwag's examples for -h 1
$(TOKENS) $(HELLASWAG): $(BUILD)/%: dev/data/%.c $(TOKENS_SRC) $(TOKENS_INC) | probes
	@test -n "$(HAVE_PCRE)" || { echo "PCRE2 is missing: scripts/install_deps.sh installs it"; exit 1; }
	@mkdir -p $(@D) && echo "  cc   $@"
	$(Q)$(CC) $(DATA_CFLAGS) -DGPT2_PCRE2 -I. $(filter %.c,$^) -o $@ -lpcre2-8 -ljansson
$(STORIES) &: $(BUILD)/make_stories
	@mkdir -p data
	$(BUILD)/make_stories data
#? data                writes the corpus of small stories to data/
data: $(STORIES)

$(BUILD)/bench/%: dev/bench/%.c $(wildcard dev/bench/*.h) $(ZERO_OBJ) $(STAND_IN_OBJ) | $(NCCL_SO)
	@mkdir -p $(@D) && echo "  link $@"
	$(Q)$(CC) $(ZERO_CFLAGS) $(ZERO_FOUND_CFLAGS) $(ZERO_MPI) -I. $(filter %.c %.o,$^) -o $@ $(LIBS)
#? bench               measures speed and memory of a training step and of its parts
#? PEERS=python        make bench: a Python with torch and optionally DeepSpeed, to compare with
#? ROUNDS=1            make bench: runs of each program; medians are printed
#? STEPS=8             make bench: steps per run
#? NVME=folder         make bench: a folder on the disk to measure and to compare with fio
bench: train_gpt2_zero $(patsubst dev/bench/%.c,$(BUILD)/bench/%,$(wildcard dev/bench/*.c))
	@$(WITHOUT_FLAGS) dev/bench/bench.sh
#? pictures            draws the tutorial's pictures from runs (scripts/pictures.sh)
pictures: train_gpt2_zero
	@$(WITHOUT_FLAGS) scripts/pictures.sh
#? reproduction        the same GPT-2 in llm.c, PyTorch and here, compared (docs/reproduction.md)
reproduction: train_gpt2_zero $(STORIES)
	@$(WITHOUT_FLAGS) dev/reproduction/run.sh

$(BUILD)/calibrate: dev/calibrate.c $(GPT2_OBJ) $(ZERO_OBJ) $(STAND_IN_OBJ)
	@echo "  link $@"
	$(Q)$(CC) $(ZERO_CFLAGS) $(filter %.c %.o,$^) -o $@ $(LIBS)
#? calibrate           measures this machine for --machine build/machine.json; NVME=folder is on its disk
calibrate: $(BUILD)/calibrate $(BUILD)/bench/comm
	@$(WITHOUT_FLAGS) scripts/calibrate.sh $(BUILD) $(or $(NVME),$(BUILD))
.PHONY: calibrate
