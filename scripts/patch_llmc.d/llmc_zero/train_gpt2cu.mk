# ZeRO for train_gpt2cu: builds the plugin with its CUDA kernels in a separate folder. The host's flags are
# converted to nvcc's syntax.
ZERO_FOR_CUDA := $(ZERO_BUILD)/cuda/libllmc_zero.a
ZERO_COMMA := ,
.PHONY: $(ZERO_FOR_CUDA)
$(ZERO_FOR_CUDA):
	@$(MAKE) --no-print-directory -f llmc_zero/zero.mk ZERO_CUDA=yes ZERO_NVCC=$(NVCC) \
	    ZERO_BUILD=$(ZERO_BUILD)/cuda $@
train_gpt2cu: override NVCC_FLAGS += -DLLMC_ZERO
train_gpt2cu: override NVCC_INCLUDES += $(filter -I% -D%,$(ZERO_MPI))
train_gpt2cu: override NVCC_LDLIBS += $(patsubst -f%,-Xcompiler -f%,$(patsubst -pthread,-lpthread,\
    $(subst -Wl$(ZERO_COMMA),-Xlinker ,$(ZERO_LIBS))))
train_gpt2cu: $(ZERO_FOR_CUDA)
REMOVE_BUILD_OBJECT_FILES += $(wildcard $(addprefix $(ZERO_BUILD)/cuda/llmc_zero/,flags* *.[od] */*.[od])) \
    $(ZERO_FOR_CUDA)
