# The lessons of docs/tutorial/. Each NN_check.c is linked with what the reader wrote in NN_name.c, or with
# solutions/NN_name.c.
LESSONS  := $(patsubst dev/lessons/%_check.c,%,$(wildcard dev/lessons/[0-9][0-9]_check.c))
# 4 and 04 name the same lesson.
LESSON   := $(filter $(N) 0$(N),$(LESSONS))
PROGRAMS := $(LESSONS:%=$(BUILD)/lessons/%) $(LESSONS:%=$(BUILD)/lessons/%_solution)

.PHONY: lesson tutorial
# The wildcards leave out the grader itself.
LESSON_SRC = $(filter-out %_check.c,$(wildcard dev/lessons/$(2)$(1)_*.c))
define LESSON_RULES
$(BUILD)/lessons/$(1): $(call LESSON_SRC,$(1))
$(BUILD)/lessons/$(1)_solution: $(call LESSON_SRC,$(1),solutions/)
$(BUILD)/lessons/$(1) $(BUILD)/lessons/$(1)_solution: dev/lessons/$(1)_check.c
endef
$(foreach l,$(LESSONS),$(eval $(call LESSON_RULES,$(l))))
$(PROGRAMS): dev/lessons/lesson.c dev/lessons/lesson.h $(ZERO_LIB)
	@mkdir -p $(@D) && echo "  link $@"
	$(Q)$(CC) $(ZERO_CFLAGS) $(ZERO_MPI) -I. $(filter %.c %.a,$^) -o $@ $(ZERO_LIBS)

$(BUILD)/lessons/kept_pointer.c: dev/examples/mlp_zero.c dev/lessons/kept_pointer.sed
	$(Q)mkdir -p $(@D) && sed -f dev/lessons/kept_pointer.sed $< >$@
$(BUILD)/lessons/kept_pointer: $(BUILD)/lessons/kept_pointer.c $(ZERO_LIB)
	@echo "  link $@"
	$(Q)$(CC) $(BASE) -I. -Idev/examples $(filter %.c %.a,$^) -o $@ $(ZERO_LIBS)
$(BUILD)/lessons/slow_network.so: dev/lessons/slow_network.c
	@mkdir -p $(@D) && echo "  link $@"
	$(Q)$(CC) $(BASE) -shared -fPIC $< -o $@ -ldl

#? lesson              checks what you wrote for lesson N of docs/tutorial/
#? N=4                 make lesson, make tutorial: the number of a lesson
#? SOLUTION=1          make lesson: checks the solution instead
lesson: $(LESSON:%=$(BUILD)/lessons/%$(if $(SOLUTION),_solution))
	@test -n "$<" || { echo '$(if $(N),Lesson $(N) has no exercise,Which lesson? make lesson N=1)'\
	'; these have one: $(LESSONS)'; exit 1; }
	@. scripts/mpi_env.sh && $(WITHOUT_FLAGS) timeout -k 2 60 $<
#? tutorial            runs every command and every check of the lessons, and compares with their text
tutorial: $(TRAINER) $(EXAMPLE) $(BUILD)/bench/comm $(PROGRAMS) \
          $(BUILD)/lessons/kept_pointer $(BUILD)/lessons/slow_network.so
	@$(WITHOUT_FLAGS) dev/lessons/run.pl $(BUILD) $(N)
