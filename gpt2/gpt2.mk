# The model's layers for the CPU. They may use fused multiply-add, which the plugin's flags forbid.
GPT2_CFLAGS := $(BASE) -Wno-unused-parameter -ffp-contract=fast
GPT2_CUDA   :=
GPT2_OBJ    := $(patsubst %.c,$(BUILD)/%.o,$(filter-out %_cuda.c,$(wildcard gpt2/*.c)))

have         = $(shell printf '$(1)' | $(CC) $(ZERO_CUDA_CFLAGS) -x c -E - >/dev/null 2>&1 && echo yes)
# With PCRE2 the trainer takes prompts as text.
HAVE_PCRE   := $(call have,\#define PCRE2_CODE_UNIT_WIDTH 8\n\#include <pcre2.h>\n)
GPT2_PCRE   := $(if $(HAVE_PCRE),-DGPT2_PCRE2)
LIBS        += $(if $(HAVE_PCRE),-lpcre2-8)
HAVE_DNNL   := $(call have,\#include <oneapi/dnnl/dnnl.h>\n)

.PHONY: probes
#? probes              prints which build dependencies are installed on this machine
probes: zero_needs
	@echo "found: the plugin's libraries, oneDNN $(or $(HAVE_DNNL),no), PCRE2 $(or $(HAVE_PCRE),no)," \
	      "io_uring $(ZERO_URING), cmocka $(or $(HAVE_CMOCKA),no); CUDA $(CUDA)$(FOUND_FOR_CUDA); compiler $(CC)"
	@test -n "$(HAVE_DNNL)" || \
	    { echo "oneDNN is missing: scripts/install_deps.sh installs it, or make demo"; exit 1; }
	@test -n "$(or $(filter-out yes,$(CUDA)),$(HAVE_CUBLASLT))" || \
	    { echo "cublasLt.h is missing: install cuBLAS's headers, or build with CUDA=no"; exit 1; }

# Objects are rebuilt when their flags change, as in the plugin (zero.mk).
$(BUILD)/gpt2/flags: probes
	$(ZERO_DRY)@$(call ZERO_KEEP,$(CC) $(GPT2_CFLAGS))
$(BUILD)/gpt2/flags_pcre: probes
	$(ZERO_DRY)@$(call ZERO_KEEP,$(GPT2_PCRE))
$(BUILD)/gpt2/bpe.o: $(BUILD)/gpt2/flags_pcre
$(BUILD)/gpt2/%.o: gpt2/%.c $(BUILD)/gpt2/flags
	@mkdir -p $(@D) && echo "  cc   $@"
	$(Q)$(CC) $(GPT2_CFLAGS) $(if $(filter %/bpe.o,$@),$(GPT2_PCRE)) -c $< -o $@
