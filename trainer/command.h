// The command line that goes on where a run has stopped.
#ifndef TRAINER_COMMAND_H
#define TRAINER_COMMAND_H

// Prints on rank 0, quoted for a shell, the command with -y 1 instead of what it says of resuming. If the
// process that started this rank ends its own command line with it, as mpirun does, that one is printed.
void print_command_to_go_on(int argc, char **argv);

#endif
