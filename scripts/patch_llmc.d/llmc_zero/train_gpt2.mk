# Builds train_gpt2 with the plugin, even with CFLAGS on the command line.
train_gpt2: override CFLAGS += -DLLMC_ZERO
train_gpt2: override LDLIBS += $(ZERO_LIBS)
train_gpt2: $(ZERO_LIB)
REMOVE_BUILD_OBJECT_FILES += $(wildcard $(addprefix $(ZERO_BUILD)/llmc_zero/,flags* *.[od] */*.[od])) \
    $(ZERO_LIB)
